// The request of a run and the facts of its submission: command, environment, settings, source.

import { fill, h } from "../shared/dom.js";
import { moment, text } from "../shared/format.js";

export class DetailsPart {
  constructor(place, facts) {
    this.place = place;
    this.facts(facts);
  }

  facts(facts) {
    const parts = sections(facts);
    const drawn = JSON.stringify(parts);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const command = facts.command?.length ? facts.command.map(quoted).join(" ") : "a function";
    fill(
      this.place,
      h(
        "div.details",
        {},
        h("section", {}, h("h2", {}, "Command"), h("pre.code", { tabindex: "0" }, command)),
        parts.map(([title, entries]) => section(title, entries)),
      ),
    );
  }
}

/** Return an argument, quoted for a shell if necessary. */
function quoted(argument) {
  return /^[\w@%+=:,./-]+$/.test(argument) ? argument : `'${argument.replaceAll("'", "'\\''")}'`;
}

function sections(facts) {
  const { git = {}, versions = {}, ...submission } = facts.submission ?? {};
  return [
    ["Parameters", { ...facts.parameters, ...facts.logged_parameters }],
    ["Last values", facts.last_values],
    ["Settings", facts.settings],
    ["Resources", facts.resources],
    ["Environment", { ...facts.environment, ...versions }],
    ["Inputs", facts.inputs],
    ["Source", git],
    ["Submission", { ...submission, time: moment(submission.time) }],
    ["States", states(facts.states)],
    ["Messages", facts.messages],
    ["Folder", facts.folder ? { path: facts.folder } : {}],
  ].map(([title, value]) => [title, flattened(value)]);
}

function states(found = []) {
  return found.map((each) => `${moment(each.time)}  ${each.state}${each.cause ? `: ${each.cause}` : ""}`);
}

/** Return nested values as pairs of a dotted name and a text, without empty ones. */
function flattened(value, prefix = "") {
  if (Array.isArray(value)) return value.map((each) => ["", text(each)]);
  return Object.entries(value ?? {}).flatMap(([name, inner]) => {
    const full = prefix + name;
    if (inner && typeof inner === "object" && !Array.isArray(inner)) return flattened(inner, `${full}.`);
    const shown = text(inner);
    return shown === "" ? [] : [[full, shown]];
  });
}

function section(title, entries) {
  if (!entries.length) return null;
  const named = entries.some(([name]) => name);
  return h(
    "section",
    {},
    h("h2", {}, title),
    named
      ? h("dl.pairs", {}, entries.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))))
      : h("ul.lines", {}, entries.map(([, value]) => h("li", {}, value))),
  );
}
