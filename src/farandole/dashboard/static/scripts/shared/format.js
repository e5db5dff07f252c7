// Numbers, times and sizes in readable form.

/** Return a duration such as "8.0 s", "2:05 min", "3:12 h" or "4 d 03 h". */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !isFinite(seconds)) return "";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 100) return `${seconds.toFixed(0)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 100) return `${minutes}:${two(Math.floor(seconds % 60))} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 100) return `${hours}:${two(minutes % 60)} h`;
  return `${Math.floor(hours / 24)} d ${two(hours % 24)} h`;
}

function two(number) {
  return String(number).padStart(2, "0");
}

/** Return a time relative to now, such as "5 min ago"; a date if it is older than a week. */
export function ago(time, now = Date.now() / 1000) {
  if (!time) return "";
  const passed = Math.max(0, now - time);
  if (passed < 60) return "just now";
  if (passed < 3600) return `${Math.floor(passed / 60)} min ago`;
  if (passed < 86400) return `${Math.floor(passed / 3600)} h ago`;
  if (passed < 7 * 86400) return `${Math.floor(passed / 86400)} d ago`;
  return moment(time).slice(0, 10);
}

/** Return a local time to the second: "2026-11-28 10:41:07". */
export function moment(time) {
  if (!time) return "";
  const date = new Date(time * 1000);
  if (isNaN(date)) return "?";
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** Return a number of bytes in the largest fitting unit. */
export function size(bytes) {
  if (bytes === null || bytes === undefined) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  let amount = bytes;
  while (amount >= 1024 && place < units.length - 1) {
    amount /= 1024;
    place += 1;
  }
  return place ? `${amount.toFixed(1)} ${units[place]}` : `${amount} B`;
}

/** Return a value of a metric with four significant digits. */
export function number(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  if (!isFinite(value) || Number.isInteger(value)) {
    return Math.abs(value) < 1e7 || !isFinite(value) ? String(value) : value.toExponential(3);
  }
  const amount = Math.abs(value);
  if (amount >= 1e6 || amount < 1e-3) return value.toExponential(3);
  return String(Number(value.toPrecision(4)));
}

/** Return a count with its noun: "1 run", "12 runs". */
export function count(amount, noun) {
  return `${amount.toLocaleString("en")} ${noun}${amount === 1 ? "" : "s"}`;
}

/** Return any value of a run's facts as text. */
export function text(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return number(value);
  if (Array.isArray(value) && value.every((each) => typeof each !== "object")) return value.join(" ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
