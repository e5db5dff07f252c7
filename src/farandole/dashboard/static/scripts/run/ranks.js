// The ranks of a run by host: their states, and the ranks for which they wait.

import { fill, h } from "../shared/dom.js";
import { count, size } from "../shared/format.js";

export class RanksPart {
  constructor(place, facts, view) {
    this.view = view;
    this.place = place;
    this.facts(facts);
  }

  facts(facts) {
    const ranks = Array.isArray(facts.ranks) ? facts.ranks : [];
    const drawn = JSON.stringify(ranks);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    fill(this.place, h("div.ranks", {}, summary(ranks), hosts(ranks).map((host) => this.host(host))));
  }

  host({ name, node, ranks }) {
    return h(
      "section.host",
      {},
      h("h2.host-name", {}, name || `node ${node}`, h("span.dim", {}, ` ${count(ranks.length, "rank")}`)),
      h(
        "div.table-scroll",
        { tabindex: "0", role: "region", "aria-label": `Ranks on ${name || `node ${node}`}` },
        h(
          "table.plain",
          {},
          h(
            "thead",
            {},
            h("tr", {}, ["Rank", "State", "Waits for", "Time spent waiting", "Log"].map((title) => h("th", { scope: "col" }, title))),
          ),
          h("tbody", {}, ranks.map((rank) => this.row(rank))),
        ),
      ),
    );
  }

  row(rank) {
    const open = () => this.view.open("log", new URLSearchParams({ rank: rank.rank }));
    return h(
      "tr",
      { data: { rank: rank.rank } },
      h("th", { scope: "row" }, rank.rank),
      h("td", {}, state(rank)),
      h("td", {}, waiting(rank)),
      h("td", {}, share(rank.wait_share)),
      h("td", {}, h("button.link", { onclick: open }, rank.log_bytes ? size(rank.log_bytes) : "empty")),
    );
  }
}

function state({ state: name, exit_code: code }) {
  return code ? `${name}, exit code ${code}` : name;
}

function waiting({ waiting_for: others, collectives = [] }) {
  if (!others.length) return "";
  return [
    `rank${others.length === 1 ? "" : "s"} ${others.join(", ")}`,
    collectives.length ? h("span.dim", {}, ` in ${collectives.join(", ")}`) : null,
  ];
}

function share(part) {
  if (part === null || part === undefined) return "";
  const percent = `${Math.round(100 * part)} %`;
  return h(
    "span.share",
    {},
    h("meter", { min: "0", max: "1", value: part, "aria-label": `Share of time spent waiting: ${percent}` }),
    percent,
  );
}

function hosts(ranks) {
  const found = new Map();
  for (const rank of ranks) {
    const key = `${rank.host} ${rank.node}`;
    if (!found.has(key)) found.set(key, { name: rank.host, node: rank.node, ranks: [] });
    found.get(key).ranks.push(rank);
  }
  return [...found.values()];
}

/** Return one sentence for each awaited rank, the most awaited first. */
function summary(ranks) {
  const awaited = new Map();
  for (const rank of ranks) {
    for (const other of rank.waiting_for) {
      awaited.set(other, [...(awaited.get(other) ?? []), rank.rank]);
    }
  }
  if (!awaited.size) return null;
  const sentences = [...awaited]
    .sort((a, b) => b[1].length - a[1].length)
    .map(([other, waiters]) => {
      const many = waiters.length > 1;
      return h("li", {}, `${many ? "Ranks" : "Rank"} ${waiters.join(", ")} ${many ? "wait" : "waits"} for rank ${other}.`);
    });
  return h("ul.callout", { data: { kind: "note" } }, sentences);
}
