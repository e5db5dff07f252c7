// Colors of curves. The theme defines them; from the ninth curve, they repeat with dashes.

import { token } from "../shared/theme.js";

const COLORS = 8;
const DASHES = [null, [6, 4], [2, 3], [10, 4, 2, 4]];

/** Return the look of curve number `place`: `index` of its color in the theme, and its dashes. */
export function look(place) {
  return { index: place % COLORS, dash: DASHES[Math.floor(place / COLORS) % DASHES.length] };
}

/** Return a color of the current theme, with an opacity. */
export function color(index, opacity = 1) {
  const value = token(`curve-${index}`);
  if (opacity === 1) return value;
  const hex = Math.round(opacity * 255).toString(16).padStart(2, "0");
  return `${value}${hex}`;
}
