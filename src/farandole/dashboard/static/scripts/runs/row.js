// One row of the list of runs.

import { h } from "../shared/dom.js";
import { ago, duration, moment, number } from "../shared/format.js";
import { stateBadge } from "../shared/state.js";
import { seconds } from "./store.js";

/** The columns of the list: the sort key, the title, and whether the values are numbers. */
export const COLUMNS = [
  { key: "state", title: "State" },
  { key: "name", title: "Run" },
  { key: "ranks", title: "Ranks", numeric: true },
  { key: "submitted", title: "Submitted", numeric: true },
  { key: "seconds", title: "Duration", numeric: true },
];

/** Return the row of a run. `options` has `metrics`, `selected` and `ontoggle`. */
export function drawRow(run, { metrics, selected, ontoggle }) {
  const title = run.name || run.id;
  return h(
    "div.row",
    { role: "row", data: { id: run.id }, "aria-selected": String(selected) },
    h(
      "span.cell.cell-select",
      { role: "cell" },
      h("input", {
        type: "checkbox",
        tabindex: "-1",
        checked: selected,
        "aria-label": `Select ${title}`,
        onchange: () => ontoggle(run.id),
      }),
    ),
    h("span.cell.cell-state", { role: "cell" }, stateBadge(run.state)),
    h(
      "span.cell.cell-name",
      { role: "cell" },
      h("a.row-link", { href: `#/run/${encodeURIComponent(run.id)}`, title: run.id }, title),
      h("span.row-under", {}, under(run)),
    ),
    h("span.cell.cell-ranks.numeric", { role: "cell" }, ranks(run)),
    h(
      "span.cell.cell-submitted.numeric",
      { role: "cell", title: moment(run.submitted) },
      ago(run.submitted),
    ),
    h("span.cell.cell-seconds.numeric", { role: "cell" }, duration(seconds(run))),
    metrics.map((name) =>
      h("span.cell.cell-metric.numeric", { role: "cell" }, number(run.metrics[name])),
    ),
  );
}

function ranks(run) {
  return [String(run.ranks), h("span.dim", {}, ` ${run.target}`)];
}

function under(run) {
  const cause = run.state === "failed" && run.cause ? run.cause.split("\n")[0] : "";
  return [
    h("span.row-experiment", {}, run.experiment),
    run.tagTexts.slice(0, 4).map((tag) => h("span.tag", {}, tag)),
    cause ? h("span.row-cause", { title: run.cause }, cause) : null,
  ];
}
