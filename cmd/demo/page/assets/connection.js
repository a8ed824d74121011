// Whether the numbers are live, in the header and, when they are not, above everything.

import { byId, set, setIcon, show, write } from './dom.js';
import { clock } from './format.js';

let elapsed = null; // of the last state

export function render(state) {
  elapsed = state.elapsed;
  link('running', 'running', `Live, ${clock(elapsed)}`);
  show(byId('lost'), false);
  delete document.body.dataset.lost;
}

export function lost() {
  link('down', 'down', 'Not connected');

  const since = elapsed === null
    ? 'The demo does not answer. '
    : `The connection to the demo is lost. What you see is from ${clock(elapsed)}. `;
  const banner = byId('lost');
  show(banner, true);
  write(banner, `${since}Trying again every few seconds; if the demo ended, start it again.`);
  document.body.dataset.lost = '';
}

function link(state, shape, text) {
  const element = byId('link');
  set(element, 'data-state', state);
  setIcon(element, shape);
  write(byId('link-text'), text);
}
