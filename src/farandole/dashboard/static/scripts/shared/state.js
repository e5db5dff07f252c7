// The appearance of a run's state on all pages.

import { h } from "./dom.js";

/** Return a state with its mark. The mark repeats the word, so that color is not the only sign. */
export function stateBadge(state) {
  return h("span.state", { data: { state } }, h("span.state-mark", { "aria-hidden": "true" }), state);
}
