// The header of a run: name, state, cause, times, actions; and its findings.

import { act } from "../shared/api.js";
import { announce } from "../shared/announce.js";
import { confirm } from "../shared/dialog.js";
import { fill, h, icon } from "../shared/dom.js";
import { ago, count, duration, moment } from "../shared/format.js";
import { stateBadge } from "../shared/state.js";
import { go } from "../router.js";
import { isFinal } from "../runs/store.js";

const CAUSE_LINES = 4;

/** Draw a run's header. With `timeOnly`, only the duration changes. */
export function drawHeader(place, facts, timeOnly = false) {
  const time = place.querySelector(".fact-duration dd");
  if (timeOnly && time) {
    time.textContent = duration(elapsed(facts));
    return;
  }
  if (place.contains(document.activeElement) && place.dataset.drawn === signature(facts)) return;
  place.dataset.drawn = signature(facts);
  const title = facts.name || facts.run_id;
  fill(
    place,
    h(
      "div.run-top",
      {},
      h("a.back", { href: "#/runs", "aria-label": "All runs" }, icon("back")),
      h("h1.run-title", {}, title),
      stateBadge(facts.state),
      h("div.run-actions", {}, buttons(facts)),
    ),
    h(
      "p.run-under",
      {},
      h("a", { href: `#/runs?experiment=${encodeURIComponent(facts.experiment)}` }, facts.experiment),
      title === facts.run_id ? null : h("code.run-id", {}, facts.run_id),
      Object.entries(facts.tags ?? {}).map(([name, value]) =>
        h("span.tag", {}, value ? `${name}=${value}` : name),
      ),
    ),
    cause(facts),
    h("dl.run-facts", {}, mainFacts(facts)),
  );
}

function signature(facts) {
  const { state, stopping, cause: why, actions, started, queue_position: place } = facts;
  return JSON.stringify([state, stopping, why, actions, started, place]);
}

function elapsed(facts) {
  if (isFinal(facts.state) || !facts.started) return facts.seconds;
  return Math.max(0, Date.now() / 1000 - facts.started);
}

function fact(name, value, title = "") {
  if (value === "" || value === null || value === undefined) return null;
  const key = name.toLowerCase();
  return h(`div.fact.fact-${key}`, {}, h("dt", {}, name), h("dd", { title }, value));
}

function mainFacts(facts) {
  const ranks = Array.isArray(facts.ranks) ? facts.ranks.filter(({ rank }) => rank !== null).length : facts.ranks;
  const nodes = facts.nodes === 1 ? "" : ` on ${count(facts.nodes, "node")}`;
  const waiting = facts.queue_position;
  return [
    fact("Duration", duration(elapsed(facts))),
    fact("Ranks", `${ranks}${nodes}`),
    fact("Target", facts.target),
    fact("Submitted", ago(facts.submitted), moment(facts.submitted)),
    fact("Queue", waiting === null || waiting === undefined ? "" : `${waiting} before this run`),
    fact("Attempts", facts.attempts > 1 ? String(facts.attempts) : ""),
    fact("Parent", facts.parent ? h("a", { href: `#/run/${encodeURIComponent(facts.parent)}` }, facts.parent) : ""),
    fact("Runs", facts.children?.length ? children(facts.children) : ""),
  ];
}

function children(runs) {
  return h(
    "details.children",
    {},
    h("summary", {}, count(runs.length, "run")),
    h(
      "ul",
      {},
      runs.map((run) =>
        h("li", {}, h("a", { href: `#/run/${encodeURIComponent(run.id)}` }, run.name || run.id), stateBadge(run.state)),
      ),
    ),
  );
}

function cause(facts) {
  if (!facts.cause || facts.state === "completed") return null;
  const lines = facts.cause.trim().split("\n");
  const kind = facts.state === "failed" ? "error" : "note";
  if (lines.length <= CAUSE_LINES) return h("pre.cause", { data: { kind } }, facts.cause.trim());
  return h(
    "details.cause",
    { data: { kind } },
    h("summary", {}, lines[0]),
    h("pre", {}, lines.slice(1).join("\n")),
  );
}

function buttons(facts) {
  const found = [];
  const actions = facts.actions ?? [];
  if (actions.includes("rerun")) {
    found.push(h("button", { onclick: () => rerun(facts) }, icon("rerun"), "Run again"));
  }
  if (actions.includes("stop") && !isFinal(facts.state)) {
    const text = facts.stopping ? "Stopping …" : "Stop";
    found.push(
      h("button.danger", { disabled: facts.stopping, onclick: () => stop(facts) }, icon("stop"), text),
    );
  }
  return found;
}

async function stop(facts) {
  const title = `Stop ${facts.name || facts.run_id}?`;
  const seconds = facts.resources?.grace_seconds;
  const explanation =
    facts.state === "queued"
      ? "The run has not started, and will not start."
      : `The ranks are asked to stop${seconds ? `, and have ${seconds} seconds to save their work` : ""}. Recorded data is kept.`;
  if (await confirm(title, explanation, "Stop the run", true)) {
    await perform(facts.run_id, "stop", () => announce("The run is being stopped."));
  }
}

async function rerun(facts) {
  const title = `Run ${facts.name || facts.run_id} again?`;
  const explanation = "A new run with the same command, source and environment enters the queue.";
  if (await confirm(title, explanation, "Submit a new run")) {
    await perform(facts.run_id, "rerun", ({ run_id: id }) => go(`#/run/${encodeURIComponent(id)}`));
  }
}

async function perform(id, action, done) {
  try {
    done(await act(id, action));
  } catch (error) {
    announce(error.message, "error");
  }
}

/** Return the findings of a run's checks; null without any. */
export function findings(facts) {
  const found = facts.findings ?? [];
  if (!found.length) return null;
  return h(
    "section.callout",
    { "aria-labelledby": "findings-title", data: { kind: "warning" } },
    h("h2", { id: "findings-title" }, icon("warning"), count(found.length, "finding")),
    h("ul", {}, found.map((each) => h("li", {}, typeof each === "string" ? each : each.text))),
  );
}
