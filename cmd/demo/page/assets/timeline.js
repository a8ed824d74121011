// What happened, latest first: actions, faults, recoveries, proofs, and what went wrong.

import { announce } from './announce.js';
import { byId, icon, make, show } from './dom.js';
import { clock } from './format.js';

const most = 100; // lines on the page; the demo keeps its own

let current = false; // true once the kept lines are in: what follows happens now

export function clear() {
  current = false;
  byId('timeline').replaceChildren();
}

/** live tells that every kept line has come. */
export function live() {
  current = true;
}

export function add(line) {
  const list = byId('timeline');
  const item = make('li', { 'data-kind': line.kind });
  item.append(icon(line.kind), make('span', { class: 'when' }, clock(line.elapsed, 1)),
    make('span', { class: 'kind' }, line.kind), make('span', { class: 'text' }, line.text));
  list.prepend(item);

  while (list.children.length > most) {
    list.lastElementChild.remove();
  }

  show(byId('timeline-empty'), false);
  show(byId('timeline-scroll'), true);

  // An action is answered where it was pressed, and a proof is read out by the tour.
  if (current && !['action', 'proof'].includes(line.kind)) {
    announce(`${line.kind}: ${line.text}`);
  }
}
