// Tables with one column per run.

import { h } from "../shared/dom.js";

/** Return a table of `rows`, each {name, cells}; `labels` are the columns' heads. */
export function runTable(title, labels, rows) {
  if (!rows.length) return null;
  return h(
    "section.run-table",
    {},
    h("h2.part-title", {}, title),
    h(
      "div.table-scroll",
      { tabindex: "0", role: "region", "aria-label": title },
      h(
        "table.plain.wide",
        {},
        h(
          "thead",
          {},
          h("tr", {}, h("td"), labels.map((label) => h("th", { scope: "col" }, label.cloneNode(true)))),
        ),
        h(
          "tbody",
          {},
          rows.map(({ name, cells }) =>
            h("tr", {}, h("th", { scope: "row" }, name), cells.slice(0, labels.length).map((cell) => h("td", {}, cell))),
          ),
        ),
      ),
    ),
  );
}
