// Events of a timeline in the Trace Event Format, as lanes of spans.

/** Return {lanes, begin, end, totals}. A lane has a `name` and `spans` of {name, begin, end, depth}
 * in microseconds; `totals` has the number and the sum of each activity. */
export function lanesOf(events) {
  const names = new Map();
  const threads = new Map();
  const lanes = new Map();
  const open = new Map();
  let begin = Infinity;
  let end = -Infinity;
  const lane = (event) => {
    const key = `${event.pid} ${event.tid ?? 0}`;
    if (!lanes.has(key)) lanes.set(key, { pid: event.pid, key, spans: [], depth: 0 });
    return lanes.get(key);
  };
  const add = (event, name, from, to, depth) => {
    const place = lane(event);
    place.spans.push({ name, begin: from, end: to, depth, args: event.args });
    place.depth = Math.max(place.depth, depth);
    begin = Math.min(begin, from);
    end = Math.max(end, to);
  };
  for (const event of events) {
    if (event.ph === "M") {
      if (event.name === "process_name") names.set(event.pid, event.args?.name);
      if (event.name === "thread_name") threads.set(`${event.pid} ${event.tid ?? 0}`, event.args?.name);
    } else if (event.ph === "X") add(event, event.name, event.ts, event.ts + (event.dur ?? 0), 0);
    else if (event.ph === "B") stack(open, event).push(event);
    else if (event.ph === "E") {
      const waiting = stack(open, event);
      const started = waiting.pop();
      if (started) add(started, started.name, started.ts, event.ts, waiting.length);
    }
  }
  const found = [...lanes.values()];
  for (const each of found) {
    const process = names.get(each.pid) ?? `${each.pid}`;
    const thread = threads.get(each.key);
    each.name = thread ? `${process} · ${thread}` : process;
    each.spans.sort((a, b) => a.depth - b.depth || a.begin - b.begin);
  }
  return { lanes: found, begin, end, totals: totals(found) };
}

function stack(open, event) {
  const key = `${event.pid} ${event.tid ?? 0}`;
  if (!open.has(key)) open.set(key, []);
  return open.get(key);
}

function totals(lanes) {
  const found = new Map();
  for (const { spans } of lanes) {
    for (const { name, begin, end } of spans) {
      const entry = found.get(name) ?? { name, count: 0, total: 0, longest: 0 };
      entry.count += 1;
      entry.total += end - begin;
      entry.longest = Math.max(entry.longest, end - begin);
      found.set(name, entry);
    }
  }
  // Marks without a duration, such as the ranks' ticks in a negotiation, are not activities.
  return [...found.values()].filter(({ total }) => total > 0).sort((a, b) => b.total - a.total);
}

/** Return microseconds in readable form. */
export function span(microseconds) {
  if (microseconds >= 1e6) return `${(microseconds / 1e6).toFixed(2)} s`;
  if (microseconds >= 1e3) return `${(microseconds / 1e3).toFixed(2)} ms`;
  return `${microseconds.toFixed(0)} µs`;
}
