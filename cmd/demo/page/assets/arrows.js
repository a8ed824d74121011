// The arrows between the boxes, and the dots that travel along them at a pace that follows each
// flow's rate. The dots of an arrow are one dashed line whose offset changes: eight attributes a
// tick, however many dots.

import { byId, makeSVG, set } from './dom.js';
import { all, element } from './boxes.js';

const tick = 500; // ms; a frame costs the browser more than its dots, so there are few
const away = 4; // px between an arrow and its boxes
const corner = 4; // px, radius

const arrows = new Map(); // by 'from-to'
let timer = 0;
let visible = true;

export function build() {
  // A box may grow by a line, which moves all the others.
  const resized = new ResizeObserver(layOut);
  resized.observe(byId('diagram'));
  for (const box of all()) {
    resized.observe(box);
  }

  new IntersectionObserver(([entry]) => {
    visible = entry.isIntersecting;
    startOrStop();
  }).observe(byId('diagram'));

  document.addEventListener('visibilitychange', startOrStop);
  addEventListener('settings', startOrStop);
}

export function render(state) {
  let added = false;

  for (const { from, to, rate } of state.flows ?? []) {
    const name = `${from}-${to}`;
    if (!arrows.has(name) && element(from) && element(to)) {
      arrows.set(name, create(from, to));
      added = true;
    }
    pace(arrows.get(name), rate);
  }

  if (added) {
    layOut();
  }
  startOrStop();
}

function create(from, to) {
  const line = makeSVG('path', { class: 'line', 'marker-end': 'url(#head)' });
  const dots = makeSVG('path', { class: 'dots' });
  byId('arrows').append(dots, line);
  return { from, to, line, dots, speed: 0, offset: 0 };
}

// The pace grows with the logarithm of the rate: one event a second can be seen to move, and a
// thousand do not blur: a dot moves less than half a gap in a tick, or it would seem to go back.
// Rare events are also further apart.
function pace(arrow, rate) {
  if (!arrow) {
    return;
  }
  arrow.speed = rate > 0 ? 3 + 4 * Math.min(3, Math.log10(1 + rate)) : 0;
  arrow.gap = rate < 1 ? 48 : rate < 10 ? 24 : 16;
  set(arrow.dots, 'stroke-dasharray', `0 ${arrow.gap}`);
  arrow.dots.toggleAttribute('data-idle', !(rate > 0));
}

function layOut() {
  const origin = byId('diagram').getBoundingClientRect();
  const at = (id) => {
    const r = element(id).getBoundingClientRect();
    return { left: r.left - origin.left, right: r.right - origin.left,
      top: r.top - origin.top, bottom: r.bottom - origin.top,
      x: (r.left + r.right) / 2 - origin.left, y: (r.top + r.bottom) / 2 - origin.top };
  };

  for (const arrow of arrows.values()) {
    const path = route(at(arrow.from), at(arrow.to));
    set(arrow.line, 'd', path);
    set(arrow.dots, 'd', path);
  }
}

/** route leaves a box on the side that faces the other one, and turns halfway. */
function route(a, b) {
  if (b.left >= a.right) {
    return across(a.right + away, a.y, b.left - away, b.y);
  }
  if (b.right <= a.left) {
    return across(a.left - away, a.y, b.right + away, b.y);
  }
  return down(a.x, a.bottom + away, b.x, b.top - away);
}

function across(x1, y1, x2, y2) {
  if (Math.abs(y2 - y1) < 2 * corner) {
    return `M${x1} ${y1}H${x2}`;
  }
  const x = (x1 + x2) / 2;
  const dx = Math.sign(x2 - x1) * corner;
  const dy = Math.sign(y2 - y1) * corner;
  return `M${x1} ${y1}H${x - dx}Q${x} ${y1} ${x} ${y1 + dy}`
    + `V${y2 - dy}Q${x} ${y2} ${x + dx} ${y2}H${x2}`;
}

function down(x1, y1, x2, y2) {
  if (Math.abs(x2 - x1) < 2 * corner) {
    return `M${x2} ${y1}V${y2}`;
  }
  const y = (y1 + y2) / 2;
  const dx = Math.sign(x2 - x1) * corner;
  return `M${x1} ${y1}V${y - corner}Q${x1} ${y} ${x1 + dx} ${y}`
    + `H${x2 - dx}Q${x2} ${y} ${x2} ${y + corner}V${y2}`;
}

/** startOrStop runs the timer only while dots move that somebody can see. */
export function startOrStop() {
  const wanted = document.documentElement.dataset.motion === 'on'
    && !('lost' in document.body.dataset);
  const moving = wanted && visible && !document.hidden
    && [...arrows.values()].some((arrow) => arrow.speed > 0);

  if (moving && !timer) {
    timer = setInterval(step, tick);
  } else if (!moving) {
    clearInterval(timer);
    timer = 0;
  }
}

function step() {
  for (const arrow of arrows.values()) {
    if (arrow.speed > 0) {
      arrow.offset = (arrow.offset + arrow.speed * tick / 1000) % arrow.gap;
      arrow.dots.setAttribute('stroke-dashoffset', (-arrow.offset).toFixed(1));
    }
  }
}
