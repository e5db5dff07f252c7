// Requests to the server, and its events.

const RETRY = 1500; // milliseconds between two connection attempts

async function request(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not respond. Is farandole dashboard still running?");
  }
  const data = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(data.error ?? `The server answered ${answer.status} to ${path}.`);
  return data;
}

function query(values) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== undefined && each !== null && each !== "") found.append(name, each);
    }
  }
  return found.toString();
}

function runPath(id, rest = "", values = {}) {
  const parameters = query(values);
  return `/api/run/${encodeURIComponent(id)}${rest}${parameters ? `?${parameters}` : ""}`;
}

/** Return the rows newer than `version`; all rows if it is null. */
export function getRuns(version) {
  return request(`/api/runs?since=${version ?? 0}`);
}

/** Return the facts about a run. */
export function getRun(id) {
  return request(runPath(id));
}

/** Return curves of runs: a list of {run, name, rank, x, y, min, max, total}. */
export async function getSeries(runs, { names, ranks, axis, range, points }, signal) {
  const [from, to] = range ?? [];
  const values = query({ run: runs, name: names, rank: ranks, x: axis, from, to, points });
  return (await request(`/api/series?${values}`, { signal })).series;
}

/** Return a piece of a log: {text, begin, end, size}. A negative offset counts from the end. */
export function getLog(id, rank, offset, limit) {
  return request(runPath(id, "/log", { rank, offset, limit }));
}

/** Search a log backwards from `before`: {matches, more, next}. */
export function searchLog(id, rank, text, before, signal) {
  return request(runPath(id, "/log/search", { rank, text, before, ignore_case: 1 }), { signal });
}

/** Return the files of a run: {files, more}. */
export function getFiles(id) {
  return request(runPath(id, "/files"));
}

/** Return the preview of a file. */
export function getFile(id, path) {
  return request(runPath(id, "/file", { path }));
}

/** Return the address of a file itself. */
export function fileAddress(id, path) {
  return runPath(id, "/file", { path, raw: 1 });
}

/** Return the address of a whole log. */
export function logAddress(id, rank) {
  return runPath(id, "/log/raw", { rank });
}

/** Return a run's timeline: {files, events, complete}. */
export function getTimeline(id) {
  return request(runPath(id, "/timeline"));
}

/** Return the comparison of runs. */
export function getComparison(ids) {
  return request(`/api/compare?${query({ runs: ids.join(",") })}`);
}

let session = null;

/** Change a run: `action` is "stop" or "rerun". */
export async function act(id, action) {
  session ??= await request("/api/session");
  return request(runPath(id, `/${action}`), {
    method: "POST",
    headers: { "X-Farandole-Token": session.post_token },
  });
}

/** Listen to the events of all runs, and of the run `run` unless it is null.
 *
 * `handlers` maps the names of events to functions of their data. Its function `opened` is called
 * after each connection, because earlier events may have been missed. A hidden page closes its
 * connection, because browsers allow six per server. Returns a function that closes the connection.
 */
export function listen(run, handlers) {
  let source = null;
  let timer = 0;
  const { opened, ...events } = handlers;
  const disconnect = () => {
    clearTimeout(timer);
    source?.close();
    source = null;
  };
  const connect = () => {
    disconnect();
    source = new EventSource(run ? `/api/events?${query({ run })}` : "/api/events");
    for (const [name, handler] of Object.entries(events)) {
      source.addEventListener(name, (event) => handler(JSON.parse(event.data)));
    }
    source.onopen = () => {
      document.body.dataset.connection = "open";
      opened?.();
    };
    source.onerror = () => {
      document.body.dataset.connection = "lost";
      disconnect();
      timer = setTimeout(connect, RETRY);
    };
  };
  const visibility = () => {
    if (document.hidden) disconnect();
    else if (!source) connect();
  };
  document.addEventListener("visibilitychange", visibility);
  visibility();
  return () => {
    document.removeEventListener("visibilitychange", visibility);
    disconnect();
  };
}
