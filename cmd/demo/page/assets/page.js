// The demo's page: one state every second from the running programs goes to each view.

import * as actions from './actions.js';
import * as arrows from './arrows.js';
import * as boxes from './boxes.js';
import * as connection from './connection.js';
import * as invariants from './invariants.js';
import * as latency from './latency.js';
import * as outbox from './outbox.js';
import * as payment from './payment.js';
import * as timeline from './timeline.js';
import * as tour from './tour.js';
import { listen } from './stream.js';

const views = [connection, boxes, arrows, outbox, payment, invariants, latency, actions];

let latest = null;

function render() {
  if (latest && !document.hidden) {
    for (const view of views) {
      view.render(latest);
    }
  }
}

boxes.build();
actions.build();
arrows.build();
tour.build();

listen({
  opened() {
    // The demo may be another one than before: what it kept comes again from the start.
    timeline.clear();
    latency.clear();
  },

  timeline(line) {
    timeline.add(line);
    latency.mark(line);
  },

  state(state) {
    // Sampled in a hidden tab, too, so that the curve has no gap.
    latency.sample(state);
    timeline.live();
    latest = state;
    render();
  },

  lost() {
    connection.lost();
    invariants.lost();
    arrows.startOrStop();
  },
});

document.addEventListener('visibilitychange', render);
