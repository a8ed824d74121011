// The guided tour: six faults done to the real programs, each ending with what was proved and the
// file that does it.

import { post } from './actions.js';
import { byId, icon, make, set, setIcon, show, write } from './dom.js';
import { seconds } from './format.js';

const retry = 3000; // ms until the steps are asked for again

let steps = []; // of the demo, and what came of each: {title, text, action, file, state, proof}
let current = 0;

export async function build() {
  try {
    const response = await fetch('tour');
    steps = (await response.json()).map((step) => ({ ...step, state: 'waiting' }));
  } catch {
    steps = [];
  }

  // There is none while the demo starts.
  if (!steps.length) {
    setTimeout(build, retry);
    return;
  }

  byId('tour-steps').append(...steps.map(createStep));
  byId('tour-toggle').addEventListener('click', toggle);
  byId('step-run').addEventListener('click', run);
  byId('step-back').addEventListener('click', () => go(current - 1));
  byId('step-next').addEventListener('click', () => go(current + 1));
  byId('tour').addEventListener('keydown', onKey);
  show(byId('tour'), true);
  render();
}

function createStep(step, n) {
  const item = make('li');
  const button = make('button', { type: 'button' });
  button.append(icon('waiting'), make('span', {}, String(n + 1)));
  button.addEventListener('click', () => go(n));
  item.append(button);
  return item;
}

function toggle() {
  const opened = byId('tour-body').hidden;
  show(byId('tour-body'), opened);
  byId('tour-toggle').setAttribute('aria-expanded', String(opened));
  write(byId('tour-toggle'), opened ? 'Close the tour' : 'Open the tour');
  if (opened) {
    byId('step-run').focus();
  }
}

function onKey(event) {
  const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (move && !byId('tour-body').hidden) {
    event.preventDefault();
    go(current + move);
  } else if (event.key === 'Escape' && !byId('tour-body').hidden) {
    toggle();
    byId('tour-toggle').focus();
  }
}

// The focus goes to the step's button, which is described by the step's title and text.
function go(n) {
  if (n < 0 || n >= steps.length) {
    return;
  }
  current = n;
  render();
  byId('step-run').focus();
}

async function run() {
  const n = current;
  const step = steps[n];
  if (steps.some((s) => s.state === 'starting')) {
    return; // two steps at once would disturb each other
  }

  step.state = 'starting';
  render();

  const { ok, answer } = await post(`tour/${n + 1}`);
  step.state = ok && answer.ok !== false ? 'ok' : 'wrong';
  step.proof = step.state === 'ok' ? answer.proved : answer.proved ?? answer.error;
  step.file = answer.file ?? step.file;
  step.seconds = answer.seconds;
  render();
}

const headings = {
  waiting: 'Not done yet', starting: 'Doing it to the running programs', ok: 'Proved',
  wrong: 'Not proved',
};

function render() {
  const step = steps[current];
  const busy = steps.some((s) => s.state === 'starting');
  const proved = steps.filter((s) => s.state === 'ok').length;

  write(byId('tour-progress'), proved
    ? `${proved} of ${steps.length} proved.`
    : 'Six faults, each done to the real programs and proved.');
  steps.forEach(renderStep);

  write(byId('step-title'), step.title);
  write(byId('step-text'), step.text);
  write(byId('step-run'), step.action);
  set(byId('step-run'), 'aria-disabled', String(busy));
  set(byId('step-run'), 'class', step.state === 'ok' ? '' : 'primary');
  set(byId('step-next'), 'class', step.state === 'ok' ? 'primary' : '');
  show(byId('step-next'), current < steps.length - 1);
  show(byId('step-back'), current > 0);

  renderProof(step);
}

function renderStep(step, n) {
  const button = byId('tour-steps').children[n].firstElementChild;
  set(button, 'data-state', step.state);
  setIcon(button, step.state);
  set(button, 'aria-label', `${n + 1}: ${step.title}, ${headings[step.state].toLowerCase()}`);
  if (n === current) {
    set(button, 'aria-current', 'step');
  } else {
    button.removeAttribute('aria-current');
  }
}

function renderProof(step) {
  const proof = byId('proof');
  set(proof, 'data-state', step.state);
  setIcon(proof, step.state);
  write(byId('proof-heading'), headings[step.state]);
  write(byId('proof-text'), step.proof ?? '');
  write(byId('proof-file'), step.file);
  show(byId('proof-took'), step.seconds !== undefined);
  write(byId('proof-seconds'), step.seconds === undefined ? '' : seconds(step.seconds));
}
