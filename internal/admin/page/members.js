// The members and their health.

import { h, svg, put, attr, list, visible, percent, short, span, clock, chip, putChip, byId } from "./dom.js";
import { color } from "./colors.js";

const remember = 10 * 60; // seconds for which a member that has gone stays in the table

const tones = { active: "good", joining: "info", leaving: "warn", left: "", lost: "bad" };

/** gone returns the members that have left or failed recently, from the timeline: {id, state, since}. */
export function gone(cluster, events) {
  const live = new Set(cluster.members.filter((m) => m.role === "member").map((m) => m.id));
  const seen = new Map();
  for (const e of events) { // newest first
    if (e.kind !== "member" || !e.state || seen.has(e.member)) continue;
    seen.set(e.member, e);
  }
  return [...seen.values()]
    .filter((e) => (e.state === "lost" || e.state === "left") && !live.has(e.member) && clock.now() - Date.parse(e.time) < 1000 * remember)
    .map((e) => ({ id: e.member, role: "member", state: e.state, since: e.time }));
}

/** rows returns the rows of the table. */
function rows(state) {
  const { cluster, ring, self, timeline } = state;
  const shares = new Map((ring?.members ?? []).map((m) => [m.id, m.share]));
  const all = [...cluster.members, ...gone(cluster, timeline?.events ?? [])];
  return all.map((m) => ({
    ...m, me: m.id === cluster.self && m.inst === cluster.inst, share: m.role === "member" ? shares.get(m.id) : undefined,
    offset: self?.clock_offsets_seconds?.[m.id], version: m.id === cluster.self ? cluster.version : "",
  })).sort((a, b) => rank(a) - rank(b) || a.id.localeCompare(b.id));

  // Sorted by name; in a long list, members with problems come first.
  function rank(m) {
    if (m.role !== "member") return 2;
    const well = m.state === "active" && m.ring === cluster.ring.fingerprint && m.rules?.in_force === cluster.rules.in_force;
    return all.length > 12 && !well ? 0 : 1;
  }
}

/** drawMembers fills the table. pick is called with the name of the member under the pointer, or null. */
export function drawMembers(state, pick) {
  const all = rows(state);
  // With many members, each share is small: bars are relative to the largest.
  const most = all.length > 8 ? Math.max(...all.map((m) => m.share ?? 0)) : 1;
  list(byId("members"), all, (m) => `${m.role} ${m.id} ${m.inst ?? "gone"}`, (m) => newRow(m, pick), (row, m) => updateRow(row, m, state.cluster, most));
}

function newRow(m, pick) {
  const cells = {
    name: h("bdi", { class: "name" }), you: h("span", { class: "muted small" }), state: chip(""), bar: svg("rect", { height: 6, rx: 3 }), share: h("span"),
    ring: chip(""), rules: chip(""), offset: h("span"), protocol: h("span"),
  };
  cells.dot = h("span", { class: "swatch", "aria-hidden": "true" });
  cells.meter = svg("svg", { class: "bar", viewBox: "0 0 60 6", width: 60, height: 6, "aria-hidden": "true" }, svg("rect", { class: "track", width: 60, height: 6, rx: 3 }), cells.bar);
  const name = h("button", { type: "button", class: "member", on: { focus: () => pick(m.id), blur: () => pick(null) } }, cells.dot, cells.name);
  const row = h("tr", { on: { pointerenter: () => pick(m.id), pointerleave: () => pick(null) } },
    h("th", { scope: "row" }, name, cells.you), h("td", null, cells.state), h("td", { class: "share" }, cells.meter, cells.share),
    h("td", null, cells.ring), h("td", null, cells.rules), h("td", { class: "num" }, cells.offset), h("td", { class: "num" }, cells.protocol));
  row.cells_ = cells;
  return row;
}

function updateRow(row, m, cluster, most) {
  const c = row.cells_;
  const counts = m.role === "member";
  row.dataset.member = counts ? m.id : "";
  const front = row.classList.contains("front") ? " front" : "";
  attr(row, "class", (counts ? color(m.id) : "observer") + front);
  put(c.name, visible(m.id, 128));
  attr(c.name, "title", m.peer ? `${visible(m.id, 128)} at ${m.peer}` : visible(m.id, 128));
  put(c.you, m.me ? `this one, ${m.version || "no version"}` : "");
  if (counts) putChip(c.state, m.since ? `${m.state} ${span((clock.now() - Date.parse(m.since)) / 1000)} ago` : m.state, tones[m.state]);
  else putChip(c.state, "observer", "", "An xDS server: it observes and counts nothing");
  attr(c.bar, "width", (60 * (m.share ?? 0)) / (most || 1));
  attr(c.meter, "class", m.share === undefined ? "bar none" : "bar");
  put(c.share, m.share === undefined ? "\u2013" : percent(m.share));
  agreement(c.ring, m.ring, cluster.ring.fingerprint, counts && m.state === "active", "ring");
  agreement(c.rules, m.rules?.in_force, cluster.rules.in_force, counts && !m.since && m.state !== "leaving", "rules");
  put(c.offset, m.me ? "0 ms" : offset(m.offset));
  put(c.protocol, m.protocol?.replace(/^(\d+)-\1$/, "$1").replace("-", "\u2013") ?? "\u2013");
}

function offset(seconds) {
  if (seconds === undefined) return "\u2013";
  const ms = 1000 * seconds;
  const sign = ms >= 0.05 ? "+" : ms <= -0.05 ? "\u2212" : "";
  return Math.abs(ms) < 1000 ? `${sign}${Math.abs(ms).toFixed(Math.abs(ms) < 10 ? 1 : 0)} ms` : `${sign}${Math.abs(seconds).toFixed(1)} s`;
}

function agreement(node, theirs, ours, matters, what) {
  if (!matters) putChip(node, theirs ? short(theirs) : "\u2013", "", theirs);
  else if (theirs === ours) putChip(node, short(theirs), "good", `The same ${what} as this member's: ${theirs}`);
  else putChip(node, theirs ? short(theirs) : "none", "warn", `Not this member's ${what}: ${theirs || "none"} there, ${ours || "none"} here`);
}

/** troubles returns the problems, worst first: {tone, text}. */
export function troubles(state) {
  const { cluster, self, timeline, errors } = state;
  const out = [];
  const say = (tone, text) => out.push({ tone, text });
  const live = cluster.members.filter((m) => m.role === "member");
  if (cluster.problem) say("bad", `This member is not on the ring and not ready: ${visible(cluster.problem, 400)}.`);
  for (const u of cluster.unreachable ?? []) say("bad", `${visible(u.member, 60)} and this member cannot exchange requests: ${visible(u.reason, 300)}.`);
  for (const g of gone(cluster, timeline?.events ?? [])) {
    if (g.state === "lost") say("bad", `${visible(g.id, 60)} failed ${span((clock.now() - Date.parse(g.since)) / 1000)} ago: no member can reach it.`);
  }
  if (cluster.rules.last_error) say("bad", cluster.rules.in_force ? "The last rules that were loaded are refused. The previous version stays in force." : "The rules that were loaded are refused, and no previous version exists: this member is not ready.");
  if (!cluster.rules.in_force && state.rules) say("bad", "No rules are loaded: calls are answered with an error.");
  if (!cluster.joined && !cluster.standalone && !cluster.problem) say("warn", "This member has not joined the cluster yet.");
  if (cluster.ring.disagreement > 0) say("warn", `The rings differ: ${some(cluster.ring.disagreement, "uses", "use")} another one than this member.`);
  if (cluster.rules.disagreement > 0) say("warn", `The rules differ: ${some(cluster.rules.disagreement, "has", "have")} another version in force than this member.`);
  if (cluster.rules.prepared && cluster.rules.prepared !== cluster.rules.in_force) say("info", `Rules ${short(cluster.rules.prepared)} are loaded and wait for the other members.`);
  const active = live.filter((m) => m.state === "active");
  const moving = active.filter((m) => m.complete && m.complete !== cluster.ring.fingerprint);
  if (moving.length > 0) say("info", `Counters are moving: ${some(moving.length, "does", "do")} not have all of its counters on ring ${short(cluster.ring.fingerprint)} yet.`);
  const journal = self?.data;
  if (journal && !journal.up && journal.state !== "loading") say("bad", `The journal cannot be written, so a restart of all members loses counts: ${visible(journal.problem ?? journal.state, 300)}.`);
  if (journal?.state === "loading") say("info", "This member loads its journals.");
  if (journal?.missing > 0) say("warn", `${journal.missing === 1 ? "1 journal" : `${journal.missing} journals`} of the last ring ${journal.missing === 1 ? "is" : "are"} missing: limits may be exceeded by what only they contain.`);
  for (const w of self?.warnings ?? []) out.push({ tone: "warn", text: visible(w, 300), own: true });
  for (const e of errors) say("warn", visible(e, 300));
  return out;
}

const some = (n, one, many) => (n === 1 ? `1 member ${one}` : `${n} members ${many}`);

/** drawHealth shows the health as a sentence. */
export function drawHealth(state) {
  const found = troubles(state);
  const n = state.cluster.ring.members.length;
  if (!found.some((t) => t.tone !== "info" && !t.own)) {
    found.unshift({ tone: "good", text: state.cluster.standalone
      ? "No problems: this member runs standalone and counts all keys."
      : `No problems: ${n === 1 ? "one member is on the ring" : `${n} members use the same ring and the same rules`}.` });
  }
  list(byId("health"), found.slice(0, 8), (t) => t.tone + t.text.replace(/\d+ (s|min|h|days) ago/, ""), () => h("p"), (node, t) => {
    attr(node, "class", t.tone);
    put(node, t.text);
  });
}
