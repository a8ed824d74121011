// Numbers as people read them.

const whole = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat('en-US', { maximumFractionDigits: 1 });

export const count = (n) => whole.format(n);

/** rate keeps a decimal where it matters: 0.4 a second is not 0. */
export const rate = (n) => (n < 10 ? tenth : whole).format(n);

export function milliseconds(ms) {
  return ms < 1000 ? `${rate(ms)}\u00a0ms` : `${tenth.format(ms / 1000)}\u00a0s`;
}

export function seconds(s) {
  if (s < 1) {
    return s > 0 ? milliseconds(s * 1000) : '0\u00a0s';
  }
  return s < 60 ? `${tenth.format(s)}\u00a0s` : `${clock(s)}\u00a0min`;
}

/** clock is a time since the start of the demo: 1:05, or 1:05.2 with tenths. */
export function clock(s, digits = 0) {
  // Round first, or 59.96 would become 0:60.0.
  const rounded = Number(s.toFixed(digits));
  const rest = (rounded % 60).toFixed(digits).padStart(digits ? digits + 3 : 2, '0');
  return `${Math.floor(rounded / 60)}:${rest}`;
}

export function plural(n, one, many = `${one}s`) {
  return `${count(n)}\u00a0${n === 1 ? one : many}`;
}
