"use strict";
// The page of a status port. The page asks for the state once a second, and draws the changes. The page asks no other
// host.

const EVERY_MS = 1000;
const ANSWER_MAX_MS = 5000;
const POINTS_MAX = 600;
// A chart shows a period of at least this many seconds.
const SECONDS_MIN = 60;
// If there are more loops than this number, loops without a problem are folded at first.
const OPEN_MAX = 4;

// Returns a metric of a loop. `part` is the value of the metric's label; without `part`, returns the sum of all parts.
// Null: there is no such metric.
function value(metrics, name, part) {
  const found = metrics[name];
  if (found === undefined || found === null) return null;
  if (typeof found === "number") return found;
  if (part !== undefined) return found[part] ?? null;
  const parts = Object.values(found);
  return parts.every((one) => typeof one === "number") ? parts.reduce((sum, one) => sum + one, 0) : null;
}

const gauge = (name, part) => (now) => value(now.metrics, name, part);

function rate(name, part) {
  return (now, before) => perSecond(now, before, (metrics) => value(metrics, name, part));
}

function perSecond(now, before, read) {
  if (!before) return null;
  const grown = read(now.metrics) - read(before.metrics);
  return read(now.metrics) !== null && grown >= 0 ? grown / (now.at - before.at) : null;
}

function histogram(metrics, name, part) {
  const found = metrics[name];
  return part === undefined ? found : found?.[part];
}

const calls = (name, part) => (now, before) => perSecond(now, before, (metrics) => histogram(metrics, name, part)?.count ?? null);

// Returns a quantile of the values that were recorded since the look before, times `scale`. The result is the upper
// bound of the bucket in which the quantile lies.
function quantile(share, name, part, scale) {
  return (now, before) => {
    const old = new Map(before ? histogram(before.metrics, name, part)?.buckets : []);
    const buckets = histogram(now.metrics, name, part)?.buckets ?? [];
    const came = buckets.map(([bound, count]) => [bound, count - (old.get(bound) ?? 0)]);
    const all = came.reduce((sum, [, count]) => sum + count, 0);
    let seen = 0;
    for (const [bound, count] of came) {
      seen += count;
      if (count > 0 && seen >= share * all) return bound === null ? null : bound * scale;
    }
    return null;
  };
}

const used = (now) => {
  const capacity = value(now.metrics, "pmnet_device_log_entries_capacity");
  return capacity ? (100 * value(now.metrics, "pmnet_device_log_entries_used")) / capacity : null;
};

// The charts. Each has a title, a metric without which the chart is left out, and series: [name, function].
const CHARTS = [
  ["Calls per second", "pmnet_front_call_seconds", [
    ["early writes", calls("pmnet_front_call_seconds", "early")], ["other writes", calls("pmnet_front_call_seconds", "write")],
    ["reads", calls("pmnet_front_call_seconds", "read")], ["head asked", calls("pmnet_front_call_seconds", "head")],
    ["store read", calls("pmnet_front_call_seconds", "store")]]],
  ["Time of a call, ms", "pmnet_front_call_seconds", [
    ["early p50", quantile(0.5, "pmnet_front_call_seconds", "early", 1e3)], ["early p99", quantile(0.99, "pmnet_front_call_seconds", "early", 1e3)],
    ["write p99", quantile(0.99, "pmnet_front_call_seconds", "write", 1e3)], ["read p99", quantile(0.99, "pmnet_front_call_seconds", "read", 1e3)],
    ["store read p99", quantile(0.99, "pmnet_front_call_seconds", "store", 1e3)]]],
  ["Commands per second", "pmnet_router_commands_total", [
    ["to one shard", rate("pmnet_router_commands_total", "one")], ["to all", rate("pmnet_router_commands_total", "all")],
    ["no such slot", rate("pmnet_router_commands_total", "cluster_down")], ["slot is moving", rate("pmnet_router_commands_total", "try_again")]]],
  ["Time of a command, ms", "pmnet_router_command_seconds", [
    ["one shard p50", quantile(0.5, "pmnet_router_command_seconds", "one", 1e3)], ["one shard p99", quantile(0.99, "pmnet_router_command_seconds", "one", 1e3)],
    ["all shards p99", quantile(0.99, "pmnet_router_command_seconds", "all", 1e3)]]],
  ["Reads per second, by who answered", "pmnet_front_reads_total", [
    ["own write", rate("pmnet_front_reads_total", "own_write")], ["head", rate("pmnet_front_reads_total", "head")],
    ["store", rate("pmnet_front_reads_total", "store")], ["through the chain", rate("pmnet_front_reads_total", "bypass")]]],
  ["Devices silent, seconds", "pmnet_front_unanswered_seconds", [["silent", gauge("pmnet_front_unanswered_seconds")]]],
  ["Clients", "pmnet_front_clients", [["clients", gauge("pmnet_front_clients")], ["sessions", gauge("pmnet_front_sessions")]]],
  ["Dropped per second", "pmnet_front_dropped_total", [
    ["packets", rate("pmnet_front_dropped_total")], ["not sent", rate("pmnet_front_send_problems_total")], ["sent again", rate("pmnet_front_resent_total")]]],
  ["Commands per second", "pmnet_memcached_commands_total", [
    ["set", rate("pmnet_memcached_commands_total", "set")], ["get, found", rate("pmnet_memcached_commands_total", "get_hit")],
    ["get, not found", rate("pmnet_memcached_commands_total", "get_miss")], ["errors", rate("pmnet_memcached_errors_total")]]],
  ["Devices silent, seconds", "pmnet_memcached_unanswered_seconds", [["silent", gauge("pmnet_memcached_unanswered_seconds")]]],
  ["Clients", "pmnet_memcached_clients", [["clients", gauge("pmnet_memcached_clients")]]],
  ["The store is behind, seconds", "pmnet_device_oldest_unapplied_seconds", [["oldest entry", gauge("pmnet_device_oldest_unapplied_seconds")]]],
  ["Updates per second", "pmnet_device_order", [
    ["logged", rate("pmnet_device_order", "last")], ["in every device", rate("pmnet_device_order", "committed")],
    ["applied", rate("pmnet_device_order", "applied")]]],
  ["Time until acknowledged, ms", "pmnet_device_acknowledged_seconds", [
    ["p50", quantile(0.5, "pmnet_device_acknowledged_seconds", undefined, 1e3)], ["p99", quantile(0.99, "pmnet_device_acknowledged_seconds", undefined, 1e3)],
    ["durable here p99", quantile(0.99, "pmnet_device_durable_seconds", undefined, 1e3)]]],
  ["Log in use, %", "pmnet_device_log_entries_used", [["used", used]]],
  ["Reads per second", "pmnet_device_reads_total", [["hit", rate("pmnet_device_reads_total", "hit")], ["miss", rate("pmnet_device_reads_total", "miss")]]],
  ["Dropped per second", "pmnet_device_dropped_total", [
    ["packets", rate("pmnet_device_dropped_total")], ["not sent", rate("pmnet_device_send_problems_total")], ["asked again", rate("pmnet_device_retransmissions_total")]]],
  ["In the kernel, packets per second", "pmnet_kernel_packets_total", [
    ["came", rate("pmnet_kernel_packets_total", "packets")], ["acknowledged", rate("pmnet_kernel_packets_total", "confirmed")],
    ["handed up", rate("pmnet_kernel_packets_total", "handed_up")]]],
  ["In the kernel, time, µs", "pmnet_kernel_took_seconds", [
    ["p50", quantile(0.5, "pmnet_kernel_took_seconds", undefined, 1e6)], ["p99", quantile(0.99, "pmnet_kernel_took_seconds", undefined, 1e6)]]],
  ["RDMA messages per second", "pmnet_verbs_messages_total", [["taken", rate("pmnet_verbs_messages_total", "taken")], ["waited", rate("pmnet_verbs_messages_total", "waited")]]],
  ["The store is behind, seconds", "pmnet_server_oldest_unapplied_seconds", [["oldest entry", gauge("pmnet_server_oldest_unapplied_seconds")]]],
  ["Of the server, per second", "pmnet_server_applied_total", [
    ["applied", rate("pmnet_server_applied_total")], ["executed", rate("pmnet_server_executed_total")],
    ["rejected", rate("pmnet_server_rejected_total")]]],
  ["Time of a step of the store, ms", "pmnet_server_store_seconds", [
    ["p50", quantile(0.5, "pmnet_server_store_seconds", undefined, 1e3)], ["p99", quantile(0.99, "pmnet_server_store_seconds", undefined, 1e3)]]],
  ["Received and not applied", "pmnet_server_unapplied_orders", [["updates", gauge("pmnet_server_unapplied_orders")]]],
  ["Etcd silent, seconds", "pmnet_controller_heard_seconds_ago", [["silent", gauge("pmnet_controller_heard_seconds_ago")]]],
  ["Looks at etcd per second", "pmnet_controller_looks_total", [
    ["answered", rate("pmnet_controller_looks_total", "answered")], ["failed", rate("pmnet_controller_looks_total", "failed")]]],
];

const whole = (number) => number.toLocaleString("en");
const seconds = (number) => `${number.toFixed(number < 10 ? 2 : 0)} s`;
const copies = (has, wants) => (metrics) => metrics[has] === undefined ? null : `${metrics[has]} (wanted: ${metrics[wants]})`;
const plain = (name, show) => (metrics) => metrics[name] === undefined ? null : show(metrics[name]);

// The tiles. Each has a name, and a function of metrics, labels and facts. If the function returns null, the tile is
// left out.
const TILES = [
  ["place in the chain", placeInChain],
  ["chain, from the head", (_, __, facts) => facts.chain?.length ? facts.chain.join(" → ") : null],
  ["copies", copies("pmnet_device_copies", "pmnet_device_copies_wanted")],
  ["copies of the last write", copies("pmnet_front_copies", "pmnet_front_copies_wanted")],
  ["copies on record", plain("pmnet_server_copies", whole)],
  ["the store is behind", plain("pmnet_device_oldest_unapplied_seconds", seconds)],
  ["not applied yet", plain("pmnet_device_unapplied_orders", whole)],
  ["log in use", (metrics) => { const share = used({ metrics }); return share === null ? null : `${share.toFixed(1)} %`; }],
  ["lease ends in", plain("pmnet_device_lease_seconds_left", seconds)],
  ["epoch", plain("pmnet_device_epoch", whole)],
  ["epoch on record", plain("pmnet_server_epoch", whole)],
  ["updates applied", plain("pmnet_server_applied_total", whole)],
  ["clients", plain("pmnet_front_clients", whole)],
  ["clients", plain("pmnet_memcached_clients", whole)],
  ["clients", plain("pmnet_router_clients", whole)],
  ["slots without a shard", plain("pmnet_router_slots_unserved", whole)],
  ["devices silent for", plain("pmnet_front_unanswered_seconds", seconds)],
  ["devices silent for", plain("pmnet_memcached_unanswered_seconds", seconds)],
  ["etcd silent for", plain("pmnet_controller_heard_seconds_ago", seconds)],
];

function placeInChain(metrics, labels, facts) {
  if (metrics.pmnet_device_serving === undefined) return null;
  if (!metrics.pmnet_device_serving) return "does not serve";
  const at = (facts.chain ?? []).indexOf(Number(labels.device));
  if (metrics.pmnet_device_head) return metrics.pmnet_device_copies === 1 ? "alone" : "head";
  return at < 0 ? "in the chain" : `${at + 1} of ${facts.chain.length}`;
}

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// One chart with its points.
class Chart {
  constructor([title, , series], parent) {
    this.reads = series.map(([, read]) => read);
    this.data = [[], ...series.map(() => [])];
    this.box = element("section", "chart");
    this.box.append(element("h3", "", title));
    parent.append(this.box);
    const axis = { stroke: () => colour("--quiet"), grid: { stroke: () => colour("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    this.plot = new uPlot({
      ...this.size(),
      cursor: { y: false, drag: { setScale: false } },
      scales: { x: { range: (_, min, max) => [Math.min(min, max - SECONDS_MIN), max] }, y: { range: (_, min, max) => [0, max > 0 ? max * 1.1 : 1] } },
      axes: [{ ...axis, size: 28, space: 70, values: (_, times) => times.map(clock) }, { ...axis, size: 52, values: (_, numbers) => numbers.map(short) }],
      series: [{ value: (_, at) => (at ? clock(at) : "") }, ...series.map(([label], at) => ({
        label, stroke: () => colour(`--s${at}`), width: 1.5, spanGaps: false, points: { show: false }, value: (_, number) => short(number) }))],
    }, this.data, this.box);
  }

  size() {
    return { width: Math.max(200, this.box.clientWidth - 20), height: 170 };
  }

  add(now, before) {
    this.data[0].push(now.time);
    this.reads.forEach((read, at) => this.data[at + 1].push(read(now, before)));
    if (this.data[0].length > POINTS_MAX) this.data.forEach((column) => column.shift());
    this.plot.setData(this.data);
    // While no pointer is over the chart, the legend shows the newest point.
    if (this.plot.cursor.idx === null || this.plot.cursor.idx === undefined) this.plot.setLegend({ idx: this.data[0].length - 1 });
    this.box.dataset.points = String(this.data[1].filter((number) => number !== null).length);
  }
}

const clock = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");

function short(number) {
  if (number === null || number === undefined) return "–";
  const steps = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];
  const step = steps.find(([from]) => Math.abs(number) >= from);
  if (step) return `${Number((number / step[0]).toPrecision(3))} ${step[1]}`;
  return String(Number(number.toPrecision(3)));
}

// One loop with its notes, tiles and charts.
class Loop {
  constructor(loop, parent, isOpen) {
    this.box = element("details", "loop");
    this.box.open = isOpen;
    const summary = element("summary");
    const labels = Object.entries(loop.labels).map(([key, text]) => `${key} ${text}`);
    this.state = element("span");
    summary.append(element("h2", "", labels.join(", ") || "process"), " ", this.state);
    this.notes = element("div");
    this.tiles = element("div", "tiles");
    this.grid = element("div", "charts");
    this.box.append(summary, this.notes, this.tiles, this.grid);
    parent.append(this.box);
    this.charts = new Map();
    this.before = null;
    this.box.addEventListener("toggle", () => this.resize());
  }

  show(loop, now) {
    this.state.className = loop.ready ? "good" : "bad";
    this.state.textContent = loop.ready ? "ready" : "not ready";
    this.notes.replaceChildren(...loop.reasons.map((reason) => note(`Not ready: ${reason}`)), ...loop.advice.map(({ text, alert }) => note(text, alert)));
    const tiles = TILES.map(([name, read]) => [name, read(loop.metrics, loop.labels, loop.facts)]);
    this.tiles.replaceChildren(...tiles.filter(([, text]) => text !== null).map(([name, text]) => tile(name, text)));
    for (const chart of CHARTS.filter(([, needs]) => loop.metrics[needs] !== undefined)) {
      if (!this.charts.has(chart)) this.charts.set(chart, new Chart(chart, this.grid));
    }
    const point = { ...now, metrics: loop.metrics };
    for (const chart of this.charts.values()) chart.add(point, this.before);
    this.before = point;
  }

  resize() {
    for (const chart of this.charts.values()) chart.plot.setSize(chart.size());
  }
}

function tile(name, text) {
  const made = element("div", "tile");
  made.append(element("b", "", text), element("span", "", name));
  return made;
}

function note(text, alert) {
  const made = element("p", "note");
  made.append(alert ? element("b", "", text) : text);
  if (alert) made.append(element("span", "", `What to do: docs/operate/alerts.md, ${alert}`));
  return made;
}

const loops = new Map();
let pid = null;

function show(state) {
  const now = { at: performance.now() / 1000, time: Date.now() / 1000 };
  const parent = document.getElementById("loops");
  document.title = `pmnet ${state.role}${state.ready ? "" : ": not ready"}`;
  document.getElementById("title").textContent = `pmnet ${state.role}`;
  said(state.ready, `${state.ready ? "ready" : "not ready"} · up ${whole(state.uptime_seconds)} s · ${state.version} (${state.commit.slice(0, 12)}) · pid ${state.pid}`);
  if (state.pid !== pid) {
    // The state comes from a new process, whose counters began at zero.
    pid = state.pid;
    loops.forEach((loop) => { loop.before = null; });
  }
  const names = new Set();
  for (const loop of state.loops) {
    const name = JSON.stringify(loop.labels);
    names.add(name);
    if (!loops.has(name)) loops.set(name, new Loop(loop, parent, state.loops.length <= OPEN_MAX || !loop.ready));
    loops.get(name).show(loop, now);
  }
  for (const [name, loop] of loops) {
    if (!names.has(name)) {
      loop.box.remove();
      loops.delete(name);
    }
  }
}

function said(isWell, text) {
  const state = document.getElementById("state");
  state.className = `state ${isWell ? "good" : "bad"}`;
  state.textContent = text;
}

async function turn() {
  try {
    const answer = await fetch("/api/v1/status", { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MAX_MS) });
    if (!answer.ok) throw new Error(`it answers ${answer.status}`);
    show(await answer.json());
  } catch (error) {
    said(false, `The process does not answer (${error.message}). What to do: docs/operate/alerts.md, PmnetDown`);
  }
  setTimeout(turn, EVERY_MS);
}

const each = (act) => loops.forEach((loop) => loop.charts.forEach(act));
window.addEventListener("resize", () => loops.forEach((loop) => loop.resize()));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => each((chart) => chart.plot.redraw()));
turn();
