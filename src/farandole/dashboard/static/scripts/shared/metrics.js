// The order of metrics: the best measures of a model's quality come first.

const VALIDATION = /(^|[/_. -])(val|valid|validation|eval|evaluation|test|dev)([/_. -]|$)/i;
const QUALITY = /acc|auc|f1|score|loss|error/i;
const SETTING = /rate|^lr$|epoch|momentum/i;

function rank(name) {
  return (VALIDATION.test(name) ? 0 : 2) + (QUALITY.test(name) ? 0 : 1) + (SETTING.test(name) ? 4 : 0);
}

/** Compare two names of metrics for a sort. */
export function byImportance(a, b) {
  return rank(a) - rank(b) || (a < b ? -1 : a > b ? 1 : 0);
}
