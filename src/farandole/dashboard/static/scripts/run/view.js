// One run: its header, and the parts curves, log, ranks, files, timeline and details.

import { getRun, listen } from "../shared/api.js";
import { fill, h, settled } from "../shared/dom.js";
import { setKeys } from "../shared/keyboard.js";
import { go } from "../router.js";
import { isFinal } from "../runs/store.js";
import { CurvesPart } from "./curves.js";
import { DetailsPart } from "./details.js";
import { FilesPart } from "./files.js";
import { drawHeader, findings } from "./header.js";
import { LogPart } from "./log.js";
import { RanksPart } from "./ranks.js";
import { TimelinePart } from "./timeline.js";

const PARTS = {
  curves: { title: "Curves", kind: CurvesPart },
  log: { title: "Log", kind: LogPart },
  ranks: { title: "Ranks", kind: RanksPart },
  files: { title: "Files", kind: FilesPart },
  timeline: { title: "Timeline", kind: TimelinePart },
  details: { title: "Details", kind: DetailsPart },
};
const REFRESH = 5000; // milliseconds between two reads of an active run's facts

/** Show a run in `place`; return a function that ends it. */
export function showRun(place, { names, query }) {
  return new RunView(place, decodeURIComponent(names[0] ?? ""), names[1], query).start();
}

class RunView {
  constructor(place, id, part, query) {
    this.id = id;
    this.query = query;
    this.part = null;
    this.partName = part in PARTS ? part : "curves";
    this.header = h("div.run-header");
    this.findings = h("div.findings");
    this.tabs = h("div.tabs", { role: "tablist", "aria-label": "Parts of the run" });
    this.panel = h("div.panel", { role: "tabpanel", id: "part", tabindex: "-1" });
    this.panel.setAttribute("aria-labelledby", `tab-${this.partName}`);
    fill(place, h("div.run-page", {}, this.header, this.findings, this.tabs, this.panel));
  }

  start() {
    const keys = Object.fromEntries(
      Object.keys(PARTS).map((name, place) => [String(place + 1), () => this.open(name)]),
    );
    setKeys({ ...keys, Escape: () => go("#/runs"), "/": () => this.part?.search?.() });
    this.drawTabs();
    this.readSoon = settled(() => this.read(), 250);
    const stop = listen(this.id, {
      opened: () => this.read(true),
      run: (change) => this.changed(change),
      points: (points) => this.part?.points?.(points),
      log: (sizes) => this.part?.sizes?.(sizes),
    });
    const clock = setInterval(() => this.tick(), 1000);
    return () => {
      this.closed = true;
      stop();
      clearInterval(clock);
      this.part?.close?.();
    };
  }

  async read(again = false) {
    let facts;
    try {
      facts = await getRun(this.id);
    } catch (error) {
      if (!this.facts) this.missing(error);
      return;
    }
    if (this.closed) return;
    const first = !this.facts;
    this.facts = facts;
    this.lastRead = Date.now();
    document.title = `${facts.name || facts.run_id} · Farandole`;
    this.draw();
    if (first) this.show(this.partName);
    else {
      this.part?.facts?.(facts);
      if (again) this.part?.again?.();
    }
  }

  missing(error) {
    fill(
      this.header,
      h("h1", {}, "No such run"),
      h("p", {}, error.message),
      h("a", { href: "#/runs" }, "All runs"),
    );
    this.tabs.hidden = true;
  }

  changed({ state, cause, stopping }) {
    if (!this.facts) return;
    Object.assign(this.facts, { state, cause, stopping });
    this.draw();
    this.readSoon();
  }

  tick() {
    if (!this.facts || isFinal(this.facts.state)) return;
    drawHeader(this.header, this.facts, true);
    if (Date.now() - this.lastRead > REFRESH) this.read();
  }

  draw() {
    drawHeader(this.header, this.facts);
    fill(this.findings, findings(this.facts));
  }

  // --- the parts

  drawTabs() {
    fill(
      this.tabs,
      Object.entries(PARTS).map(([name, { title }]) =>
        h(
          "button.tab",
          {
            role: "tab",
            id: `tab-${name}`,
            "aria-selected": String(name === this.partName),
            "aria-controls": "part",
            tabindex: name === this.partName ? "0" : "-1",
            onclick: () => this.open(name),
            onkeydown: (event) => this.tabKey(event, name),
          },
          title,
        ),
      ),
    );
  }

  tabKey(event, name) {
    const names = Object.keys(PARTS);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = names[(names.indexOf(name) + step + names.length) % names.length];
    this.open(next);
    document.getElementById(`tab-${next}`).focus();
  }

  /** Open a part, and keep it in the location. */
  open(name, query = null) {
    this.query = query ?? new URLSearchParams();
    history.replaceState(null, "", `#/run/${encodeURIComponent(this.id)}/${name}`);
    this.show(name);
  }

  show(name) {
    this.part?.close?.();
    this.part = null;
    this.partName = name;
    for (const tab of this.tabs.children) {
      const selected = tab.id === `tab-${name}`;
      tab.setAttribute("aria-selected", String(selected));
      tab.tabIndex = selected ? 0 : -1;
    }
    this.panel.setAttribute("aria-labelledby", `tab-${name}`);
    this.panel.dataset.part = name;
    fill(this.panel);
    if (!this.facts) return; // the part is shown when they have arrived
    this.part = new PARTS[name].kind(this.panel, this.facts, this);
  }
}
