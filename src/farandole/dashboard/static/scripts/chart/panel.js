// The charts of a view and their shared settings: axis, smoothing, scale, range.

import { announce } from "../shared/announce.js";
import { fill, h, perFrame, settled } from "../shared/dom.js";
import { byImportance } from "../shared/metrics.js";
import { Card } from "./card.js";

const AUTOMATIC = /^(system|training)\//;
const MOST_POINTS = 2000;
const BUDGET = 60_000; // points of one request
const settings = { axis: "step", smoothing: 0, logarithmic: false }; // kept between views

/** The curves of a run, or of several. */
export class CurvesPanel {
  /** `load({names, axis, range, points}, signal)` resolves to a list of {key, name, x, y, ...}.
   * A source has a `key`, a `label`, the `place` of its color, and `start`, its time zero. */
  constructor(load, { controls = [] } = {}) {
    this.load = load;
    this.sources = [];
    this.cards = new Map();
    this.range = null;
    this.text = "";
    this.waiting = new Set();
    this.flush = perFrame(() => this.fetch());
    this.redraw = perFrame(() => this.drawVisible());
    this.aborts = new Set();
    this.watcher = new IntersectionObserver((entries) => this.seen(entries), { rootMargin: "200px" });
    this.own = h("section.cards", { "aria-label": "Metrics" });
    this.automatic = h("section.cards", { "aria-label": "Metrics recorded automatically" });
    this.fold = h(
      "details.fold",
      { open: false },
      h("summary", {}, "Recorded automatically: processors, memory, training speed"),
      this.automatic,
    );
    this.none = h("p.empty", {}, "No metrics yet.");
    this.element = h("div.curves", {}, this.bar(controls), this.none, this.own, this.fold);
  }

  get axis() {
    return settings.axis;
  }

  get weight() {
    return settings.smoothing;
  }

  get logarithmic() {
    return settings.logarithmic;
  }

  // --- the controls

  bar(controls) {
    const axis = ["step", "time"].map((name) =>
      h(
        "button",
        {
          "aria-pressed": String(settings.axis === name),
          data: { axis: name },
          onclick: () => this.setAxis(name),
        },
        name === "step" ? "Steps" : "Time",
      ),
    );
    this.axisButtons = h("div.segments", { role: "group", "aria-label": "Horizontal axis" }, axis);
    const amount = h("output", {}, settings.smoothing.toFixed(2));
    const slider = h("input", {
      type: "range",
      min: "0",
      max: "0.99",
      step: "0.01",
      value: settings.smoothing,
      oninput: (event) => {
        settings.smoothing = Number(event.target.value);
        amount.textContent = settings.smoothing.toFixed(2);
        this.redraw();
      },
    });
    const logarithmic = h("input", {
      type: "checkbox",
      checked: settings.logarithmic,
      onchange: (event) => {
        settings.logarithmic = event.target.checked;
        this.rebuild();
      },
    });
    this.reset = h("button", { hidden: true, onclick: () => this.zoom(null) }, "Show everything");
    const search = h("input.metric-filter", {
      type: "search",
      placeholder: "Metrics",
      "aria-label": "Filter metrics",
      oninput: settled((event) => this.setText(event.target.value), 80),
    });
    return h(
      "div.curves-bar",
      {},
      this.axisButtons,
      h("label.smoothing", {}, "Smoothing", slider, amount),
      h("label.choice", {}, logarithmic, "Log scale"),
      controls,
      search,
      this.reset,
    );
  }

  setAxis(name) {
    settings.axis = name;
    for (const button of this.axisButtons.children) {
      button.setAttribute("aria-pressed", String(button.dataset.axis === name));
    }
    this.range = null;
    this.reset.hidden = true;
    this.reload();
  }

  setText(text) {
    this.text = text.toLowerCase();
    for (const card of this.cards.values()) this.filterCard(card);
    if (this.text && [...this.automatic.children].some((card) => !card.hidden)) this.fold.open = true;
  }

  filterCard(card) {
    card.element.hidden = !card.name.toLowerCase().includes(this.text);
  }

  /** Show a range of the x axis in all charts; null shows everything. */
  zoom(range) {
    this.range = range;
    this.reset.hidden = range === null;
    for (const card of this.cards.values()) {
      card.stale = true;
      card.chart?.show(range);
      this.request(card);
    }
  }

  // --- sources and cards

  /** Return the time zero of a source's x axis. */
  origin(key) {
    if (this.axis !== "time") return 0;
    return this.sources.find((source) => source.key === key)?.start ?? 0;
  }

  /** Return the number of points that a chart of this width can show. */
  points(card) {
    const share = BUDGET / Math.max(1, this.sources.length * Math.max(1, this.waiting.size));
    return Math.round(Math.max(80, Math.min(MOST_POINTS, card.width, share)));
  }

  setSources(sources) {
    this.sources = sources;
    this.reload();
  }

  /** Give the same sources new labels and starts. Over steps, no curve must be reread. */
  relabel(sources) {
    const moved = this.axis === "time" && sources.some((each, at) => each.start !== this.sources[at]?.start);
    this.sources = sources;
    for (const card of this.cards.values()) card.legendKeys = null;
    if (moved) this.reload();
    else this.redraw();
  }

  /** Show a card for each metric; existing cards are kept. */
  setNames(names) {
    const wanted = new Set(names);
    for (const [name, card] of this.cards) {
      if (wanted.has(name)) continue;
      this.watcher.unobserve(card.element);
      card.close();
      card.element.remove();
      this.cards.delete(name);
    }
    for (const name of names) {
      if (!this.cards.has(name)) this.cards.set(name, new Card(name, this));
    }
    for (const name of [...names].sort(byImportance)) this.place(this.cards.get(name));
    this.none.hidden = names.length > 0;
    this.fold.hidden = this.automatic.children.length === 0;
    if (this.own.children.length === 0 && !this.fold.hidden) this.fold.open = true;
  }

  place(card) {
    const group = AUTOMATIC.test(card.name) ? this.automatic : this.own;
    if (card.element.parentNode === group) return;
    const next = [...group.children].find(
      (other) => byImportance(card.name, other.dataset.metric) < 0,
    );
    group.insertBefore(card.element, next ?? null);
    this.filterCard(card);
    this.watcher.observe(card.element);
  }

  seen(entries) {
    const found = new Map([...this.cards.values()].map((card) => [card.element, card]));
    for (const entry of entries) {
      const card = found.get(entry.target);
      if (!card) continue;
      card.visible = entry.isIntersecting;
      if (card.visible && card.stale) this.request(card);
      else if (card.visible) card.draw();
    }
  }

  // --- loading

  /** Load a card's curves with the next request, if the card is in view. */
  request(card) {
    card.stale = true;
    if (!card.visible) return;
    this.waiting.add(card);
    this.flush();
  }

  /** Reread all curves. */
  reload() {
    for (const abort of this.aborts) abort.abort();
    for (const card of this.cards.values()) {
      card.close();
      card.curves.clear();
      this.request(card);
    }
  }

  /** Reread the curves; the charts stay until the new curves have arrived. */
  refresh() {
    for (const card of this.cards.values()) this.request(card);
  }

  rebuild() {
    for (const card of this.cards.values()) card.rebuild();
  }

  async fetch() {
    const cards = [...this.waiting];
    if (!cards.length || !this.sources.length) return;
    const points = Math.max(...cards.map((card) => this.points(card)));
    this.waiting.clear();
    const { axis, range } = this;
    const abort = new AbortController();
    this.aborts.add(abort);
    try {
      const names = cards.map((card) => card.name);
      const found = await this.load({ names, axis, range, points }, abort.signal);
      if (axis === this.axis && range === this.range) this.deliver(cards, found);
    } catch (error) {
      if (error.name !== "AbortError") announce(error.message, "error");
    } finally {
      this.aborts.delete(abort);
    }
  }

  deliver(cards, found) {
    const byName = new Map(cards.map((card) => [card.name, new Map()]));
    for (const each of found) byName.get(each.name)?.set(each.key, each);
    for (const card of cards) card.set(byName.get(card.name));
    this.delivered?.();
  }

  /** Append live points: a list of {key, name, x, y} with x on the current axis. */
  append(points) {
    for (const { key, name, x, y } of points) {
      const card = this.cards.get(name);
      if (!card || !this.sources.some((source) => source.key === key)) continue;
      if (!card.visible) card.stale = true;
      else if (!card.append(key, x, y)) this.request(card);
    }
    this.redraw();
  }

  drawVisible() {
    for (const card of this.cards.values()) {
      if (card.visible && !card.stale) card.draw();
    }
  }

  close() {
    for (const abort of this.aborts) abort.abort();
    this.watcher.disconnect();
    for (const card of this.cards.values()) card.close();
  }

  /** Return the element for a view. */
  mount(place) {
    fill(place, this.element);
  }
}
