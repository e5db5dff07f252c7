// One metric on the page: its chart, a legend with the values at the cursor, and its last value.

import { fill, h, icon } from "../shared/dom.js";
import { count, duration, number } from "../shared/format.js";
import { Chart } from "./chart.js";
import { Curve } from "./curve.js";
import { look } from "./palette.js";

const LOW = 200; // pixels
const HIGH = 420;
const LEGEND = 12; // entries of a legend

/** A card with the curves of one metric. */
export class Card {
  /** `name` is the metric; `panel` holds the settings and the sources that all cards share. */
  constructor(name, panel) {
    this.name = name;
    this.panel = panel;
    this.curves = new Map(); // by the source's key
    this.visible = false;
    this.stale = true;
    this.chart = null;
    this.big = false;
    this.value = h("span.card-value");
    this.legend = h("ul.legend");
    this.plot = h("div.plot", { tabindex: "0", role: "group", "aria-label": name });
    this.note = h("p.card-note.dim");
    this.enlarge = h(
      "button.quiet",
      { "aria-label": `Enlarge ${name}`, "aria-pressed": "false", onclick: () => this.resize() },
      icon("expand"),
    );
    this.element = h(
      "article.card",
      { data: { metric: name } },
      h("header.card-head", {}, h("h3.card-title", { title: name }, name), this.value, this.enlarge),
      this.plot,
      this.note,
      this.legend,
    );
  }

  get height() {
    return this.big ? HIGH : LOW;
  }

  get width() {
    return this.plot.clientWidth || 400;
  }

  resize() {
    this.big = !this.big;
    this.element.classList.toggle("big", this.big);
    this.enlarge.setAttribute("aria-pressed", String(this.big));
    this.rebuild();
    this.panel.request(this);
  }

  /** Replace the curves with a response of the server: a map from a source's key to its points. */
  set(answers) {
    this.stale = false;
    for (const [key, answer] of answers) {
      this.curves.set(key, new Curve(answer, this.panel.origin(key)));
    }
    this.draw();
  }

  /** Append a live point. Return false if the curve must be reread. */
  append(key, x, y) {
    const curve = this.curves.get(key);
    if (!curve || this.stale) return false;
    return curve.append(x - this.panel.origin(key), y) && curve.length <= 2 * this.panel.points(this);
  }

  rebuild() {
    this.chart?.close();
    this.chart = null;
    if (this.visible && !this.stale) this.draw();
  }

  draw() {
    const { sources, axis, logarithmic, weight, range } = this.panel;
    const curves = sources.map((source) => this.curves.get(source.key) ?? null);
    this.element.dataset.points = String(Math.max(0, ...curves.map((curve) => curve?.total ?? 0)));
    if (!this.chart) {
      const looks = sources.map((source) => look(source.place));
      this.chart = new Chart(
        this.plot,
        looks,
        { axis, logarithmic, height: this.height },
        { zoom: (chosen) => this.panel.zoom(chosen), point: (values, x) => this.point(values, x) },
      );
      this.chart.range = range;
    }
    this.drawLegend(sources.filter((source, place) => curves[place]?.length));
    this.chart.draw(curves, weight);
    this.summarize(curves);
  }

  summarize(curves) {
    const present = curves.filter((curve) => curve?.length);
    const last = present[0]?.last;
    fill(this.value, last === undefined ? "" : number(last));
    const texts = present.map((curve) => `last value ${number(curve.last)} of ${curve.total} points`);
    this.plot.setAttribute("aria-label", `${this.name}: ${texts.slice(0, 4).join("; ") || "no points"}`);
    const missing = present.reduce((sum, curve) => sum + curve.notFinite, 0);
    const remark = missing ? `${count(missing, "value")} of NaN or infinity` : "";
    fill(this.note, present.length ? remark : "No points yet.");
  }

  drawLegend(present) {
    const keys = String(present.map((source) => source.key));
    if (keys === this.legendKeys) return;
    this.legendKeys = keys;
    const shown = this.panel.sources.length < 2 ? [] : present.slice(0, LEGEND);
    const more = this.panel.sources.length < 2 ? 0 : present.length - shown.length;
    this.values = new Map(shown.map((source) => [source.key, h("span.legend-value")]));
    this.at = h("span.legend-value");
    fill(
      this.legend,
      shown.map((source) => h("li", {}, mark(source), name(source), this.values.get(source.key))),
      more > 0 ? h("li.dim", {}, `and ${more} more`) : null,
      h("li.legend-at", {}, this.at),
    );
  }

  point(values, x) {
    const where = this.panel.axis === "time" ? duration(x) : `step ${x}`;
    const single = values && this.values.size === 0 && values[0] !== null;
    fill(this.at, values ? (single ? `${where}: ${number(values[0])}` : where) : "");
    this.panel.sources.forEach((source, place) => {
      const shown = this.values.get(source.key);
      if (shown) shown.textContent = values ? number(values[place]) : "";
    });
  }

  close() {
    this.chart?.close();
    this.chart = null;
  }
}

function mark(source) {
  const { index, dash } = look(source.place);
  return h(`span.legend-mark.curve-${index}${dash ? ".dashed" : ""}`, { "aria-hidden": "true" });
}

function name(source) {
  return h("span.legend-name", { title: source.label }, source.label);
}
