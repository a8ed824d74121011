// The nine boxes of the diagram: rate, latency, state and instances, and buttons to break them.

import { byId, icon, keep, make, set, setIcon, write } from './dom.js';
import { milliseconds, rate } from './format.js';

const titles = {
  requests: 'requests', api: 'api', postgres: 'Postgres', relay: 'relay', kafka: 'Kafka',
  consumer: 'consumer', worker: 'worker', psp: 'PSP', webhooks: 'webhooks',
};

// Killing relay means its leader; the standby is what the demonstration is about.
const breakable = {
  api: 'api', relay: 'the leading relay', consumer: 'consumer', worker: 'worker', psp: 'the PSP',
  kafka: 'Kafka',
};

const states = {
  running: 'running', leading: 'leading', 'standing-by': 'standing by', frozen: 'frozen',
  down: 'down', starting: 'starting',
};

const boxes = new Map();

export function build() {
  for (const [id, title] of Object.entries(titles)) {
    const box = byId('box').content.firstElementChild.cloneNode(true);
    const heading = box.querySelector('h3');
    heading.id = `box-${id}`;
    heading.textContent = title;
    box.dataset.box = id;
    box.setAttribute('aria-labelledby', heading.id);

    if (id in breakable) {
      box.querySelector('.buttons').append(
        make('button', { type: 'button', class: 'harm small', 'data-action': `kill/${id}`,
          'aria-label': `Kill ${breakable[id]}` }, 'Kill'),
        make('button', { type: 'button', class: 'harm small', 'data-action': `freeze/${id}`,
          'aria-label': `Freeze ${breakable[id]}` }, 'Freeze'),
      );
    }

    byId('diagram').append(box);
    boxes.set(id, box);
  }
}

/** element returns a box's element, for the arrows between them. */
export const element = (id) => boxes.get(id);
export const all = () => boxes.values();

export function render(state) {
  for (const data of state.boxes) {
    const box = boxes.get(data.id);
    if (box) {
      renderBox(box, data, state.faults?.frozen ?? []);
    }
  }

  for (const [id, box] of boxes) {
    const next = (state.flows ?? []).filter((flow) => flow.from === id);
    write(box.querySelector('.sends'),
      next.length ? `Sends to ${next.map((flow) => titles[flow.to]).join(' and ')}.` : '');
  }
}

function renderBox(box, data, frozen) {
  set(box, 'data-state', data.state);
  setIcon(box.querySelector('.state'), data.state);
  write(box.querySelector('.state span'), states[data.state] ?? data.state);

  write(box.querySelector('.rate strong'), rate(data.rate ?? 0));
  write(box.querySelector('.rate span'), data.unit ?? '');
  write(box.querySelector('.latencies'), latencies(data));
  write(box.querySelector('.detail'), data.detail ?? '');

  // A single instance is what the box already shows.
  const instances = data.instances ?? [];
  keep(box.querySelector('.instances'), instances.length > 1 ? instances : [], {
    key: (instance) => instance.name,
    create: createInstance,
    update: updateInstance,
  });

  const icy = instances.some((instance) => instance.state === 'frozen')
    || data.state === 'frozen' || frozen.includes(data.id);
  freezeOrThaw(box, data.id, icy);
}

function latencies({ p50_ms: p50, p99_ms: p99 }) {
  if (typeof p99 !== 'number') {
    return '';
  }
  const [low, unit] = milliseconds(p50 ?? p99).split('\u00a0');
  const high = milliseconds(p99);
  const same = high.endsWith(`\u00a0${unit}`);
  return `p50\u00a0${low}${same ? '' : `\u00a0${unit}`} · p99\u00a0${high}`;
}

function createInstance(instance) {
  const item = make('li');
  const state = make('span');
  item.append(icon(instance.state), make('span', {}, instance.name), ' ', state);
  return item;
}

function updateInstance(item, instance) {
  set(item, 'data-state', instance.state);
  setIcon(item, instance.state);
  write(item.lastElementChild, states[instance.state] ?? instance.state);
}

// One button freezes and thaws, so that the focus stays where it is.
function freezeOrThaw(box, id, frozen) {
  const button = box.querySelector('.buttons')?.lastElementChild;
  if (!button) {
    return;
  }

  set(button, 'data-action', `${frozen ? 'thaw' : 'freeze'}/${id}`);
  const target = frozen && id === 'relay' ? 'the frozen relay' : breakable[id];
  set(button, 'aria-label', `${frozen ? 'Thaw' : 'Freeze'} ${target}`);
  write(button, frozen ? 'Thaw' : 'Freeze');
}
