// Modal dialogs: confirmations and the list of keys.

import { h } from "./dom.js";

/** Ask before an action. Resolve to true if the reader confirms. */
export function confirm(title, explanation, action, danger = false) {
  return new Promise((resolve) => {
    const dialog = h(
      "dialog.dialog",
      { "aria-labelledby": "dialog-title" },
      h("h2", { id: "dialog-title" }, title),
      h("p", {}, explanation),
      h(
        "div.dialog-buttons",
        {},
        h("button", { onclick: () => dialog.close("") }, "Cancel"),
        h(
          danger ? "button.primary.danger" : "button.primary",
          { onclick: () => dialog.close("yes") },
          action,
        ),
      ),
    );
    open(dialog, () => resolve(dialog.returnValue === "yes"));
  });
}

const KEYS = [
  ["/", "filter the list, or search the log"],
  ["j  k", "next and previous run"],
  ["Enter", "open the run"],
  ["x", "select the run"],
  ["c", "compare the selected runs"],
  ["1 … 6", "the parts of a run: curves, log, ranks, ..."],
  ["+  −  ←  →", "zoom and move a focused curve; 0 shows everything"],
  ["Esc", "leave the field, or go back to the list"],
  ["t", "light or dark"],
  ["?", "this list"],
];

/** Show the keys. */
export function showKeys() {
  const rows = KEYS.map(([key, does]) =>
    h(
      "tr",
      {},
      h("td", {}, key.split("  ").map((each) => h("kbd", {}, each))),
      h("td", {}, does),
    ),
  );
  const dialog = h(
    "dialog.dialog",
    { "aria-labelledby": "dialog-title" },
    h("h2", { id: "dialog-title" }, "Keys"),
    h("table.keys", {}, h("tbody", {}, rows)),
    h("div.dialog-buttons", {}, h("button.primary", { onclick: () => dialog.close() }, "Close")),
  );
  open(dialog, () => {});
}

function open(dialog, closed) {
  if (document.querySelector("dialog[open]")) return;
  const before = document.activeElement;
  dialog.addEventListener("close", () => {
    dialog.remove();
    before?.focus?.();
    closed();
  });
  document.body.append(dialog);
  dialog.showModal();
}
