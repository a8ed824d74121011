// The outbox, and the lease of the relay that reads it.

import { byId, icon, keep, make, write } from './dom.js';
import { count, seconds } from './format.js';

export function render(state) {
  if (state.outbox) {
    renderOutbox(state.outbox);
  }
  renderLease(state.lease);
}

function renderOutbox(outbox) {
  write(byId('outbox-waiting'), count(outbox.waiting));
  write(byId('outbox-oldest'), outbox.waiting > 0 ? seconds(outbox.oldest_seconds) : '–');
  write(byId('outbox-sent'), count(outbox.sent));
  write(byId('outbox-cursor'), outbox.cursor);

  const none = { xid: '', seconds: 0 };
  keep(byId('outbox-stragglers'), outbox.stragglers?.length ? outbox.stragglers : [none], {
    key: (straggler) => straggler.xid,
    create: (straggler) => {
      const item = make('li', straggler.xid ? { 'data-state': 'frozen' } : {});
      if (straggler.xid) {
        item.append(icon('frozen'));
      }
      item.append(make('span'));
      return item;
    },
    update: (item, straggler) => write(item.lastElementChild, straggler.xid
      ? `xid ${straggler.xid} for ${seconds(Math.floor(straggler.seconds))}`
      : 'none'),
  });
}

// The gauge is full at the longest time seen under a token, which is soon the whole lease.
let token = null;
let longest = 0;

function renderLease(lease) {
  write(byId('lease-holder'), lease ? lease.holder : 'no relay holds it');
  write(byId('lease-token'), lease ? `holds it, token ${count(lease.token)}` : '');
  const left = Math.max(0, lease?.left_seconds ?? 0);
  write(byId('lease-left'), lease ? `${left.toFixed(1)}\u00a0s left` : '');

  if (lease && lease.token !== token) {
    token = lease.token;
    longest = 0;
  }
  longest = Math.max(longest, left);
  const full = longest > 0 ? left / longest : 0;
  byId('lease-gauge').style.transform = `scaleX(${full.toFixed(2)})`;
}
