// Two or more runs next to each other: why they are not comparable, curves, measures, differences.

import { look } from "../chart/palette.js";
import { CurvesPanel } from "../chart/panel.js";
import { getComparison, getRun, getSeries } from "../shared/api.js";
import { announce } from "../shared/announce.js";
import { fill, h, icon } from "../shared/dom.js";
import { count } from "../shared/format.js";
import { setKeys } from "../shared/keyboard.js";
import { stateBadge } from "../shared/state.js";
import { go } from "../router.js";
import { isFinal } from "../runs/store.js";
import { differenceTables } from "./differences.js";
import { equalValueTable, measuresTable } from "./measures.js";

const AGAIN = 5000; // milliseconds between two reads while a run is active
const MANY = 10; // with more runs, the curves are read before the comparison
const PATIENCE = 3000; // milliseconds that the comparison waits for the curves
const SHOWN = 24; // runs in the head of the page and in the tables

/** Show the comparison of runs in `place`; return a function that ends it. */
export function showCompare(place, { names }) {
  const ids = (names[0] ?? "").split(",").filter(Boolean).map(decodeURIComponent);
  return new CompareView(place, ids).start();
}

class CompareView {
  constructor(place, ids) {
    this.ids = ids;
    this.head = h("div.run-header");
    this.unfair = h("div");
    this.equal = h("div.equal");
    this.tables = h("div.compare-tables");
    this.panel = new CurvesPanel((wanted, signal) => this.load(wanted, signal));
    fill(
      place,
      h(
        "div.run-page",
        {},
        this.head,
        this.unfair,
        this.equal,
        h("section", {}, h("h2.part-title", {}, "Curves"), this.panel.element),
        this.tables,
      ),
    );
  }

  start() {
    document.title = `${count(this.ids.length, "run")} compared · Farandole`;
    setKeys({
      Escape: () => go("#/runs"),
      "/": () => this.panel.element.querySelector(".metric-filter").focus(),
    });
    this.begin();
    return () => {
      this.closed = true;
      clearTimeout(this.timer);
      this.panel.close();
    };
  }

  /** Draw the curves of the first run's metrics immediately: comparing many runs takes longer. */
  async begin() {
    if (this.ids.length < 2) return this.failed("Select two or more runs in the list.");
    try {
      const first = await getRun(this.ids[0]);
      if (this.closed) return undefined;
      const drawn = new Promise((resolve) => {
        this.panel.delivered = resolve;
        setTimeout(resolve, PATIENCE);
      });
      this.panel.setNames(first.metrics[0] ?? []);
      this.panel.setSources(this.ids.map((id, place) => ({ key: id, label: id, place, start: 0 })));
      if (this.ids.length > MANY) await drawn;
    } catch (error) {
      return this.failed(error.message);
    }
    return this.read();
  }

  async read() {
    let found;
    try {
      found = await getComparison(this.ids);
    } catch (error) {
      if (!this.found) this.failed(error.message);
      else announce(error.message, "error");
      return undefined;
    }
    if (this.closed) return undefined;
    this.found = found;
    this.draw(found);
    this.panel.setNames(found.metrics);
    this.panel.relabel(sourcesOf(found));
    if (this.active) this.panel.refresh();
    this.active = found.measures.some((run) => !isFinal(run.state));
    if (this.active) this.timer = setTimeout(() => this.read(), AGAIN);
    return undefined;
  }

  failed(text) {
    fill(this.head, h("h1.run-title", {}, "Compare"), h("p", {}, text), h("a", { href: "#/runs" }, "All runs"));
  }

  /** The server's limits are absolute times, which differ between runs: a range of seconds since
   * the start of each run is read whole and cut by the chart. */
  async load({ names, axis, range, points }, signal) {
    const wanted = { names, ranks: [0], axis, range: axis === "time" ? null : range, points };
    const found = await getSeries(this.ids, wanted, signal);
    return found.map((each) => ({ ...each, key: each.run }));
  }

  draw(found) {
    const runs = found.measures.slice(0, SHOWN);
    const labels = runs.map((run, place) => label(run, place));
    fill(
      this.head,
      h(
        "div.run-top",
        {},
        h("a.back", { href: "#/runs", "aria-label": "All runs" }, icon("back")),
        h("h1.run-title", {}, `${count(found.measures.length, "run")} compared`),
      ),
      h(
        "ul.compared",
        {},
        runs.map((run, place) => h("li", {}, label(run, place), stateBadge(run.state))),
        found.measures.length > SHOWN ? h("li.dim", {}, `and ${found.measures.length - SHOWN} more`) : null,
      ),
    );
    fill(this.unfair, unfairness(found));
    fill(this.equal, equalValueTable(found, labels));
    fill(this.tables, measuresTable(found, labels), differenceTables(found, labels));
  }
}

function sourcesOf({ measures }) {
  return measures.map((run, place) => ({
    key: run.run_id,
    label: run.name || run.run_id,
    place,
    start: run.began ?? 0,
  }));
}

/** Return the name of a run with the mark of its curves. */
function label(run, place) {
  const { index, dash } = look(place);
  return h(
    "a.compared-run",
    { href: `#/run/${encodeURIComponent(run.run_id)}`, title: run.run_id },
    h(`span.legend-mark.curve-${index}${dash ? ".dashed" : ""}`, { "aria-hidden": "true" }),
    run.name || run.run_id,
  );
}

/** Return the reasons why the comparison is unfair, each with its facts, its effect and a cure. */
function unfairness({ unfair = [], measures }) {
  if (!unfair.length) return null;
  const names = new Map(measures.map((run) => [run.run_id, run.name || run.run_id]));
  return h(
    "section.callout",
    { "aria-labelledby": "unfair-title", data: { kind: "warning" } },
    h("h2", { id: "unfair-title" }, icon("warning"), "This comparison is unfair"),
    h(
      "ul.unfair",
      {},
      unfair.map((each) =>
        h(
          "li",
          { data: { code: each.code } },
          h("p.unfair-seen", {}, each.seen),
          h("p", {}, each.why, " ", h("span.unfair-cure", {}, each.cure)),
          h("p.dim", {}, (each.runs ?? []).map((id) => names.get(id) ?? id).join(", ")),
        ),
      ),
    ),
  );
}
