// Light and dark: the system's preference until the reader switches.

const KEY = "farandole-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();
const tokens = new Map(); // kept, because reading one style may compute the styles of the whole page

function saved() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // storage is blocked
  }
}

/** Return "light" or "dark". */
export function theme() {
  return document.documentElement.dataset.theme;
}

/** Switch to the other theme and remember it. */
export function toggleTheme() {
  const next = theme() === "dark" ? "light" : "dark";
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // storage is blocked: the choice lasts until the page is closed
  }
  apply(next);
}

/** Call `listener` after each change of the theme; return a function that removes the listener. */
export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Return the value of a custom property of the current theme. */
export function token(name) {
  if (!tokens.has(name)) {
    const style = getComputedStyle(document.documentElement);
    tokens.set(name, style.getPropertyValue(`--${name}`).trim());
  }
  return tokens.get(name);
}

function apply(name) {
  document.documentElement.dataset.theme = name;
  tokens.clear();
  for (const listener of listeners) listener();
}

/** Apply the saved theme or the system's, and follow the system. */
export function startTheme() {
  apply(saved() ?? (dark.matches ? "dark" : "light"));
  dark.addEventListener("change", () => {
    if (!saved()) apply(dark.matches ? "dark" : "light");
  });
}
