// The look of a run's state, everywhere on the page.

import { h } from "./dom.js";

/** Return a state with its mark. The mark repeats the word, so color is never the only sign. */
export function stateBadge(state) {
  return h("span.state", { data: { state } }, h("span.state-mark", { "aria-hidden": "true" }), state);
}
