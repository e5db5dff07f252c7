// The page's start.

import { showCompare } from "./compare/view.js";
import { startRouter } from "./router.js";
import { showRun } from "./run/view.js";
import { showRuns } from "./runs/view.js";
import { showKeys } from "./shared/dialog.js";
import { fill, icon } from "./shared/dom.js";
import { startKeyboard } from "./shared/keyboard.js";
import { onTheme, startTheme, theme, toggleTheme } from "./shared/theme.js";

function themeButton(button) {
  const draw = () => {
    const other = theme() === "dark" ? "light" : "dark";
    fill(button, icon(other === "dark" ? "moon" : "sun"));
    button.setAttribute("aria-label", `Switch to the ${other} theme`);
  };
  onTheme(draw);
  draw();
  button.addEventListener("click", toggleTheme);
}

startTheme();
startKeyboard();
themeButton(document.getElementById("theme"));
const help = document.getElementById("help");
fill(help, icon("help"));
help.addEventListener("click", showKeys);
const view = document.getElementById("view");
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash selects the view
  view.focus();
});
startRouter(view, { runs: showRuns, run: showRun, compare: showCompare });
