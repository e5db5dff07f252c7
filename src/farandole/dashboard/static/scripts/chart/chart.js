// One chart: uPlot with the page's colors, bands of merged points, zoom and keys.

import uPlot from "../../vendor/uplot/uPlot.esm.js";
import { perFrame, settled } from "../shared/dom.js";
import { number } from "../shared/format.js";
import { onTheme, token } from "../shared/theme.js";
import { color } from "./palette.js";
import { ROWS, rowsOf } from "./curve.js";

const ZOOM = 1.25; // factor of one step of the wheel or of a key
const FEW = 6; // curves with bands and, under smoothed ones, raw values
const STEP = 0.15; // fraction of the view that an arrow key moves by
const FONT = "12px Inter, system-ui, sans-serif";

/** A chart of curves in an element. */
export class Chart {
  /** `looks` has an entry for each curve. `listeners` has `zoom(range)`, called when the reader
   * chooses a range of the x axis (null: everything), and `point(values, x)`, called when the
   * cursor moves. */
  constructor(place, looks, { axis, logarithmic, height }, listeners) {
    this.place = place;
    this.looks = looks;
    this.listeners = listeners;
    this.logarithmic = logarithmic;
    this.height = height;
    this.range = null;
    this.tellZoom = settled((range) => this.listeners.zoom(range), 120);
    this.plot = new uPlot(this.options(axis), this.blank(), place);
    this.observer = new ResizeObserver(perFrame(() => this.resize()));
    this.observer.observe(place);
    this.endTheme = onTheme(() => this.plot.redraw(false));
    place.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    place.addEventListener("keydown", (event) => this.key(event));
  }

  close() {
    this.observer.disconnect();
    this.endTheme();
    this.plot.destroy();
  }

  blank() {
    return [[], ...this.looks.flatMap(() => Array.from({ length: ROWS }, () => []))];
  }

  options(axis) {
    const dim = () => token("dim");
    const grid = { stroke: () => token("grid"), width: 1 };
    const ticks = { ...grid, size: 4 };
    return {
      width: this.width(),
      height: this.height,
      legend: { show: false },
      padding: [10, 14, 0, 4],
      cursor: {
        drag: { x: true, y: false, setScale: false },
        focus: { prox: 24 },
        bind: { dblclick: () => () => this.setRange(null) },
        points: { size: 7 },
      },
      scales: {
        x: { time: false, range: (plot, low, high) => this.limits(low, high) },
        y: { distr: this.logarithmic ? 3 : 1 },
      },
      axes: [
        { stroke: dim, grid, ticks, font: FONT, size: 34, values: axisText(axis) },
        { stroke: dim, grid, ticks, font: FONT, size: 58, values: (plot, marks) => marks.map(mark) },
      ],
      series: [{}, ...this.looks.flatMap((look) => this.seriesOf(look))],
      bands: this.looks.map((look, place) => ({
        series: [place * ROWS + 3, place * ROWS + 2],
        fill: () => color(look.index, 0.22),
      })),
      hooks: {
        setSelect: [(plot) => this.selected(plot)],
        setCursor: [(plot) => this.moved(plot)],
      },
    };
  }

  seriesOf(look) {
    const single = (plot) => plot.data[0].length === 1; // a point without a line
    const line = { width: 1.75, dash: look.dash ?? undefined, spanGaps: true, points: { show: single, size: 6 } };
    const few = this.looks.length <= FEW;
    const hidden = { width: 0, spanGaps: true, points: { show: false }, show: few };
    return [
      { ...line, stroke: () => color(look.index) },
      { ...hidden, stroke: () => "transparent" },
      { ...hidden, stroke: () => "transparent" },
      { ...hidden, width: 1, stroke: () => color(look.index, 0.35) },
    ];
  }

  width() {
    return Math.max(200, this.place.clientWidth);
  }

  resize() {
    this.plot.setSize({ width: this.width(), height: this.height });
  }

  /** Draw a curve for each look; null for a curve without points. */
  draw(curves, weight) {
    this.data = aligned(curves, weight, this.logarithmic);
    this.plot.setData(this.data);
  }

  // --- the range of the x axis

  limits(low, high) {
    if (this.range) return this.range;
    if (low === null || low === undefined) return [0, 1];
    return low === high ? [low - 1, high + 1] : [low, high];
  }

  /** Show a range of the x axis; null shows everything. */
  show(range) {
    this.range = range;
    this.plot.setData(this.plot.data, true);
  }

  setRange(range) {
    this.show(range);
    this.tellZoom(range);
  }

  selected(plot) {
    if (plot.select.width < 4) return;
    const low = plot.posToVal(plot.select.left, "x");
    const high = plot.posToVal(plot.select.left + plot.select.width, "x");
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.setRange([low, high]);
  }

  /** Zoom by a factor around a position in the view, from 0 (left) to 1 (right). */
  zoom(factor, around = 0.5) {
    const { min, max } = this.plot.scales.x;
    const middle = min + (max - min) * around;
    this.setRange([middle - (middle - min) * factor, middle + (max - middle) * factor]);
  }

  /** Move by a fraction of the view. */
  move(part) {
    const { min, max } = this.plot.scales.x;
    const step = (max - min) * part;
    this.setRange([min + step, max + step]);
  }

  wheel(event) {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : 0;
    if (event.ctrlKey || event.metaKey) {
      const box = this.plot.over.getBoundingClientRect();
      this.zoom(event.deltaY < 0 ? 1 / ZOOM : ZOOM, (event.clientX - box.left) / box.width);
    } else if (sideways || event.shiftKey) {
      this.move((sideways || event.deltaY) / this.width());
    } else return; // the page scrolls
    event.preventDefault();
  }

  key(event) {
    const actions = {
      "+": () => this.zoom(1 / ZOOM),
      "=": () => this.zoom(1 / ZOOM),
      "-": () => this.zoom(ZOOM),
      ArrowLeft: () => this.move(-STEP),
      ArrowRight: () => this.move(STEP),
      0: () => this.setRange(null),
    };
    const action = actions[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    action();
    event.preventDefault();
    event.stopPropagation();
  }

  moved(plot) {
    const at = plot.cursor.idx;
    if (at === null || at === undefined) this.listeners.point(null);
    else {
      const values = this.looks.map((look, place) => nearest(plot.data[place * ROWS + 1], at));
      this.listeners.point(values, plot.data[0][at]);
    }
  }
}

/** Return the value at an index, or the previous value if several curves share the axis. */
function nearest(values, at) {
  for (let place = at; place >= Math.max(0, at - 50); place--) {
    if (values[place] !== null && values[place] !== undefined) return values[place];
  }
  return null;
}

/** Return curves as uPlot's aligned rows: one x axis for all. */
function aligned(curves, weight, logarithmic) {
  const present = curves.map((curve) => curve ?? { x: [], y: [], low: null, high: null, length: 0 });
  const tables = present.map((curve) => [curve.x, ...rowsOf(curve, weight, logarithmic)]);
  const same = tables.every((table) => equal(table[0], tables[0][0]));
  if (same) return [tables[0][0], ...tables.flatMap((table) => table.slice(1))];
  return uPlot.join(tables);
}

function equal(a, b) {
  return a === b || (a.length === b.length && a.every((value, place) => value === b[place]));
}

function axisText(axis) {
  return (plot, marks) => marks.map((value) => (axis === "time" ? clock(value, marks) : mark(value)));
}

function mark(value) {
  if (value === null || value === undefined) return "";
  if (Math.abs(value) >= 1e4 && Number.isInteger(value / 100)) return `${value / 1000}k`;
  return number(value);
}

/** Return elapsed seconds as the label of an axis: "40 s", "1:30", "2:00 h". */
function clock(value, marks) {
  if (value === null || value === undefined) return "";
  const largest = Math.abs(marks[marks.length - 1] ?? value);
  if (largest < 120) return `${Number(value.toFixed(3))} s`;
  const sign = value < 0 ? "-" : "";
  const seconds = Math.round(Math.abs(value));
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor((seconds % 3600) / 60)];
  const two = (part) => String(part).padStart(2, "0");
  if (largest < 7200) return `${sign}${hours * 60 + minutes}:${two(seconds % 60)}`;
  return `${sign}${hours}:${two(minutes)} h`;
}
