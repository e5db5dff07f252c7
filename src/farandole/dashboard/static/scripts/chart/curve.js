// The points of one curve, bounded in number, and its rows in a chart.

/** A curve reduced by the server, with appended live points. */
export class Curve {
  /** `answer` has x, y and, if the server merged points, min and max of each. */
  constructor(answer, origin = 0) {
    this.x = origin ? answer.x.map((value) => value - origin) : answer.x.slice();
    this.y = answer.y.slice();
    const merged = answer.min?.length > 0;
    this.low = merged ? answer.min.slice() : null;
    this.high = merged ? answer.max.slice() : null;
    this.total = answer.total ?? this.x.length;
    this.notFinite = answer.not_finite ?? 0;
  }

  get length() {
    return this.x.length;
  }

  get last() {
    return this.y[this.y.length - 1];
  }

  /** Append a point. Return false if it precedes the last point: the curve must be reread. */
  append(x, y) {
    if (this.length && x < this.x[this.length - 1]) return false;
    if (this.length && x === this.x[this.length - 1]) {
      this.y[this.length - 1] = y;
      return true;
    }
    this.x.push(x);
    this.y.push(y);
    this.low?.push(y);
    this.high?.push(y);
    this.total += 1;
    this.notFinite += y === null ? 1 : 0;
    return true;
  }
}

/** Return an exponential moving average, without the bias of its first values.
 *
 * `weight` is the weight of earlier values, from 0 (no smoothing) to less than 1. Missing values stay
 * missing.
 */
export function smoothed(values, weight) {
  if (!weight) return values;
  let average = 0;
  let correction = 1;
  return values.map((value) => {
    if (value === null || value === undefined) return value;
    average = weight * average + (1 - weight) * value;
    correction *= weight;
    return average / (1 - correction);
  });
}

/** Rows of a chart for each curve: the line, the smallest and the largest values, the raw values. */
export const ROWS = 4;

/** Return the rows of a curve. Values that a logarithmic axis cannot show are missing. */
export function rowsOf(curve, weight, logarithmic) {
  const shown = (values) =>
    logarithmic && values ? values.map((value) => (value > 0 ? value : null)) : values;
  const none = new Array(curve.length).fill(null);
  const line = shown(smoothed(curve.y, weight));
  const raw = weight ? shown(curve.y) : none;
  return [line, shown(curve.low) ?? none, shown(curve.high) ?? none, raw];
}
