// The invariants, and the verdict in the header: the sum of them.

import { announce } from './announce.js';
import { byId, icon, keep, make, set, setIcon, show, write } from './dom.js';
import { count, plural, seconds } from './format.js';

const stale = 30; // seconds; the demo counts at least every 20

let announced = 0; // broken invariants that were spoken of

export function render(state) {
  const lines = state.invariants ?? [];
  show(byId('invariants-empty'), lines.length === 0);
  show(byId('invariants-scroll'), lines.length > 0);

  const age = Math.max(0, state.elapsed - (state.checked_elapsed ?? state.elapsed));
  const wrong = lines.filter((line) => line.wrong > 0);
  const when = lines.length ? `counted ${seconds(Math.floor(age))} ago` : '';
  write(byId('invariants-when'), when);
  renderVerdict(verdict(lines, wrong, age), when);

  // What is broken comes first, where it is seen without scrolling.
  keep(byId('invariants'), [...wrong, ...lines.filter((line) => !(line.wrong > 0))], {
    key: (line) => line.name,
    create: createLine,
    update: updateLine,
  });

  if (wrong.length !== announced) {
    announced = wrong.length;
    announce(wrong.length
      ? `${plural(wrong.length, 'invariant')} broken: ${wrong.map((line) => line.text).join(', ')}`
      : 'All invariants hold again');
  }
}

/** lost takes back the verdict: without a connection nothing is known to hold. */
export function lost() {
  renderVerdict(['waiting', 'Nothing counted since the connection was lost'], '');
}

function renderVerdict([state, text], when) {
  const element = byId('verdict');
  set(element, 'data-state', state);
  setIcon(element, state);
  write(byId('verdict-text'), text);
  write(byId('verdict-when'), when);
}

function verdict(lines, wrong, age) {
  if (wrong.length) {
    return ['wrong', `${wrong.length} of ${plural(lines.length, 'invariant')} broken`];
  }
  if (!lines.length) {
    return ['waiting', 'Not counted yet'];
  }
  if (age > stale) {
    return ['waiting', 'No recent count:'];
  }
  return ['ok', `${lines.length} of ${plural(lines.length, 'invariant')} hold`];
}

function createLine() {
  const item = make('li');
  item.append(icon('waiting'), make('span', { class: 'text' }), make('span', { class: 'of' }));
  return item;
}

function updateLine(item, line) {
  const [, text, of] = item.children;
  // A count of nothing proves nothing, so it is not green.
  const state = line.wrong > 0 ? 'wrong' : line.of > 0 ? 'ok' : 'waiting';
  set(item, 'data-state', state);
  setIcon(item, state);
  write(text, line.text);
  write(of, line.of > 0 || line.wrong > 0
    ? `${count(line.wrong)} of ${count(line.of)}`
    : 'none yet');
}
