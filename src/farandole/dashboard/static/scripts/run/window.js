// A window on a log of any size: the pieces around the reader's position, never the whole log.

const PIECE = 1 << 16; // bytes
const MOST = 1 << 19; // bytes in memory
const LONGEST = 2000; // characters after which a line is folded

/** The text of a log from `begin` to `end`, in bytes; `size` is the log's current size. */
export class LogWindow {
  /** `read(offset, limit)` resolves to {text, begin, end, size}. */
  constructor(read) {
    this.read = read;
    this.pieces = [];
    this.size = 0;
  }

  get begin() {
    return this.pieces[0]?.begin ?? 0;
  }

  get end() {
    return this.pieces[this.pieces.length - 1]?.end ?? 0;
  }

  get atEnd() {
    return this.end >= this.size;
  }

  /** Restart at the end of the log. */
  async toEnd() {
    return this.replace(await this.read(-PIECE, PIECE));
  }

  /** Restart with the pieces around an offset. */
  async around(offset) {
    return this.replace(await this.read(Math.max(0, offset - PIECE / 2), PIECE));
  }

  replace(piece) {
    this.size = piece.size;
    this.pieces = [cleaned(piece)];
    return piece;
  }

  /** Read the text before the window. Return the new piece, or null at the log's beginning. */
  async earlier() {
    if (this.begin <= 0) return null;
    const from = Math.max(0, this.begin - PIECE);
    const piece = cleaned(await this.read(from, this.begin - from));
    if (piece.end <= piece.begin) return null;
    this.pieces.unshift(piece);
    while (this.end - this.begin > MOST) this.pieces.pop();
    return piece;
  }

  /** Read the text after the window. Return the new piece, or null if there is none. */
  async later() {
    const answer = await this.read(this.end, PIECE);
    this.size = answer.size;
    if (answer.size < this.end) return this.replace(await this.read(-PIECE, PIECE)); // a new log
    if (answer.end <= this.end) return null;
    const piece = cleaned(answer);
    this.pieces.push(piece);
    while (this.end - this.begin > MOST) this.pieces.shift();
    return piece;
  }
}

function cleaned(piece) {
  return { ...piece, text: piece.text.split("\n").map(shownLine).join("\n") };
}

/** Return a line in its final state on a terminal: a progress bar shows its last state. */
function shownLine(line) {
  const end = line.endsWith("\r") ? line.length - 1 : line.length;
  const kept = line.slice(line.lastIndexOf("\r", end - 1) + 1, end);
  if (kept.length <= LONGEST) return kept;
  const parts = [];
  for (let place = 0; place < kept.length; place += LONGEST) parts.push(kept.slice(place, place + LONGEST));
  return parts.join("\n");
}
