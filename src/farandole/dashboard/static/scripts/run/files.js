// The files of a run, with previews of images, tables and text.

import { fileAddress, getFile, getFiles } from "../shared/api.js";
import { announce } from "../shared/announce.js";
import { fill, h, settled } from "../shared/dom.js";
import { moment, size } from "../shared/format.js";
import { isFinal } from "../runs/store.js";

const SHOWN = 500; // files in the list
const AGAIN = 5000; // milliseconds between two reads of an active run's list

export class FilesPart {
  constructor(place, facts) {
    this.id = facts.run_id;
    this.all = [];
    this.list = h("ul.file-list");
    this.note = h("p.dim", { role: "status" });
    this.preview = h("section.preview", { "aria-label": "Preview", tabindex: "-1" });
    this.field = h("input", {
      type: "search",
      placeholder: "Filter files",
      "aria-label": "Filter files",
      oninput: settled(() => this.draw(), 80),
    });
    fill(place, h("div.files", {}, h("div.files-side", {}, this.field, this.note, this.list), this.preview));
    this.read();
    this.last = Date.now();
  }

  async read() {
    try {
      const { files, more } = await getFiles(this.id);
      this.all = files;
      this.more = more;
      this.draw();
    } catch (error) {
      announce(error.message, "error");
    }
  }

  facts(facts) {
    if (isFinal(facts.state) && this.final) return;
    this.final = isFinal(facts.state);
    if (Date.now() - this.last < AGAIN && !this.final) return;
    this.last = Date.now();
    this.read();
  }

  draw() {
    const text = this.field.value.toLowerCase();
    const found = this.all.filter((file) => file.path.toLowerCase().includes(text));
    const hidden = found.length - SHOWN;
    fill(
      this.note,
      found.length ? "" : this.all.length ? "No file matches." : "No files yet.",
      hidden > 0 ? `${hidden} more files; filter to see them.` : "",
    );
    const focused = document.activeElement?.dataset?.path;
    fill(this.list, found.slice(0, SHOWN).map((file) => this.entry(file)));
    if (focused) this.button(focused)?.focus();
  }

  entry(file) {
    return h(
      "li",
      {},
      h(
        "button.file",
        {
          data: { path: file.path },
          "aria-current": String(file.path === this.open),
          onclick: () => this.show(file),
        },
        h("span.file-path", {}, file.path),
        h("span.file-size", {}, size(file.bytes)),
      ),
    );
  }

  button(path) {
    return [...this.list.querySelectorAll(".file")].find((each) => each.dataset.path === path);
  }

  async show(file) {
    this.open = file.path;
    for (const each of this.list.querySelectorAll(".file")) {
      each.setAttribute("aria-current", String(each.dataset.path === file.path));
    }
    let answer;
    try {
      answer = await getFile(this.id, file.path);
    } catch (error) {
      answer = { kind: "binary", note: error.message, ...file };
    }
    if (this.open === file.path) fill(this.preview, head(this.id, answer), body(this.id, answer));
  }

  search() {
    this.field.focus();
  }
}

function head(id, { path, bytes, modified, complete, note, kind }) {
  const part = complete === false && kind !== "binary" ? "the beginning is shown" : "";
  const remarks = [size(bytes), moment(modified), part, note].filter(Boolean).join(" · ");
  return h(
    "header.preview-head",
    {},
    h("h2", {}, path),
    h("p.dim", {}, remarks),
    h("a.button", { href: fileAddress(id, path), download: path.split("/").pop() }, "Download"),
  );
}

function body(id, answer) {
  if (answer.kind === "image") {
    const { width, height } = answer;
    return h("img.preview-image", {
      src: fileAddress(id, answer.path),
      alt: answer.path,
      width: width || null,
      height: height || null,
    });
  }
  if (answer.kind === "table") return table(answer);
  if (answer.kind === "text") return h("pre.preview-text", { tabindex: "0" }, answer.text);
  return h("p.dim", {}, "This file has no preview.");
}

function table({ columns, rows }) {
  return h(
    "div.table-scroll",
    { tabindex: "0", role: "region", "aria-label": "Table" },
    h(
      "table.plain",
      {},
      h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, cell))))),
    ),
  );
}
