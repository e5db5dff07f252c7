// Keyboard shortcuts. The current view registers its own.

import { showKeys } from "./dialog.js";
import { toggleTheme } from "./theme.js";

let keys = {};

/** Set the keys of the current view: a function for each key. */
export function setKeys(table) {
  keys = table;
}

function typing(target) {
  return target.matches?.("input:not([type=checkbox]):not([type=range]), select, textarea");
}

function closeMenus(except) {
  const open = [...document.querySelectorAll("details.menu[open]")].filter((menu) => menu !== except);
  for (const menu of open) {
    if (menu.contains(document.activeElement)) menu.querySelector("summary").focus();
    menu.open = false;
  }
  return open.length > 0;
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.key === "Escape" && closeMenus()) return;
  if (typing(event.target)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const common = { "?": showKeys, t: toggleTheme };
  const action = keys[event.key] ?? common[event.key];
  if (action && action(event) !== false) event.preventDefault();
}

/** Start to handle keys. A click outside an open menu closes the menu. */
export function startKeyboard() {
  document.addEventListener("keydown", pressed);
  document.addEventListener("pointerdown", (event) => closeMenus(event.target.closest("details.menu")));
}
