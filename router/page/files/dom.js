// The little that is needed to build a page of nodes, and to change only what changed.

const SVG = "http://www.w3.org/2000/svg";

export const find = (id) => document.getElementById(id);

export function make(tag, className = "", ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

export function makeSvg(tag, attributes = {}) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setClass(node, className) {
  if (node.className !== className) node.className = className;
}

export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

// Rows of `parent`, one an item, in the items' order: rows are kept, moved, made and removed by key.
export class KeyedRows {
  #parent;
  #make;
  #rows = new Map();

  // `make(item)` gives {node, update(item)}.
  constructor(parent, makeRow) {
    this.#parent = parent;
    this.#make = makeRow;
  }

  show(items, keyOf) {
    const kept = new Map();
    let place = this.#parent.firstElementChild;
    for (const item of items) {
      const key = keyOf(item);
      const row = this.#rows.get(key) ?? this.#make(item);
      kept.set(key, row);
      row.update(item);
      if (row.node === place) place = place.nextElementSibling;
      else this.#parent.insertBefore(row.node, place);
    }
    for (const [key, row] of this.#rows) if (!kept.has(key)) row.node.remove();
    this.#rows = kept;
  }
}
