// The rules with this member's totals, and their versions.

import { h, svg, put, attr, list, visible, putKey, count, rate, percent, putAgo, short, chip, putChip, byId, per } from "./dom.js";

const most = 500; // rows in the table

/** Speeds computes rates of increasing counters, by name. */
export class Speeds {
  constructor(keep = 60) {
    this.keep = keep;
    this.at = new Map();
  }

  /** add records a counter's value at a time in milliseconds and returns its rate per second, smoothed over a few seconds. */
  add(name, value, now) {
    const s = this.at.get(name) ?? { points: [], rates: [] };
    this.at.set(name, s);
    const last = s.points.at(-1);
    if (last && value < last.value) s.points.length = 0; // the member has restarted
    if (!s.points.length || now - last.now > 400) {
      s.points.push({ value, now });
      if (s.points.length > 5) s.points.shift();
      if (s.points.length > 1) s.rates.push(slope(s.points));
      if (s.rates.length > this.keep) s.rates.shift();
    }
    return slope(s.points);
  }

  /** rates returns the last rates, oldest first. */
  rates(name) {
    return this.at.get(name)?.rates ?? [];
  }
}

/** slope returns the increase per second from the first point to the last. */
function slope(points) {
  const [first, last] = [points[0], points.at(-1)];
  return last.now > first.now ? (1000 * (last.value - first.value)) / (last.now - first.now) : 0;
}

/** spark returns the paths of a line of rates and the area below it, in a box of 120 by 28. */
export function spark(node, rates, keep = 60) {
  const top = Math.max(...rates, 1e-9);
  const x = (i) => (120 * (keep - rates.length + i + 1)) / keep;
  const line = rates.map((r, i) => `${x(i).toFixed(1)} ${(26 - 23 * (r / top)).toFixed(1)}`).join("L");
  if (!node.firstChild) node.append(svg("path", { class: "area" }), svg("path", { class: "line", fill: "none" }));
  const [area, stroke] = node.children;
  attr(stroke, "d", rates.length > 1 ? `M${line}` : null);
  attr(area, "d", rates.length > 1 ? `M${x(0).toFixed(1)} 28L${line}L120 28Z` : null);
}

/** sum returns the sum of the rules' totals. */
export function sum(tree, field) {
  let n = 0;
  for (const d of tree?.domains ?? []) for (const r of d.rules) n += r[field] ?? 0;
  return n;
}

const speeds = new Speeds(2);

/** drawRules fills the table. open is called with a domain and a rule's path. */
export function drawRules(tree, filter, open) {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = [];
  let all = 0;
  for (const d of tree?.domains ?? []) {
    const rules = d.rules.filter((r) => {
      const text = `${d.domain} ${r.path.join(" ")} ${r.name ?? ""} ${r.algorithm} ${r.mechanism} ${r.file}`.toLowerCase();
      return words.every((w) => text.includes(w));
    });
    all += d.rules.length;
    if (rules.length === 0 && words.length) continue;
    rows.push({ head: d.domain, n: d.rules.length });
    let before = [];
    for (const r of rules) {
      rows.push({ ...r, domain: d.domain, shared: common(before, r.path) });
      before = r.path;
    }
  }
  list(byId("rules"), rows.slice(0, most), (r) => (r.head === undefined ? `rule ${r.domain}\n${r.path.join("\n")}\n${r.line}` : `domain ${r.head}`),
    (r) => (r.head === undefined ? newRule(open) : h("tr", { class: "domain" }, h("th", { colspan: 6, scope: "rowgroup" }))),
    (row, r) => (r.head === undefined ? updateRule(row, r) : updateHead(row, r)));
  const left = (tree?.left_out ?? 0) + Math.max(0, rows.length - most);
  const fault = tree === null ? "This process answers no calls, so it has no rules of its own." : "";
  put(byId("rules-note"), fault || (tree && all === 0 ? "No rule is in force." : left ? `${count(left)} more are not shown: see /v1/rules and the files.` : ""));
}

function common(a, b) {
  let n = 0;
  while (n < a.length && n < b.length - 1 && a[n] === b[n]) n++;
  return n;
}

function updateHead(row, r) {
  const th = row.firstChild;
  if (!th.firstChild) th.append(h("bdi"), h("span", { class: "muted small" }));
  put(th.firstChild, visible(r.head, 200));
  put(th.lastChild, ` ${r.n} rule${r.n === 1 ? "" : "s"}`);
}

function newRule(open) {
  const c = { path: h("span", { class: "path" }), limit: h("span"), how: h("div", { class: "chips" }), hits: h("span"), over: h("span"), now: h("span") };
  const row = h("tr", { class: "rule" });
  const button = h("button", { type: "button", class: "link", title: "Explain a key of this rule", on: { click: () => open(row.item.domain, row.item.path) } }, c.path);
  c.bar = svg("rect", { height: 4, rx: 2 });
  c.meter = svg("svg", { class: "bar over", viewBox: "0 0 40 4", width: 40, height: 4, "aria-hidden": "true" }, svg("rect", { class: "track", width: 40, height: 4, rx: 2 }), c.bar);
  row.append(h("th", { scope: "row" }, button), h("td", { class: "limit" }, c.limit), h("td", null, c.how), h("td", { class: "num" }, c.hits), h("td", { class: "num" }, c.over, c.meter), h("td", { class: "num" }, c.now));
  row.parts = c;
  return row;
}

function updateRule(row, r) {
  row.item = r;
  const c = row.parts;
  const stamp = JSON.stringify([r.path, r.shared, r.file, r.line]);
  if (c.path.dataset.is !== stamp) {
    c.path.replaceChildren();
    r.path.forEach((part, i) => {
      const bdi = h("bdi", { class: i < r.shared ? "muted" : "" });
      putKey(bdi, part);
      c.path.append(...(i ? [h("span", { class: "sep", "aria-hidden": "true" }, "\u203a")] : []), bdi);
    });
    attr(row.firstChild, "title", `${r.key}\n${r.file}${r.line ? `:${r.line}` : ""}`);
    c.path.dataset.is = stamp;
  }
  put(c.limit, r.unlimited ? "unlimited" : `${count(r.limit)} ${per(r.window, r.unit)}`);
  const how = chips(r);
  if (c.how.dataset.is !== JSON.stringify(how)) c.how.replaceChildren(...how.map(([text, tone, title]) => chip(text, tone, title)));
  c.how.dataset.is = JSON.stringify(how);
  const known = r.total_hits !== undefined;
  const name = `${r.domain}\n${r.path.join("\n")}\n${r.line}`;
  const speed = known ? speeds.add(name, r.total_hits, performance.now()) : 0;
  put(c.hits, known ? count(r.total_hits) : "by key");
  attr(c.hits, "title", known ? null : "Its statistics are kept for each value: see /metrics");
  attr(c.hits, "class", known ? null : "muted");
  const part = known && r.total_hits ? Math.min(1, r.over_limit / r.total_hits) : 0;
  put(c.over, known ? (r.over_limit ? `${count(r.over_limit)}, ${percent(part)}` : "0") : "");
  attr(c.meter, "class", part > 0 ? "bar over" : "bar over none");
  attr(c.bar, "width", 40 * part);
  put(c.now, known ? `${rate(speed)} /s` : "");
}

/** chips returns the settings that differ from the defaults: [text, tone, title]. */
function chips(r) {
  const out = [];
  const say = (text, tone = "", title = "") => out.push([text, tone, title]);
  if (r.shadow) say("shadow", "warn", "Counted, not enforced");
  if (r.quota) say("quota", "warn", "quota_mode");
  if (r.algorithm !== "fixed_window") say(r.algorithm.replaceAll("_", " "));
  if (r.burst) say(`burst ${count(r.burst)}`);
  if (r.mechanism !== "owner") say(r.mechanism, "info");
  if (r.holds) say("holds", "info", `Charges that may be given back: ${r.holds}`);
  if (r.fair) say("fair", "info", `The limit is divided between tenants: ${r.fair}`);
  if (r.partition) say(`partition ${r.partition}`, "", "What a part of a partitioned cluster admits");
  if (r.degraded !== "local_share") say(r.degraded.replaceAll("_", " "), "", "Degraded policy: applies while the key's owner is unreachable");
  if (r.durability === "strict") say("strict", "", "A charge is answered when the successor has confirmed it");
  if (r.name) say(visible(r.name, 40), "", "Name by which other rules replace it");
  return out;
}

/** drawVersions shows the last ten versions, newest first, and the last error. */
export function drawVersions(rules) {
  list(byId("rules-error"), rules.last_error ? [rules.last_error] : [], (e) => e, (e) => h("pre", { class: "bad" }, visible(e, 4000)), () => {});
  list(byId("versions"), rules.versions, (v) => `${v.hash} ${v.prepared}`, newVersion, (row, v) => {
    const [, state, read, inForce] = row.children;
    const live = v.hash === rules.in_force && !v.until;
    const name = v.state || (live ? "in force" : "");
    putChip(state.firstChild, v.reason === "timeout" ? `${name} (timeout)` : name || "\u2013", live || v.state === "in force" ? "good" : v.state === "prepared" ? "info" : "", v.reason ? `came into force: ${v.reason}` : "");
    putAgo(read.firstChild, v.prepared);
    putAgo(inForce.firstChild, v.in_force);
  });
}

function newVersion(v) {
  const from = h("bdi", { class: "muted" });
  putKey(from, v.source);
  return h("tr", null, h("th", { scope: "row" }, h("code", { title: v.hash }, short(v.hash))), h("td", null, chip("")), h("td", null, h("time")), h("td", null, h("time")), h("td", null, from));
}
