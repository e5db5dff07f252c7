// The ranks of a run by host: their states, and the ranks for which they wait.

import { fill, h } from "../shared/dom.js";
import { count, moment, size } from "../shared/format.js";

export class RanksPart {
  constructor(place, facts, view) {
    this.view = view;
    this.place = place;
    this.facts(facts);
  }

  facts(facts) {
    const all = Array.isArray(facts.ranks) ? facts.ranks : [];
    const memberships = facts.memberships ?? [];
    const drawn = JSON.stringify([all, memberships]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    this.elastic = memberships.length > 0;
    const ranks = all.filter(({ rank }) => rank !== null);
    fill(
      this.place,
      h(
        "div.ranks",
        {},
        summary(ranks),
        hosts(ranks).map((host) => this.host(host)),
        this.ended(all.filter(({ rank }) => rank === null)),
        history(memberships),
      ),
    );
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

  /** Return the table of an elastic run's ended processes, which are not ranks. */
  ended(processes) {
    if (!processes.length) return null;
    return h(
      "section.host",
      {},
      h("h2.host-name", {}, "Ended processes"),
      h(
        "div.table-scroll",
        { tabindex: "0", role: "region", "aria-label": "Ended processes" },
        h(
          "table.plain",
          {},
          h("thead", {}, h("tr", {}, ["Process", "Host", "State", "Log"].map((title) => h("th", { scope: "col" }, title)))),
          h(
            "tbody",
            {},
            processes.map((each) =>
              h(
                "tr",
                { data: { process: each.process } },
                h("th", { scope: "row" }, each.process),
                h("td", {}, each.host),
                h("td", {}, state(each)),
                h("td", {}, this.log(each)),
              ),
            ),
          ),
        ),
      ),
    );
  }

  log({ process, rank, log_bytes: bytes }) {
    const open = () => this.view.open("log", new URLSearchParams({ rank: process ?? rank }));
    return h("button.link", { onclick: open }, bytes ? size(bytes) : "empty");
  }

  row(rank) {
    return h(
      "tr",
      { data: { rank: rank.rank } },
      h("th", { scope: "row" }, rank.rank),
      h("td", {}, state(rank)),
      h("td", {}, waiting(rank)),
      h("td", {}, share(rank.wait_share)),
      h("td", {}, this.log(rank), this.elastic ? h("span.dim", {}, ` of process ${rank.process}`) : null),
    );
  }
}

/** Return the memberships of an elastic run, the latest first. */
function history(memberships) {
  if (!memberships.length) return null;
  return h(
    "section.memberships",
    {},
    h("h2.host-name", {}, "Memberships"),
    h(
      "ol",
      { reversed: "" },
      [...memberships].reverse().map(({ ranks, time, hosts: names }) =>
        h("li", {}, `${count(ranks, "rank")} on ${names.join(", ")} `, h("span.dim", {}, moment(time))),
      ),
    ),
  );
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

/** Return a sentence for each awaited rank, the most awaited first. */
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
