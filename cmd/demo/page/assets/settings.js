// Theme and motion: what the visitor chose here, else what the system asks for. This script is not
// a module: it runs before the first paint, so that a remembered theme does not flash.
(() => {
  'use strict';

  const root = document.documentElement;
  const system = {
    dark: matchMedia('(prefers-color-scheme: dark)'),
    still: matchMedia('(prefers-reduced-motion: reduce)'),
  };

  // Storage may be forbidden; the switches then last as long as the page.
  const chosen = {};
  const recall = (name) => {
    try {
      return chosen[name] ?? localStorage.getItem(`oncepay.${name}`);
    } catch {
      return null;
    }
  };
  const remember = (name, value) => {
    chosen[name] = value;
    try {
      localStorage.setItem(`oncepay.${name}`, value);
    } catch {
      // chosen has it
    }
  };

  const dark = () => (recall('theme') ?? (system.dark.matches ? 'dark' : 'light')) === 'dark';
  const moving = () => (recall('motion') ?? (system.still.matches ? 'off' : 'on')) === 'on';

  function apply() {
    root.dataset.theme = dark() ? 'dark' : 'light';
    root.dataset.motion = moving() ? 'on' : 'off';
    document.getElementById('dark')?.setAttribute('aria-checked', String(dark()));
    document.getElementById('motion')?.setAttribute('aria-checked', String(moving()));

    // The arrows run on a timer, which stylesheets cannot stop.
    dispatchEvent(new Event('settings'));
  }

  apply();
  system.dark.addEventListener('change', apply);
  system.still.addEventListener('change', apply);

  addEventListener('DOMContentLoaded', () => {
    apply();
    document.getElementById('dark').addEventListener('click', () => {
      remember('theme', dark() ? 'light' : 'dark');
      apply();
    });
    document.getElementById('motion').addEventListener('click', () => {
      remember('motion', moving() ? 'off' : 'on');
      apply();
    });
  });
})();
