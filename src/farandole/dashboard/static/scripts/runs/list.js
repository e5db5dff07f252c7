// A list that draws only the rows in view, so that ten thousand rows cost no more than thirty.

import { h, perFrame } from "../shared/dom.js";

const SPARE = 8; // rows above and below the view

/** A scrolling list of rows of equal height. */
export class VirtualList {
  /** `draw(item, index)` returns the element of a row; `label` names the list. */
  constructor(draw, label) {
    this.draw = draw;
    this.items = [];
    this.drawn = new Map();
    this.space = h("div.rows-space", { role: "presentation" });
    this.element = h(
      "div.rows",
      { role: "rowgroup", "aria-label": label, tabindex: "-1" },
      this.space,
    );
    this.update = perFrame(() => this.render());
    this.element.addEventListener("scroll", this.update, { passive: true });
    this.observer = new ResizeObserver(this.update);
    this.observer.observe(this.element);
  }

  get rowHeight() {
    return parseFloat(getComputedStyle(this.element).getPropertyValue("--row-height")) || 44;
  }

  /** Show new items. Rows of unchanged items are kept, unless `redraw`. */
  set(items, redraw) {
    for (const [index, row] of [...this.drawn]) {
      if (!redraw && items[index] === this.items[index]) continue;
      row.remove();
      this.drawn.delete(index);
    }
    this.items = items;
    this.render();
  }

  render() {
    const height = this.rowHeight;
    if (height !== this.height) {
      this.height = height;
      this.drawn.clear();
      this.space.replaceChildren();
    }
    this.space.style.height = `${this.items.length * height}px`;
    const first = Math.max(0, Math.floor(this.element.scrollTop / height) - SPARE);
    const last = Math.min(
      this.items.length,
      Math.ceil((this.element.scrollTop + this.element.clientHeight) / height) + SPARE,
    );
    for (const [index, row] of [...this.drawn]) {
      if (index < first || index >= last) {
        row.remove();
        this.drawn.delete(index);
      }
    }
    for (let index = first; index < last; index++) this.place(index, height);
  }

  place(index, height) {
    if (this.drawn.has(index)) return;
    const row = this.draw(this.items[index], index);
    row.style.transform = `translateY(${index * height}px)`;
    row.setAttribute("aria-rowindex", index + 2); // the header is row 1
    let next = index + 1;
    while (next < this.items.length && next < index + 200 && !this.drawn.has(next)) next += 1;
    this.space.insertBefore(row, this.drawn.get(next) ?? null);
    this.drawn.set(index, row);
  }

  /** Redraw one row. */
  redraw(index) {
    this.drawn.get(index)?.remove();
    this.drawn.delete(index);
    this.render();
  }

  /** Scroll until a row is in view, and return its element. */
  reveal(index) {
    const height = this.rowHeight;
    const top = index * height;
    const { scrollTop, clientHeight } = this.element;
    if (top < scrollTop) this.element.scrollTop = top;
    else if (top + height > scrollTop + clientHeight) {
      this.element.scrollTop = top + height - clientHeight;
    }
    this.render();
    return this.drawn.get(index);
  }

  close() {
    this.observer.disconnect();
  }
}
