// A list of any length: only the rows that are in sight are elements.

import { el } from "./dom.js";

const ROW = 76;            // pixels, as in style.css
const BEYOND = 6;          // rows above and below what is in sight

export class VirtualList {
  // *draw* makes the content of a row, *open* is called with its index.
  constructor(draw, open, label) {
    this.draw = draw;
    this.open = open;
    this.rows = [];
    this.selected = -1;
    this.space = el("div");
    this.node = el("div", { class: "scroller", role: "listbox", tabindex: "0", "aria-label": label,
      onscroll: () => this.show() }, this.space);
    this.elements = new Map();
    new ResizeObserver(() => this.show()).observe(this.node);
  }

  // Show other rows; the row that was selected stays it, or else the one of *id* becomes it.
  set(rows, id) {
    const chosen = this.rows[this.selected]?.id ?? id;
    this.rows = rows;
    this.selected = rows.findIndex((row) => row.id === chosen);
    this.space.style.height = `${rows.length * ROW}px`;
    for (const element of this.elements.values()) element.remove();
    this.elements.clear();
    this.show();
  }

  show() {
    const first = Math.max(0, Math.floor(this.node.scrollTop / ROW) - BEYOND);
    const last = Math.min(this.rows.length,
      Math.ceil((this.node.scrollTop + this.node.clientHeight) / ROW) + BEYOND);
    for (const [index, element] of this.elements) {
      if (index < first || index >= last) {
        element.remove();
        this.elements.delete(index);
      }
    }
    for (let index = first; index < last; index += 1) {
      if (!this.elements.has(index)) this.add(index);
    }
    if (this.elements.has(this.selected)) {
      this.node.setAttribute("aria-activedescendant", `row-${this.selected}`);
    } else {
      this.node.removeAttribute("aria-activedescendant");
    }
  }

  add(index) {
    const element = el("div", { class: "row", role: "option", id: `row-${index}`,
      "data-id": this.rows[index].id,
      "aria-selected": String(index === this.selected), "aria-posinset": index + 1,
      "aria-setsize": this.rows.length, onclick: () => this.select(index, true) },
    this.draw(this.rows[index]));
    element.style.transform = `translateY(${index * ROW}px)`;
    this.elements.set(index, element);
    this.space.append(element);
  }

  select(index, isOpened = false) {
    if (!this.rows.length) return;
    this.selected = Math.max(0, Math.min(this.rows.length - 1, index));
    for (const [each, element] of this.elements) {
      element.setAttribute("aria-selected", String(each === this.selected));
    }
    const top = this.selected * ROW;
    if (top < this.node.scrollTop) this.node.scrollTop = top;
    const bottom = top + ROW - this.node.clientHeight;
    if (bottom > this.node.scrollTop) this.node.scrollTop = bottom;
    this.show();
    if (isOpened) this.open(this.rows[this.selected]);
  }
}
