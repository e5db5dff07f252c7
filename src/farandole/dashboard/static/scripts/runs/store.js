// The runs in memory: filtering and sorting of ten thousand rows within a frame or two.

import { byImportance } from "../shared/metrics.js";

const FINAL = new Set(["completed", "failed", "canceled"]);

/** Return whether a state is final. */
export function isFinal(state) {
  return FINAL.has(state);
}

/** All runs on the server. */
export class RunStore {
  constructor() {
    this.version = null;
    this.byId = new Map();
    this.sortedCache = null;
  }

  /** Apply a response of /api/runs or a "runs" event: new and changed rows, and the ids of removed
   * runs. A complete response has all runs. */
  apply({ version, complete, columns, rows, removed = [] }) {
    if (complete) this.byId.clear();
    for (const row of rows) {
      const run = Object.fromEntries(columns.map((name, place) => [name, row[place]]));
      this.byId.set(run.id, prepared(run));
    }
    for (const id of removed) this.byId.delete(id);
    this.version = version ?? this.version;
    this.sortedCache = null;
  }

  get size() {
    return this.byId.size;
  }

  /** Return the experiments with their numbers of runs, the latest first. */
  experiments() {
    const found = new Map();
    for (const run of this.byId.values()) {
      const entry = found.get(run.experiment) ?? { name: run.experiment, runs: 0, active: 0, last: 0 };
      entry.runs += 1;
      entry.active += isFinal(run.state) ? 0 : 1;
      entry.last = Math.max(entry.last, run.submitted ?? 0);
      found.set(run.experiment, entry);
    }
    return [...found.values()].sort((a, b) => b.last - a.last);
  }

  /** Return the runs that match a filter, in the order of a column.
   *
   * `filter` has `text`, `experiment` and `states`; `order` has `column` and `descending`.
   */
  select(filter, order) {
    const matches = matcher(filter);
    return this.ordered(order).filter(matches);
  }

  ordered({ column, descending }) {
    const key = `${column} ${descending}`;
    if (this.sortedCache?.key !== key) {
      const runs = [...this.byId.values()].sort(comparison(column, descending));
      this.sortedCache = { key, runs };
    }
    return this.sortedCache.runs;
  }

  /** Return the metrics of some runs, the most frequent first. */
  metricNames(runs) {
    const found = new Map();
    for (const run of runs) {
      for (const name in run.metrics) found.set(name, (found.get(name) ?? 0) + 1);
    }
    return [...found.keys()].sort((a, b) => found.get(b) - found.get(a) || byImportance(a, b));
  }
}

function prepared(run) {
  run.tags ??= {};
  run.metrics ??= {};
  const tags = Object.entries(run.tags).map(([name, value]) => (value ? `${name}=${value}` : name));
  run.tagTexts = tags;
  run.searched = [run.id, run.name, run.experiment, run.state, run.target, run.cause, ...tags]
    .join("\n")
    .toLowerCase();
  return run;
}

/** Return a run's value in a column; a metric's column is "metric:NAME". */
export function valueOf(run, column) {
  if (column.startsWith("metric:")) return run.metrics[column.slice(7)];
  if (column === "name") return (run.name || run.id).toLowerCase();
  if (column === "seconds") return seconds(run);
  return run[column];
}

/** Return the seconds since the run's start, up to its end or now. */
export function seconds(run) {
  if (isFinal(run.state) || !run.started) return run.seconds;
  return Date.now() / 1000 - run.started;
}

function comparison(column, descending) {
  const sign = descending ? -1 : 1;
  return (a, b) => {
    const x = valueOf(a, column);
    const y = valueOf(b, column);
    const lacksX = x === null || x === undefined || x !== x;
    const lacksY = y === null || y === undefined || y !== y;
    if (lacksX || lacksY) return lacksX - lacksY || later(a, b);
    if (x === y) return later(a, b);
    return x < y ? -sign : sign;
  };
}

function later(a, b) {
  return (b.submitted ?? 0) - (a.submitted ?? 0);
}

/** Return the predicate of a filter. All words of `text` must occur in a run; `state:failed`,
 * `tag:team=vision` and `experiment:digits` narrow further, and `-word` excludes. */
export function matcher({ text = "", experiment = "", states = [] }) {
  const tests = text.toLowerCase().split(/\s+/).filter(Boolean).map(wordTest);
  if (experiment) tests.push((run) => run.experiment === experiment);
  if (states.length) {
    const wanted = new Set(states);
    tests.push((run) => wanted.has(group(run.state)));
  }
  return (run) => tests.every((test) => test(run));
}

function wordTest(word) {
  if (word.length > 1 && word.startsWith("-")) {
    const inner = wordTest(word.slice(1));
    return (run) => !inner(run);
  }
  const [kind, ...rest] = word.split(":");
  const value = rest.join(":");
  if (value && kind === "state") return (run) => run.state.startsWith(value);
  if (value && kind === "experiment") return (run) => run.experiment.toLowerCase().includes(value);
  if (value && kind === "tag") {
    return (run) => run.tagTexts.some((tag) => tag.toLowerCase().startsWith(value));
  }
  return (run) => run.searched.includes(word);
}

/** Return the filter's group of a state: waiting, active or a final state. */
export function group(state) {
  if (state === "queued") return "queued";
  return isFinal(state) ? state : "active";
}
