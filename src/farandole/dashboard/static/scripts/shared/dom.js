// Elements built from data. Text becomes text nodes, so that markup in a name is shown, not interpreted.

const SVG = "http://www.w3.org/2000/svg";

/** Return an element such as h("a.name", {href, onclick}, "text", other).
 *
 * The first argument is a tag with classes; `null`, `undefined` and `false` children are omitted.
 * Properties that begin with "on" are listeners, `data` holds data attributes, the rest are attributes.
 */
export function h(selector, properties = {}, ...children) {
  const [tag, ...classes] = selector.split(".");
  const element = document.createElement(tag || "div");
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(properties)) set(element, name, value);
  element.append(...flat(children));
  return element;
}

function set(element, name, value) {
  if (value === undefined || value === null || value === false) return;
  if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else if (name === "data") Object.assign(element.dataset, value);
  else if (name === "value" || name === "checked") element[name] = value;
  else element.setAttribute(name, value === true ? "" : value);
}

function flat(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));
}

/** Replace the children of an element. */
export function fill(element, ...children) {
  element.replaceChildren(...flat(children));
  return element;
}

/** Replace the children of an element with those returned by `build`, if `data` has changed.
 *
 * With unchanged data, the children stay, and with them the focus and the pointer's target.
 */
export function refill(element, data, build) {
  const drawn = JSON.stringify(data);
  if (element.drawnData === drawn) return;
  element.drawnData = drawn;
  fill(element, build());
}

const ICONS = {
  stop: "M5 5h10v10H5z",
  rerun: "M15.5 10a5.5 5.5 0 1 1-1.8-4.1M14 2.5v3.6h-3.6",
  back: "M12 4 6 10l6 6",
  sun: "M10 6.2a3.8 3.8 0 1 0 0 7.6 3.8 3.8 0 0 0 0-7.6zM10 1.5v2M10 16.5v2M1.5 10h2M16.5 10h2M4 4l1.4 1.4M14.6 14.6 16 16M4 16l1.4-1.4M14.6 5.4 16 4",
  moon: "M16 11.6A6.6 6.6 0 0 1 8.4 4a6.6 6.6 0 1 0 7.6 7.6z",
  help: "M7.6 7.4a2.5 2.5 0 1 1 3.6 2.4c-.8.4-1.2.9-1.2 1.9M10 14.6v.1",
  search: "M8.8 3.5a5.3 5.3 0 1 0 0 10.6 5.3 5.3 0 0 0 0-10.6zM12.7 12.7l4 4",
  warning: "M10 3 2.6 16.2h14.8zM10 8v4M10 14v.1",
  expand: "M12 3.5h4.5V8M8 16.5H3.5V12M16.5 3.5l-5 5M3.5 16.5l5-5",
  compare: "M6.5 3.5v13M13.5 3.5v13M3.5 7.5l3-4 3 4M10.5 12.5l3 4 3-4",
};

/** Return a decorative icon, which screen readers skip. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 20 20");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", "icon");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** Call `action` at most once per animation frame; later calls in one frame are merged. */
export function perFrame(action) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      action();
    });
  };
}

/** Call `action` once, `milliseconds` after the last of several calls. */
export function settled(action, milliseconds) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), milliseconds);
  };
}
