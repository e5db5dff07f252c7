// The cost of each run: in total, and to reach the same value of a metric.

import { h } from "../shared/dom.js";
import { duration, number, size } from "../shared/format.js";
import { runTable } from "./table.js";

const whole = (value) => (typeof value === "number" ? Math.round(value).toLocaleString("en") : value);

// The name of a measure, its title, and the function that formats it.
const MEASURES = [
  ["seconds", "Duration", duration],
  ["rank_hours", "Rank-hours", number],
  ["ranks", "Ranks", number],
  ["nodes", "Nodes", number],
  ["samples", "Samples trained on", whole],
  ["samples_per_model", "Samples one model has seen", whole],
  ["steps", "Steps", whole],
  ["epochs", "Epochs", number],
  ["batch", "Batch of one rank", number],
  ["learning_rate", "Learning rate", number],
  ["exchanges", "Gradients exchanged", (value) => (value === true ? "yes" : value === false ? "no" : "")],
  ["exchange_bytes", "Bytes exchanged", size],
  ["attempts", "Attempts", number],
  ["target", "Target", String],
];

/** Return the table of the runs' measures. */
export function measuresTable({ measures }, labels) {
  const rows = MEASURES.map(([key, title, shown]) => ({
    name: title,
    cells: measures.map((run) => (run[key] === null || run[key] === undefined ? "" : shown(run[key]))),
  }));
  return runTable("Measures", labels, rows.filter(({ cells }) => cells.some(Boolean)));
}

/** Return the table of each run's cost to reach the best value that all runs reach. */
export function equalValueTable({ equal_value: equal }, labels) {
  if (!equal) return null;
  const cells = (values, shown) =>
    (values ?? []).map((value) => (value === null || value === undefined ? "" : shown(value)));
  const fastest = Math.min(...(equal.seconds ?? []).filter((value) => value !== null));
  const rows = [
    {
      name: "Time",
      cells: (equal.seconds ?? []).map((value) =>
        value === null ? "" : value === fastest ? h("strong", {}, duration(value)) : duration(value),
      ),
    },
    { name: "Steps", cells: cells(equal.steps, whole) },
    { name: "Samples", cells: cells(equal.samples, whole) },
    { name: `Best ${equal.metric}`, cells: cells(equal.best, number) },
  ].filter((row) => row.cells.some(Boolean));
  return runTable(`To ${equal.metric} ${number(equal.value)}`, labels, rows);
}
