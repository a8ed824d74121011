// What a screen reader hears of what happens. A killed program writes several lines within a
// second, so lines are gathered: one announcement every few seconds, with the latest lines.

import { byId } from './dom.js';

const pause = 2500;
const most = 3;

let lines = [];
let timer = 0;

export function announce(line) {
  lines = [...lines, line].slice(-most);
  timer ||= setTimeout(speak, pause);
}

function speak() {
  byId('announcer').textContent = lines.join('. ');
  lines = [];
  timer = 0;
}
