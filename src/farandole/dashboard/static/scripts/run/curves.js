// The curves of one run: metrics over steps or time, for some of its ranks.

import { CurvesPanel } from "../chart/panel.js";
import { getSeries } from "../shared/api.js";
import { fill, h } from "../shared/dom.js";

const MOST = 16; // ranks in one chart
const FIRST = 4; // initially shown ranks

export class CurvesPart {
  constructor(place, facts) {
    this.id = facts.run_id;
    this.chooser = h("div.rank-chooser");
    this.panel = new CurvesPanel((wanted, signal) => this.load(wanted, signal), {
      controls: [this.chooser],
    });
    this.panel.mount(place);
    this.started = facts.started ?? facts.submitted;
    this.ranks = null;
    this.facts(facts);
  }

  facts(facts) {
    const recorded = new Set([...ranksOf(facts.metrics), ...ranksOf(facts.automatic_metrics)]);
    const known = [...recorded].sort((a, b) => a - b);
    const chosen = this.ranks ?? known.slice(0, FIRST);
    const changed = this.ranks === null ? String(chosen) !== String(this.shown) : false;
    const restarted = facts.started && facts.started !== this.started;
    this.started = facts.started ?? this.started;
    if (String(known) !== String(this.known)) {
      this.known = known;
      this.drawChooser(chosen);
    }
    if (changed || restarted) this.choose(chosen);
    this.names = namesOf(facts, this.shown ?? chosen);
    this.panel.setNames(this.names);
  }

  choose(ranks) {
    this.shown = ranks;
    this.panel.setSources(
      ranks.map((rank) => ({ key: rank, label: `rank ${rank}`, place: rank, start: this.started })),
    );
  }

  drawChooser(chosen) {
    this.chooser.hidden = this.known.length < 2;
    const change = () => {
      const boxes = [...this.chooser.querySelectorAll("input:checked")];
      this.ranks = boxes.map((box) => Number(box.value)).slice(0, MOST);
      this.summary.textContent = title(this.ranks);
      this.choose(this.ranks);
    };
    this.summary = h("summary.button", {}, title(chosen));
    fill(
      this.chooser,
      h(
        "details.menu",
        {},
        this.summary,
        h(
          "div.menu-panel",
          {},
          this.known.map((rank) =>
            h(
              "label.choice",
              {},
              h("input", { type: "checkbox", value: String(rank), checked: chosen.includes(rank), onchange: change }),
              `rank ${rank}`,
            ),
          ),
        ),
      ),
    );
  }

  async load({ names, axis, range, points }, signal) {
    const shift = axis === "time" ? this.started : 0;
    const absolute = range && range.map((value) => value + shift);
    const wanted = { names, ranks: this.shown, axis, range: absolute, points };
    const found = await getSeries([this.id], wanted, signal);
    return found.map((each) => ({ ...each, key: each.rank }));
  }

  points({ rank, series }) {
    const found = [];
    const unknown = [];
    for (const [name, { step, time, y }] of Object.entries(series)) {
      if (!this.panel.cards.has(name)) unknown.push(name);
      const x = this.panel.axis === "time" ? time : step;
      y.forEach((value, place) => found.push({ key: rank, name, x: x[place], y: value }));
    }
    if (unknown.length) this.panel.setNames([...new Set([...this.panel.cards.keys(), ...unknown])]);
    if (!this.known.includes(rank)) this.newRank(rank);
    this.panel.append(found);
  }

  newRank(rank) {
    this.known = [...this.known, rank].sort((a, b) => a - b);
    const chosen = this.ranks ?? this.known.slice(0, FIRST);
    this.drawChooser(chosen);
    if (this.ranks === null && String(chosen) !== String(this.shown)) this.choose(chosen);
  }

  again() {
    this.panel.refresh();
  }

  search() {
    this.panel.element.querySelector(".metric-filter").focus();
  }

  close() {
    this.panel.close();
  }
}

function ranksOf(metrics) {
  return Object.entries(metrics ?? {})
    .filter(([, names]) => names.length)
    .map(([rank]) => Number(rank));
}

function namesOf(facts, ranks) {
  const found = new Set();
  for (const metrics of [facts.metrics, facts.automatic_metrics]) {
    for (const rank of ranks) for (const name of metrics?.[rank] ?? []) found.add(name);
  }
  return [...found];
}

function title(ranks) {
  if (ranks.length === 1) return `Rank ${ranks[0]}`;
  return ranks.length ? `Ranks ${ranks.join(", ")}` : "Ranks";
}
