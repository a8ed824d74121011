// The rows of one payment, as they appear in tables, on topics, at the PSP and at the receiver of
// webhooks.

import { byId, keep, make, set, show, write } from './dom.js';
import { milliseconds } from './format.js';

const stores = { postgres: 'Postgres', kafka: 'Kafka', psp: 'PSP', webhook: 'webhook' };

let shown = null; // id of the payment

export function render({ payment }) {
  show(byId('payment-empty'), !payment?.rows.length);
  show(byId('payment-scroll'), Boolean(payment?.rows.length));
  write(byId('payment-id'), payment?.id ?? '');
  if (!payment) {
    return;
  }

  if (shown !== payment.id) {
    shown = payment.id;
    byId('payment-rows').replaceChildren();
  }

  const first = Math.min(...payment.rows.map((row) => row.elapsed));
  keep(byId('payment-rows'), payment.rows.map((row, n) => ({ ...row, n })), {
    // Rows are only ever added, and one that changes stays in its place.
    key: (row) => row.n,
    create: createRow,
    update: (element, row) => updateRow(element, row, row.elapsed - first),
  });
}

function createRow(row) {
  const element = make('li', { 'data-store': row.store });
  const where = make('span', { class: 'where' });
  where.append(make('span', { class: 'store' }), ' ', make('span'));
  element.append(make('span', { class: 'when' }), where, make('span', { class: 'values' }));
  return element;
}

function updateRow(element, row, after) {
  const [when, where, what] = element.children;
  write(when, after >= 0.0001 ? `+${milliseconds(after * 1000)}` : '0\u00a0ms');
  write(where.firstElementChild, stores[row.store] ?? row.store);
  write(where.lastElementChild, row.table);

  keep(what, row.values.map(([name, value], n) => [name, value, n]), {
    key: ([, , n]) => n,
    create: ([name]) => {
      const pair = make('span', { class: 'pair' });
      pair.append(make('span', { class: 'quiet' }, name), ' ', make('span'));
      return pair;
    },
    update: (pair, [, value]) => {
      write(pair.lastElementChild, short(value));
      set(pair.lastElementChild, 'title', value);
    },
  });
}

const uuid = /([\da-f]{8})-[\da-f]{4}-[\da-f]{4}-[\da-f]{4}-[\da-f]{8}([\da-f]{4})/g;

/** short leaves of a UUID what tells it from its neighbors; the title has all of it. */
const short = (value) => value.replace(uuid, '$1…$2');
