// The api's p99 over the last two minutes, with marks where faults and recoveries were. The scale
// is logarithmic: a fault's second must not flatten the milliseconds around it.

import { byId, icon, make, makeSVG, set, write } from './dom.js';
import { milliseconds, plural } from './format.js';

const span = 120; // seconds
const width = 400;
const height = 96;
const lowest = 0.5; // ms, at the bottom
const describe = 10; // seconds between two descriptions for screen readers

let samples = []; // {at, ms}
let marks = []; // {at, kind, seq}
let described = 0;

export function clear() {
  samples = [];
  marks = [];
  described = -Infinity;
}

export function sample(state) {
  const api = state.boxes.find((box) => box.id === 'api');
  samples.push({ at: state.elapsed, ms: api?.p99_ms ?? null });

  const since = state.elapsed - span;
  samples = samples.filter((s) => s.at >= since);
  marks = marks.filter((m) => m.at >= since);
}

export function mark({ elapsed, kind, seq }) {
  if (kind === 'fault' || kind === 'recovery') {
    marks.push({ at: elapsed, kind, seq });
  }
}

export function render(state) {
  const known = samples.filter((s) => s.ms !== null).map((s) => s.ms);
  const now = samples.at(-1)?.ms ?? null;
  const highest = Math.max(0, ...known);
  const top = 10 ** Math.max(2, Math.ceil(Math.log10(highest || 1)));

  write(byId('latency-now'), now === null ? 'no answer' : milliseconds(now));
  draw(state.elapsed, top);

  if (state.elapsed - described >= describe) {
    described = state.elapsed;
    const faults = marks.filter((m) => m.kind === 'fault').length;
    set(byId('latency'), 'aria-label', known.length
      ? `api p99 over the last two minutes: now ${now === null ? 'no answer' : milliseconds(now)}, `
        + `highest ${milliseconds(highest)}, ${plural(faults, 'fault')}`
      : 'No latencies yet');
  }
}

const y = (ms, top) =>
  height - height * Math.log(Math.max(ms, lowest) / lowest) / Math.log(top / lowest);

function draw(now, top) {
  const chart = byId('latency');
  if (!chart.firstChild) {
    chart.append(makeSVG('path', { class: 'grid' }), makeSVG('path', { class: 'curve' }));
  }
  const [grid, curve] = chart.children;

  const levels = [1, 10, 100, 1000, 10_000].filter((ms) => ms <= top);
  set(grid, 'd', levels.map((ms) => `M0 ${y(ms, top).toFixed(1)}H${width}`).join(''));
  set(curve, 'd', path(now, top));
  drawScale(levels, top);
  drawMarks(now);
}

// A sample without an answer lifts the pen: a gap is no latency.
function path(now, top) {
  let pen = 'M';
  let d = '';
  for (const { at, ms } of samples) {
    if (ms === null) {
      pen = 'M';
      continue;
    }
    d += `${pen}${(width - (now - at) / span * width).toFixed(1)} ${y(ms, top).toFixed(1)}`;
    pen = 'L';
  }
  return d;
}

let scale = '';

function drawScale(levels, top) {
  if (scale === levels.join()) {
    return;
  }
  scale = levels.join();
  byId('latency-scale').replaceChildren(...levels.map((ms) => {
    const label = make('span', {}, milliseconds(ms));
    label.style.top = `${y(ms, top) / height * 100}%`;
    return label;
  }));
}

function drawMarks(now) {
  byId('latency-marks').replaceChildren(...marks.map(({ at, kind }) => {
    const element = make('span', { 'data-kind': kind });
    element.append(icon(kind));
    element.style.left = `${(1 - (now - at) / span) * 100}%`;
    return element;
  }));
}
