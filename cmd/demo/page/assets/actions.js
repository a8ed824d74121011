// The buttons that do things to the running programs. One line says what came of the last one.

import { byId, set, show, write } from './dom.js';

const lasts = 10_000; // ms that a success is shown; an error stays until the next press

let fading = 0;

export function build() {
  show(byId('result'), false);

  byId('diagram').addEventListener('click', (event) => {
    const button = event.target.closest('button[data-action]');
    if (button && button.getAttribute('aria-disabled') !== 'true') {
      press(button);
    }
  });
}

// A transaction is either held open or not: one button, and the focus stays on it.
export function render({ boxes, faults }) {
  const open = Boolean(faults?.open_transaction);
  const transaction = byId('transaction');
  set(transaction, 'data-action', open ? 'close-transaction' : 'open-transaction');
  write(transaction, open ? 'End the transaction' : 'Hold a transaction open');
  transaction.toggleAttribute('data-armed', open);

  const armed = Boolean(faults?.lose_commit_reply);
  const reply = byId('commit-reply');
  write(reply, armed ? 'The next reply will be lost' : 'Lose the next reply to COMMIT');
  reply.toggleAttribute('data-armed', armed);
  disable(reply, armed);

  // A program that is down cannot be killed or frozen.
  for (const { id, state } of boxes) {
    const down = state === 'down' || state === 'starting';
    document.querySelectorAll(`[data-box="${id}"] button`).forEach((b) => disable(b, down));
  }
}

// Not the attribute disabled, which would take the focus away under the finger.
function disable(button, off) {
  if (!button.hasAttribute('aria-busy')) {
    set(button, 'aria-disabled', String(off));
  }
}

async function press(button) {
  button.setAttribute('aria-busy', 'true');
  button.setAttribute('aria-disabled', 'true');

  const { ok, answer } = await post(`actions/${button.dataset.action}`);
  tell(ok, ok ? answer.text : answer.error);

  button.removeAttribute('aria-busy');
  button.setAttribute('aria-disabled', 'false');
}

function tell(ok, text) {
  const result = byId('result');
  show(result, true);
  set(result, 'data-state', ok ? 'ok' : 'wrong');
  result.textContent = ok ? text : `Failed: ${text}`;

  clearTimeout(fading);
  if (ok) {
    fading = setTimeout(() => show(result, false), lasts);
  }
}

/** post returns the demo's answer, or a sentence that says why there is none. */
export async function post(path) {
  try {
    const response = await fetch(path, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: '{}',
    });
    const answer = await response.json();
    const error = `The demo answered ${response.status}.`;
    return { ok: response.ok, answer: { error, ...answer } };
  } catch {
    return { ok: false, answer: { error: 'The demo did not answer. Is it still running?' } };
  }
}
