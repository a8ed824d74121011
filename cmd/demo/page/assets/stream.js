// The connection to /events. It reports whether it is live, and never gives up.

const silence = 3000; // a state comes every 500 ms; six are missing
const deaf = 10_000; // a connection of a machine that slept looks open for ever: open a new one
const pause = 2000; // before a refused connection is tried again

/**
 * listen calls opened, state, timeline and lost of the listener as things happen. After opened
 * come the lines of the timeline that the demo kept, all of them, then the first state.
 */
export function listen(listener) {
  let source;
  let heard = performance.now();
  let lost = false;

  function lose() {
    if (!lost) {
      lost = true;
      listener.lost();
    }
  }

  function open() {
    source?.close();
    heard = performance.now();
    source = new EventSource('events');

    source.addEventListener('open', () => listener.opened());
    source.addEventListener('timeline', (event) => listener.timeline(JSON.parse(event.data)));
    source.addEventListener('state', (event) => {
      heard = performance.now();
      lost = false;
      listener.state(JSON.parse(event.data));
    });

    source.addEventListener('error', () => {
      lose();
      // The browser repeats a broken connection by itself, but not one that was refused.
      if (source.readyState === EventSource.CLOSED) {
        setTimeout(open, pause);
      }
    });
  }

  setInterval(() => {
    const quiet = performance.now() - heard;
    if (quiet > silence) {
      lose();
    }
    if (quiet > deaf && source.readyState === EventSource.OPEN) {
      open();
    }
  }, 1000);

  open();
}
