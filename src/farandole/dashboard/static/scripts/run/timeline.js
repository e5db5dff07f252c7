// The timeline of a run: the waits and the exchanges of each tensor.

import { fileAddress, getTimeline } from "../shared/api.js";
import { fill, h, perFrame } from "../shared/dom.js";
import { onTheme, token } from "../shared/theme.js";
import { color } from "../chart/palette.js";
import { lanesOf, span } from "./lanes.js";

const ROW = 18; // pixels
const MOST = 150; // lanes
const LABELS = 170; // pixels for the lanes' names
const TOP = 22; // pixels for the axis

export class TimelinePart {
  constructor(place, facts) {
    this.place = place;
    this.id = facts.run_id;
    this.read();
  }

  async read() {
    let answer;
    try {
      answer = await getTimeline(this.id);
    } catch (error) {
      if (!this.closed) fill(this.place, h("p.empty", {}, error.message));
      return;
    }
    if (this.closed) return;
    this.found = lanesOf(answer.events ?? []);
    if (!this.found.lanes.length) return this.none();
    this.range = [this.found.begin, this.found.end];
    this.build(answer);
    return undefined;
  }

  none() {
    fill(
      this.place,
      h(
        "div.empty",
        {},
        h("p", {}, "This run has written no timeline. Write one to its outputs:"),
        h("pre.code", {}, "farandole submit --timeline-filename outputs/timeline.json -- python train.py"),
      ),
    );
  }

  build({ files, complete }) {
    this.shown = this.found.lanes.slice(0, MOST);
    this.canvas = h("canvas.lanes", { tabindex: "0", role: "img", "aria-label": this.summary() });
    this.tip = h("p.lanes-tip.dim", { "aria-live": "off" }, "Drag to zoom, double-click to show everything.");
    fill(
      this.place,
      h(
        "div.timeline",
        {},
        h(
          "div.timeline-bar",
          {},
          this.tip,
          h("button", { onclick: () => this.show(this.found.begin, this.found.end) }, "Show everything"),
          files.slice(0, 4).map((file) =>
            h("a.button", { href: fileAddress(this.id, file), download: file.split("/").pop() }, `Download ${file.split("/").pop()}`),
          ),
        ),
        complete === false ? h("p.dim", {}, "The beginning of a long timeline. The files contain the rest.") : null,
        h("div.lanes-frame", {}, h("div", {}, this.canvas)),
        totalsTable(this.found.totals),
      ),
    );
    this.draw = perFrame(() => this.paint());
    this.observer = new ResizeObserver(this.draw);
    this.observer.observe(this.canvas.parentNode);
    this.endTheme = onTheme(this.draw);
    this.listen();
  }

  summary() {
    const { lanes, begin, end } = this.found;
    return `${lanes.length} lanes over ${span(end - begin)}; the table below has the totals`;
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => {
      this.from = this.timeAt(event);
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => this.hover(event));
    canvas.addEventListener("pointerup", (event) => {
      const [low, high] = [this.from, this.timeAt(event)].sort((a, b) => a - b);
      this.from = undefined;
      if (high - low > (this.range[1] - this.range[0]) / 200) this.show(low, high);
    });
    canvas.addEventListener("dblclick", () => this.show(this.found.begin, this.found.end));
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const [low, high] = this.range;
    const width = high - low;
    const ranges = {
      "+": [low + width / 8, high - width / 8],
      "-": [low - width / 6, high + width / 6],
      ArrowLeft: [low - width / 8, high - width / 8],
      ArrowRight: [low + width / 8, high + width / 8],
      0: [this.found.begin, this.found.end],
    };
    if (!ranges[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    this.show(...ranges[event.key]);
  }

  show(low, high) {
    this.range = [low, high];
    this.draw();
  }

  timeAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const part = (event.clientX - box.left - LABELS) / (box.width - LABELS);
    return this.range[0] + Math.max(0, Math.min(1, part)) * (this.range[1] - this.range[0]);
  }

  hover(event) {
    const box = this.canvas.getBoundingClientRect();
    const lane = this.shown[Math.floor((event.clientY - box.top - TOP) / ROW)];
    const time = this.timeAt(event);
    const under = lane?.spans.filter((each) => each.begin <= time && time <= each.end).pop();
    if (under) this.tip.textContent = `${lane.name}: ${under.name}, ${span(under.end - under.begin)}`;
  }

  paint() {
    const { canvas } = this;
    const width = canvas.parentNode.clientWidth;
    const height = TOP + this.shown.length * ROW;
    const scale = devicePixelRatio || 1;
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const ink = canvas.getContext("2d");
    ink.scale(scale, scale);
    ink.font = "12px Inter, system-ui, sans-serif";
    ink.textBaseline = "middle";
    this.paintAxis(ink, width, height);
    this.shown.forEach((lane, row) => this.paintLane(ink, lane, TOP + row * ROW, width));
  }

  paintAxis(ink, width, height) {
    const [low, high] = this.range;
    ink.strokeStyle = token("grid");
    ink.fillStyle = token("dim");
    for (let mark = 0; mark <= 4; mark++) {
      const x = LABELS + ((width - LABELS - 1) * mark) / 4;
      ink.beginPath();
      ink.moveTo(x, TOP);
      ink.lineTo(x, height);
      ink.stroke();
      ink.textAlign = mark === 4 ? "right" : mark ? "center" : "left";
      ink.fillText(span(low - this.found.begin + ((high - low) * mark) / 4), x, TOP / 2);
    }
    ink.textAlign = "left";
  }

  paintLane(ink, lane, top, width) {
    const [low, high] = this.range;
    const scale = (width - LABELS) / (high - low);
    ink.fillStyle = token("ink");
    ink.fillText(shortened(ink, lane.name, LABELS - 10), 0, top + ROW / 2);
    ink.save();
    ink.beginPath();
    ink.rect(LABELS, top, width - LABELS, ROW);
    ink.clip();
    let last = -1; // the last pixel with a narrow span
    for (const { name, begin, end, depth } of lane.spans) {
      if (end < low || begin > high) continue;
      const x = LABELS + (begin - low) * scale;
      const wide = (end - begin) * scale;
      if (wide < 1 && Math.floor(x) === last) continue;
      last = wide < 1 ? Math.floor(x) : -1;
      const inset = 1 + Math.min(depth, 2) * 3;
      ink.fillStyle = color(colorOf(name), depth ? 0.9 : 0.45);
      ink.fillRect(x, top + inset, Math.max(1, wide - 0.5), ROW - 2 * inset);
    }
    ink.restore();
  }

  close() {
    this.closed = true;
    this.observer?.disconnect();
    this.endTheme?.();
  }
}

const colors = new Map();

function colorOf(name) {
  if (!colors.has(name)) colors.set(name, colors.size % 8);
  return colors.get(name);
}

function shortened(ink, text, width) {
  if (ink.measureText(text).width <= width) return text;
  let length = text.length;
  while (length > 1 && ink.measureText(`${text.slice(0, length)}…`).width > width) length -= 1;
  return `${text.slice(0, length)}…`;
}

function totalsTable(totals) {
  const columns = ["Activity", "Times", "Total", "Longest"];
  return h(
    "div.table-scroll",
    { tabindex: "0", role: "region", "aria-label": "Totals of the activities" },
    h(
      "table.plain",
      {},
      h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col" }, name)))),
      h(
        "tbody",
        {},
        totals.slice(0, 40).map(({ name, count, total, longest }) =>
          h(
            "tr",
            {},
            h("th", { scope: "row" }, name),
            h("td.numeric", {}, count),
            h("td.numeric", {}, span(total)),
            h("td.numeric", {}, span(longest)),
          ),
        ),
      ),
    ),
  );
}
