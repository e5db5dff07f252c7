// The logs of a run: one rank or all, from the end, followed while they grow, and searched.

import { getLog, logAddress, searchLog } from "../shared/api.js";
import { announce } from "../shared/announce.js";
import { fill, h, icon, perFrame } from "../shared/dom.js";
import { count, size } from "../shared/format.js";
import { isFinal } from "../runs/store.js";
import { LogWindow } from "./window.js";

const NEAR = 400; // distance in pixels from an end of the window at which the next piece is read
const BOTTOM = 4; // pixels from the bottom that still count as its end

export class LogPart {
  constructor(place, facts, view) {
    this.id = facts.run_id;
    this.final = isFinal(facts.state);
    this.joint = rankCount(facts) > 1 && !facts.submission?.tracked; // a tracked job has no joint log
    this.rank = view.query.get("rank") ?? (this.joint ? "all" : "0");
    this.following = true;
    this.busy = false;
    this.wanted = false;
    this.build(place, facts);
    this.start();
  }

  build(place, facts) {
    const ranks = processes(facts);
    this.choice = h(
      "select",
      { "aria-label": "Log of", onchange: () => this.choose(this.choice.value) },
      (this.joint ? ["all", ...ranks] : ranks).map((rank) =>
        h("option", { value: rank, selected: rank === this.rank }, rank === "all" ? "All ranks" : `${isElastic(facts) ? "Process" : "Rank"} ${rank}`),
      ),
    );
    this.field = h("input.log-search", {
      type: "search",
      placeholder: "Search the log",
      "aria-label": "Search the log",
      onkeydown: (event) => event.key === "Enter" && this.find(),
      onsearch: () => this.field.value || this.clear(),
    });
    this.follow = h("input", {
      type: "checkbox",
      checked: true,
      onchange: () => this.setFollowing(this.follow.checked),
    });
    this.position = h("span.dim.log-position", { role: "status" });
    this.download = h("a.button", { download: "" }, "Download");
    this.text = h("pre.log-text", { tabindex: "0", role: "log", "aria-live": "off", "aria-label": "Log" });
    this.text.addEventListener("scroll", perFrame(() => this.scrolled()), { passive: true });
    this.text.addEventListener("keydown", (event) => this.key(event));
    this.matches = h("div.matches", { hidden: true });
    fill(
      place,
      h(
        "div.log",
        {},
        h(
          "div.log-bar",
          {},
          this.choice,
          h("div.search-field", {}, icon("search"), this.field),
          h("label.choice", {}, this.follow, "Follow"),
          h("button", { onclick: () => this.toBeginning() }, "Beginning"),
          h("button", { onclick: () => this.setFollowing(true) }, "End"),
          this.position,
          this.download,
        ),
        h("div.log-body", {}, this.text, this.matches),
      ),
    );
  }

  start() {
    this.window = new LogWindow((offset, limit) => getLog(this.id, this.rank, offset, limit));
    this.download.href = logAddress(this.id, this.rank);
    this.clear();
    this.guard(() => this.window.toEnd().then(() => this.drawAll(true)));
  }

  choose(rank) {
    this.rank = rank;
    this.setMode(true);
    this.start();
  }

  // --- the text

  /** Run one read at a time, and show its error. */
  async guard(action) {
    this.busy = true;
    try {
      await action();
    } catch (error) {
      announce(error.message, "error");
    }
    this.busy = false;
    this.drawPosition();
    if (this.wanted && !this.closed) {
      this.wanted = false;
      this.grow();
    }
  }

  drawAll(toBottom) {
    const text = this.window.pieces.map((piece) => piece.text).join("");
    fill(this.text, text || h("span.dim", {}, this.final ? "The log is empty." : "No output yet."));
    if (toBottom) this.text.scrollTop = this.text.scrollHeight;
    this.mark();
  }

  drawPosition() {
    const { begin, end, size: total } = this.window;
    const part = begin > 0 || end < total ? `${size(begin)} – ${size(end)} of ` : "";
    fill(this.position, total ? part + size(total) : "");
  }

  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.text;
    const bottom = scrollHeight - clientHeight - scrollTop;
    if (this.following && bottom > BOTTOM && scrollTop < this.lastTop) this.setMode(false);
    this.lastTop = scrollTop;
    if (this.busy) return;
    if (scrollTop < NEAR && this.window.begin > 0) this.guard(() => this.readEarlier());
    else if (bottom < NEAR && !this.window.atEnd) this.guard(() => this.readLater(false));
    else if (!this.following && bottom <= BOTTOM && this.window.atEnd) this.setMode(true);
  }

  async readEarlier() {
    const before = this.text.scrollHeight - this.text.scrollTop;
    if (!(await this.window.earlier())) return;
    const cut = this.text.scrollHeight;
    this.drawAll(false);
    // Keep the same line in view, although the window may have discarded text at its end.
    const added = this.height(this.window.pieces[0].text);
    this.text.scrollTop = cut - before + added;
  }

  async readLater(toBottom) {
    const first = this.window.pieces[0];
    if (!(await this.window.later())) return;
    const dropped = first && first !== this.window.pieces[0] ? this.height(first.text) : 0;
    const top = this.text.scrollTop;
    this.drawAll(toBottom);
    if (!toBottom) this.text.scrollTop = Math.max(0, top - dropped);
  }

  /** Return the height of a text in the log's style. */
  height(text) {
    const style = getComputedStyle(this.text);
    if (style.whiteSpace === "pre") return (text.split("\n").length - 1) * parseFloat(style.lineHeight);
    const probe = h("pre.log-text.log-probe", {}, text);
    probe.style.width = `${this.text.clientWidth}px`;
    this.text.after(probe);
    const found = probe.scrollHeight;
    probe.remove();
    return found;
  }

  // --- following

  setMode(following) {
    this.following = following;
    this.follow.checked = following;
  }

  setFollowing(following) {
    this.setMode(following);
    if (following) this.guard(() => this.window.toEnd().then(() => this.drawAll(true)));
  }

  toBeginning() {
    this.setMode(false);
    this.guard(async () => {
      await this.window.around(0);
      this.drawAll(false);
      this.text.scrollTop = 0;
      this.text.focus();
    });
  }

  /** Handle new sizes of the logs: `sizes` maps ranks to bytes. */
  sizes(sizes) {
    const total = sizes[this.rank];
    if (total === undefined) return;
    this.window.size = Math.max(total, this.window.size);
    this.drawPosition();
    if (this.following) this.grow();
  }

  grow() {
    if (this.busy) {
      this.wanted = true;
      return;
    }
    const behind = this.window.size - this.window.end;
    if (behind > 1 << 18) this.setFollowing(true);
    else if (behind > 0) this.guard(() => this.readLater(true)).then(() => !this.window.atEnd && this.following && !this.closed && this.again());
  }

  again() {
    if (this.following) setTimeout(() => !this.closed && this.grow(), 100);
  }

  facts(facts) {
    this.final = isFinal(facts.state);
  }

  key(event) {
    if (event.key === "End") this.setFollowing(true);
    else if (event.key === "Home") this.toBeginning();
    else return;
    event.preventDefault();
  }

  // --- search

  search() {
    this.field.focus();
  }

  clear() {
    this.searched = "";
    this.matches.hidden = true;
    this.abort?.abort();
    CSS.highlights?.delete("match");
  }

  async find(before = undefined) {
    const text = this.field.value;
    if (!text) return this.clear();
    this.abort?.abort();
    this.abort = new AbortController();
    this.matches.hidden = false;
    this.searched = text;
    if (before === undefined) {
      this.found = [];
      fill(this.matches, h("p.dim", { role: "status" }, "Searching …"));
    }
    try {
      const answer = await searchLog(this.id, this.rank, text, before, this.abort.signal);
      this.found = [...this.found, ...answer.matches];
      this.drawMatches(answer);
      if (before === undefined && answer.matches.length) this.jump(answer.matches[0].offset, 0);
    } catch (error) {
      if (error.name !== "AbortError") announce(error.message, "error");
    }
    return undefined;
  }

  drawMatches({ more, next }) {
    const total = this.found.length;
    fill(
      this.matches,
      h(
        "div.matches-head",
        {},
        h("p", { role: "status" }, total ? `${count(total, "line")}${more ? " so far" : ""}, the last one first` : more ? "Nothing so far" : "No line matches."),
        h("button.quiet", { onclick: () => this.clear() }, "Close"),
      ),
      h(
        "ol.match-list",
        {},
        this.found.map((match, place) =>
          h(
            "li",
            {},
            h(
              "button.match",
              { onclick: () => this.jump(match.offset, place) },
              h("span.match-line", {}, match.line.toLocaleString("en")),
              h("span.match-text", {}, match.text),
            ),
          ),
        ),
      ),
      more ? h("button", { onclick: () => this.find(next) }, "Search further back") : null,
    );
  }

  jump(offset, place) {
    this.setMode(false);
    [...this.matches.querySelectorAll(".match")].forEach((each, index) =>
      each.setAttribute("aria-current", String(index === place)),
    );
    this.guard(async () => {
      await this.window.around(offset);
      this.drawAll(false);
      this.reveal(offset);
    });
  }

  /** Scroll to a match: the occurrence nearest to the byte offset. */
  reveal(offset) {
    const { begin, end } = this.window;
    const expected = ((offset - begin) / Math.max(1, end - begin)) * this.text.textContent.length;
    const ranges = this.mark();
    if (!ranges.length) return;
    const distance = (range) => Math.abs(range.startOffset - expected);
    const best = ranges.reduce((a, b) => (distance(b) < distance(a) ? b : a));
    const place = best.getBoundingClientRect().top - this.text.getBoundingClientRect().top;
    this.text.scrollTop += place - this.text.clientHeight / 2;
  }

  /** Highlight the searched text in the window, and return its ranges. */
  mark() {
    const node = this.text.firstChild;
    const wanted = this.searched?.toLowerCase();
    const ranges = [];
    if (wanted && node?.nodeType === Node.TEXT_NODE) {
      const text = node.data.toLowerCase();
      for (let at = text.indexOf(wanted); at >= 0 && ranges.length < 5000; at = text.indexOf(wanted, at + wanted.length)) {
        const range = new Range();
        range.setStart(node, at);
        range.setEnd(node, Math.min(node.length, at + wanted.length));
        ranges.push(range);
      }
    }
    if (CSS.highlights && window.Highlight) CSS.highlights.set("match", new Highlight(...ranges));
    return ranges;
  }

  close() {
    this.closed = true;
    this.clear();
  }
}

/** Return the numbers of the processes with a log: the ranks, or all processes of an elastic run. */
function processes(facts) {
  if (!Array.isArray(facts.ranks)) return Array.from({ length: facts.ranks }, (_, rank) => String(rank));
  return facts.ranks.map((each) => each.process ?? each.rank).sort((a, b) => a - b).map(String);
}

function isElastic(facts) {
  return Boolean(facts.memberships?.length);
}

function rankCount(facts) {
  return facts.ranks.length ?? facts.ranks;
}
