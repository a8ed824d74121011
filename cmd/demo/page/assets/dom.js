// What every view uses to write into the page. Text goes in through textContent only, and only
// when it changed: each state would otherwise lay the page out again for nothing.

export const byId = (id) => document.getElementById(id);

/** make returns a new element with these attributes and this text. */
export function make(tag, attributes = {}, text = '') {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    element.setAttribute(name, value);
  }
  element.textContent = text;
  return element;
}

export function write(element, text) {
  if (element.textContent !== text) {
    element.textContent = text;
  }
}

export function set(element, attribute, value) {
  if (element.getAttribute(attribute) !== value) {
    element.setAttribute(attribute, value);
  }
}

export function show(element, shown) {
  if (element.hidden === shown) {
    element.hidden = !shown;
  }
}

const svg = 'http://www.w3.org/2000/svg';

export function makeSVG(tag, attributes = {}) {
  const element = document.createElementNS(svg, tag);
  for (const [name, value] of Object.entries(attributes)) {
    element.setAttribute(name, value);
  }
  return element;
}

/** icon returns a shape of index.html. What it means must be beside it as text. */
export function icon(name) {
  const element = makeSVG('svg', { class: 'icon', 'aria-hidden': 'true' });
  element.append(makeSVG('use', { href: `#icon-${name}` }));
  return element;
}

export function setIcon(parent, name) {
  set(parent.querySelector('use'), 'href', `#icon-${name}`);
}

/**
 * keep makes the children of list follow items: one child for each key, in their order. A child
 * that stays is updated, not replaced, so that focus and selection survive.
 */
export function keep(list, items, { key, create, update }) {
  const before = new Map([...list.children].map((child) => [child.dataset.key, child]));
  let place = list.firstElementChild;

  for (const item of items) {
    const id = String(key(item));
    let child = before.get(id);
    before.delete(id);

    if (!child) {
      child = create(item);
      child.dataset.key = id;
    }
    update(child, item);

    if (child === place) {
      place = place.nextElementSibling;
    } else {
      list.insertBefore(child, place);
    }
  }

  for (const gone of before.values()) {
    gone.remove();
  }
}
