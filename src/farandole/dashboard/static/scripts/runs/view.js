// Experiments and their runs: filter, sort, select, open.

import { getRuns, listen } from "../shared/api.js";
import { announce } from "../shared/announce.js";
import { fill, h, icon, refill, settled } from "../shared/dom.js";
import { count } from "../shared/format.js";
import { setKeys } from "../shared/keyboard.js";
import { go, replaceQuery } from "../router.js";
import { VirtualList } from "./list.js";
import { COLUMNS, drawRow } from "./row.js";
import { RunStore } from "./store.js";

const STATES = ["active", "queued", "completed", "failed", "canceled"];
const METRIC_COLUMNS = 3; // maximum, unless the reader chooses
const FIXED = 720; // pixels of the other columns
const COLUMN = 116; // pixels of a metric's column
const store = new RunStore(); // kept during a visit to a run, so that going back is immediate
const remembered = { selected: new Set(), active: 0, top: 0, metrics: null };

/** Show the list of runs in `place`; return a function that ends it. */
export function showRuns(place, { query }) {
  return new RunsView(place, query).start();
}

class RunsView {
  constructor(place, query) {
    this.filter = {
      text: query.get("text") ?? "",
      experiment: query.get("experiment") ?? "",
      states: (query.get("state") ?? "").split(",").filter(Boolean),
    };
    const sort = query.get("sort") ?? "-submitted";
    this.order = { column: sort.replace(/^-/, ""), descending: sort.startsWith("-") };
    this.shown = [];
    this.active = remembered.active;
    this.build(place);
  }

  build(place) {
    this.search = h("input.search", {
      type: "search",
      placeholder: "Filter: name, state:failed, tag:team",
      title: "Words must all occur. state:failed, tag:team=vision and experiment:digits narrow further; -word excludes.",
      "aria-label": "Filter runs",
      value: this.filter.text,
      oninput: () => this.setFilter({ text: this.search.value }),
      onkeydown: (event) => event.key === "Enter" && this.focusRow(0),
    });
    this.experiments = h("nav.experiments", { "aria-label": "Experiments" });
    this.states = h("div.chips", { role: "group", "aria-label": "States" });
    this.total = h("p.total", { role: "status" });
    this.columns = h("div.columns-menu");
    this.compare = h("button.primary.compare-button", { onclick: () => this.compareSelected() });
    this.header = h("div.row.row-header", { role: "row", "aria-rowindex": "1" });
    this.list = new VirtualList((run, index) => this.draw(run, index), "Runs");
    this.empty = h("div.empty");
    this.table = h(
      "div.table",
      { role: "table", "aria-label": "Runs" },
      h("div.rows-head", { role: "rowgroup" }, this.header),
      this.list.element,
    );
    fill(
      place,
      h(
        "div.runs-page",
        {},
        this.experiments,
        h(
          "section.runs",
          { "aria-labelledby": "runs-title" },
          h(
            "div.runs-bar",
            {},
            h("h1.runs-title", { id: "runs-title" }, "Runs"),
            h("div.search-field", {}, icon("search"), this.search),
            this.states,
          ),
          h("div.runs-bar", {}, this.total, this.columns, this.compare),
          this.table,
          this.empty,
        ),
      ),
    );
  }

  start() {
    setKeys({
      "/": () => this.search.focus(),
      j: () => this.move(1),
      k: () => this.move(-1),
      x: () => this.toggleActive(),
      c: () => this.compareSelected(),
      Enter: (event) => this.openActive(event),
    });
    if (store.size) this.refresh();
    const stop = listen(null, { opened: () => this.load(), runs: (change) => this.changed(change) });
    const clock = setInterval(() => this.redrawActive(), 1000);
    this.saveQuery = settled(() => this.writeQuery(), 200);
    this.refreshSoon = settled(() => this.refresh(), 60);
    return () => {
      remembered.top = this.list.element.scrollTop;
      remembered.active = this.active;
      stop();
      clearInterval(clock);
      this.list.close();
    };
  }

  async load() {
    const answer = await getRuns(store.version).catch((error) => announce(error.message, "error"));
    if (!answer) return;
    const first = !this.loaded;
    store.apply(answer);
    this.refresh();
    if (first) this.list.element.scrollTop = remembered.top;
    this.loaded = true;
  }

  changed(change) {
    store.apply(change);
    this.refreshSoon();
  }

  // --- the shown runs and columns

  setFilter(change) {
    Object.assign(this.filter, change);
    this.active = 0;
    this.list.element.scrollTop = 0;
    this.refresh();
    if ("text" in change) this.saveQuery();
    else this.writeQuery();
  }

  refresh() {
    const focused = document.activeElement?.closest?.(".row")?.dataset.id;
    this.shown = store.select(this.filter, this.order);
    this.metricNames = store.metricNames(this.shown.slice(0, 500));
    this.metrics = (remembered.metrics ?? this.metricNames.slice(0, this.fitting())).filter((name) =>
      this.metricNames.includes(name),
    );
    this.table.style.setProperty("--metrics", this.metrics.length);
    this.table.setAttribute("aria-rowcount", this.shown.length + 1);
    this.drawHeader();
    this.drawExperiments();
    this.drawStates();
    this.drawColumns();
    this.drawCompare();
    this.list.set(this.shown, String(this.metrics) !== this.drawnMetrics);
    this.drawnMetrics = String(this.metrics);
    fill(this.total, this.totalText());
    this.drawEmpty();
    if (focused) this.refocus(focused);
  }

  /** Return the number of metric columns that fit next to the other columns. */
  fitting() {
    const space = (this.table.parentNode?.clientWidth ?? 0) - FIXED;
    return Math.max(0, Math.min(METRIC_COLUMNS, Math.floor(space / COLUMN)));
  }

  refocus(id) {
    const index = this.shown.findIndex((run) => run.id === id);
    if (index >= 0) this.list.drawn.get(index)?.querySelector("a").focus({ preventScroll: true });
  }

  totalText() {
    const all = count(store.size, "run");
    return this.shown.length === store.size ? all : `${this.shown.length.toLocaleString("en")} of ${all}`;
  }

  draw(run, index) {
    const row = drawRow(run, {
      metrics: this.metrics,
      selected: remembered.selected.has(run.id),
      ontoggle: (id) => this.toggle(id),
    });
    row.addEventListener("click", (event) => {
      if (event.target.closest("a, input, button") || getSelection().toString()) return;
      go(`#/run/${encodeURIComponent(run.id)}`);
    });
    row.addEventListener("focusin", () => {
      this.active = index;
    });
    return row;
  }

  redrawActive() {
    for (const [index, row] of [...this.list.drawn]) {
      const run = this.shown[index];
      if (run && ["running", "finalizing", "starting"].includes(run.state) && !row.contains(document.activeElement)) {
        this.list.redraw(index);
      }
    }
  }

  drawHeader() {
    const columns = [
      ...COLUMNS,
      ...this.metrics.map((name) => ({ key: `metric:${name}`, title: name, numeric: true, metric: true })),
    ];
    refill(this.header, [columns, this.order], () => [
      h("span.cell.cell-select", { role: "columnheader" }, h("span.hidden", {}, "Selected")),
      columns.map((column) => this.headerCell(column)),
    ]);
  }

  headerCell({ key, title, numeric, metric }) {
    const sorted = this.order.column === key;
    const direction = this.order.descending ? "descending" : "ascending";
    const name = metric ? "metric" : key;
    return h(
      `span.cell.cell-${name}${numeric ? ".numeric" : ""}`,
      { role: "columnheader", "aria-sort": sorted ? direction : "none" },
      h(
        "button.sort",
        { onclick: () => this.sort(key, numeric), title: `Sort by ${title}` },
        h("span.sort-title", {}, title),
        h("span.sort-mark", { "aria-hidden": "true" }, sorted ? (this.order.descending ? "↓" : "↑") : null),
      ),
    );
  }

  sort(column, numeric) {
    const same = this.order.column === column;
    this.order = { column, descending: same ? !this.order.descending : Boolean(numeric) };
    this.refresh();
    this.writeQuery();
    this.header.querySelector(`[aria-sort=${this.order.descending ? "descending" : "ascending"}] button`)?.focus();
  }

  drawExperiments() {
    const all = { name: "", runs: store.size, active: 0, last: 0 };
    const entries = [all, ...store.experiments()];
    refill(this.experiments, [entries, this.filter.experiment], () => [
      h("h2.side-title", {}, "Experiments"),
      entries.map((each) =>
        h(
          "button.experiment",
          {
            "aria-pressed": String(this.filter.experiment === each.name),
            onclick: () => this.setFilter({ experiment: each.name }),
          },
          h("span.experiment-name", {}, each.name || "All experiments"),
          each.active ? h("span.pulse", { title: count(each.active, "active run") }) : null,
          h("span.experiment-count", {}, each.runs.toLocaleString("en")),
        ),
      ),
    ]);
  }

  drawStates() {
    refill(this.states, this.filter.states, () =>
      STATES.map((state) =>
        h(
          "button.chip",
          {
            "aria-pressed": String(this.filter.states.includes(state)),
            data: { state },
            onclick: () => this.toggleState(state),
          },
          h("span.state-mark", { "aria-hidden": "true" }),
          state,
        ),
      ),
    );
  }

  toggleState(state) {
    const has = this.filter.states.includes(state);
    const states = has ? this.filter.states.filter((each) => each !== state) : [...this.filter.states, state];
    this.setFilter({ states });
    this.states.querySelector(`[data-state=${state}]`).focus();
  }

  drawColumns() {
    const open = this.columns.querySelector("details")?.open;
    refill(this.columns, [this.metricNames, this.metrics], () =>
      h(
        "details.menu",
        { open },
        h("summary.button", {}, "Metrics"),
        h(
          "div.menu-panel",
          {},
          this.metricNames.length
            ? this.metricNames.slice(0, 60).map((name) => this.columnChoice(name))
            : h("p.dim", {}, "These runs recorded no metric."),
        ),
      ),
    );
  }

  columnChoice(name) {
    const chosen = this.metrics.includes(name);
    const change = () => {
      remembered.metrics = chosen ? this.metrics.filter((each) => each !== name) : [...this.metrics, name];
      this.refresh();
    };
    return h("label.choice", {}, h("input", { type: "checkbox", checked: chosen, onchange: change }), name);
  }

  drawEmpty() {
    this.empty.hidden = this.shown.length > 0 || (!this.loaded && !store.size);
    this.table.hidden = !this.empty.hidden;
    if (this.empty.hidden) return;
    if (store.size) {
      const clear = () => {
        this.search.value = "";
        this.setFilter({ text: "", experiment: "", states: [] });
      };
      fill(this.empty, h("p", {}, "No run matches the filter."), h("button", { onclick: clear }, "Clear the filter"));
    } else {
      fill(
        this.empty,
        h("p", {}, "No runs yet. Submit one:"),
        h("pre.code", {}, "farandole submit -- python train.py"),
      );
    }
  }

  // --- selection and keys

  toggle(id) {
    if (!remembered.selected.delete(id)) remembered.selected.add(id);
    this.drawCompare();
    const index = this.shown.findIndex((run) => run.id === id);
    this.list.drawn.get(index)?.setAttribute("aria-selected", String(remembered.selected.has(id)));
  }

  toggleActive() {
    const run = this.shown[this.active];
    if (!run) return;
    this.toggle(run.id);
    const box = this.list.drawn.get(this.active)?.querySelector("input");
    if (box) box.checked = remembered.selected.has(run.id);
  }

  drawCompare() {
    const selected = remembered.selected.size;
    this.compare.disabled = selected < 2;
    fill(this.compare, icon("compare"), selected ? `Compare ${selected}` : "Compare");
    this.compare.title = selected < 2 ? "Select two or more runs" : "";
  }

  compareSelected() {
    const ids = [...remembered.selected];
    if (ids.length < 2) return announce("Select two or more runs to compare them.");
    return go(`#/compare/${ids.map(encodeURIComponent).join(",")}`);
  }

  focusRow(index) {
    if (!this.shown.length) return;
    this.active = Math.max(0, Math.min(this.shown.length - 1, index));
    this.list.reveal(this.active)?.querySelector("a").focus();
  }

  move(step) {
    const inside = this.list.element.contains(document.activeElement);
    this.focusRow(inside ? this.active + step : this.active);
  }

  openActive(event) {
    if (event.target.closest("a, button, summary")) return false; // the element's own meaning
    const run = this.shown[this.active];
    if (run) go(`#/run/${encodeURIComponent(run.id)}`);
    return true;
  }

  writeQuery() {
    const { column, descending } = this.order;
    const sort = `${descending ? "-" : ""}${column}`;
    replaceQuery("#/runs", {
      text: this.filter.text,
      experiment: this.filter.experiment,
      state: this.filter.states.join(","),
      sort: sort === "-submitted" ? "" : sort,
    });
  }
}
