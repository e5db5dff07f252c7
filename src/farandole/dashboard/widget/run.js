// The view of a run in a notebook. Texts are set as textContent: names are data, never HTML.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 320, HEIGHT = 120, LEFT = 46, TOP = 8, BOTTOM = 18;

function element(parent, tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  parent.append(made);
  return made;
}

function shape(parent, tag, attributes, text = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  parent.append(made);
  return made;
}

function scale(low, high, begin, end) {
  const span = high - low;
  return span ? (value) => begin + ((value - low) / span) * (end - begin) : () => (begin + end) / 2;
}

function brief(number) {
  return String(Number(number.toPrecision(4)));
}

function drawCurve(parent, curve) {
  const points = curve.x.map((x, at) => [x, curve.y[at]]).filter(([, y]) => Number.isFinite(y));
  const box = element(parent, "div", "curve");
  const last = points.length ? `  ${brief(points[points.length - 1][1])}` : "";
  element(box, "div", "", `${curve.name}${last}`);
  const svg = shape(box, "svg", { width: WIDTH, height: HEIGHT, role: "img", "aria-label": curve.name });
  if (!points.length) return;
  const xs = points.map(([x]) => x), ys = points.map(([, y]) => y);
  const [left, right] = [Math.min(...xs), Math.max(...xs)];
  const [low, high] = [Math.min(...ys), Math.max(...ys)];
  const end = WIDTH - 8, base = HEIGHT - BOTTOM;
  const across = scale(left, right, LEFT, end), down = scale(low, high, base, TOP);
  shape(svg, "path", { d: `M${LEFT} ${TOP}V${base}H${end}`, fill: "none", stroke: "currentColor", opacity: 0.3 });
  const line = points.map(([x, y]) => `${across(x).toFixed(1)},${down(y).toFixed(1)}`).join(" ");
  shape(svg, "polyline", { points: line, fill: "none", stroke: "#1565c0", "stroke-width": 1.5 });
  const [x, y] = points[points.length - 1];
  shape(svg, "circle", { cx: across(x), cy: down(y), r: 2.5, fill: "#1565c0" });
  for (const [px, py, anchor, value] of [
    [LEFT - 4, TOP + 8, "end", high], [LEFT - 4, base, "end", low],
    [LEFT, HEIGHT - 4, "start", left], [end, HEIGHT - 4, "end", right],
  ]) {
    const place = { x: px, y: py, "text-anchor": anchor, "font-size": 10, fill: "currentColor" };
    shape(svg, "text", place, brief(value));
  }
}

function section(parent, title, texts, className) {
  const shown = texts.filter((text) => text);
  if (!shown.length) return;
  element(parent, "div", "", title).style.opacity = 0.7;
  for (const text of shown) element(parent, "div", className, text);
}

function draw(root, view) {
  const old = root.querySelector("pre");
  const follows = !old || old.scrollTop + old.clientHeight >= old.scrollHeight - 4;
  const position = old ? old.scrollTop : 0;
  root.replaceChildren();
  const head = element(root, "div");
  element(head, "b", "", view.id);
  element(head, "span", "state", view.state).dataset.state = view.state;
  const table = element(root, "table");
  for (const [name, text] of view.facts) {
    const row = element(table, "tr");
    element(row, "th", "", name);
    element(row, "td", "", text);
  }
  section(root, "Cause", [view.cause], "note cause");
  section(root, "Findings", view.findings, "note");
  const curves = element(root, "div", "curves");
  for (const curve of view.curves) drawCurve(curves, curve);
  if (view.log) {
    const log = element(root, "pre", "", view.log);
    log.scrollTop = follows ? log.scrollHeight : position;
  }
}

function render({ model, el }) {
  const root = element(el, "div", "farandole-run");
  const update = () => draw(root, model.get("view"));
  model.on("change:view", update);
  update();
  return () => model.off("change:view", update);
}

export default { render };
