// The differences between runs: request, environment, source.

import { h } from "../shared/dom.js";
import { text } from "../shared/format.js";
import { runTable } from "./table.js";

const SIGNS = { "+": "added", "-": "removed", "@": "place" };

/** Return the tables of differences. */
export function differenceTables({ differences = {}, environment = {}, source = [] }, labels) {
  return [
    runTable("Differences", labels, rowsOf(differences)),
    runTable("Environment", labels, rowsOf(environment)),
    sourceDifferences(source, labels),
  ];
}

function rowsOf(values) {
  return Object.entries(values).map(([name, cells]) => ({ name, cells: cells.map(text) }));
}

function sourceDifferences(source, labels) {
  if (!source.length) return null;
  return h(
    "section.sources",
    {},
    runTable("Source", labels, source.map(({ path, runs }) => ({ name: path, cells: runs }))),
    source.filter(({ diff }) => diff.length).map(({ path, diff, truncated }) =>
      h(
        "details.diff",
        {},
        h("summary", {}, path),
        h(
          "pre",
          { tabindex: "0" },
          diff.map((line) => h("span.diff-line", { data: { kind: SIGNS[line[0]] ?? "same" } }, `${line}\n`)),
          truncated ? h("span.dim", {}, "The diff is truncated.") : null,
        ),
      ),
    ),
  );
}
