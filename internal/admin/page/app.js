// The page reads this member's documents once a second and draws what has changed.

import { put, attr, list, h, visible, count, rate, bytes, short, span, clock, byId } from "./dom.js";
import { learn, forget } from "./colors.js";
import { Feed, poll } from "./feed.js";
import { Ring } from "./ring.js";
import { drawMembers, drawHealth, gone } from "./members.js";
import { drawHot } from "./hot.js";
import { drawRegions } from "./regions.js";
import { drawModules } from "./modules.js";
import { drawQuotas } from "./quotas.js";
import { drawBudgets } from "./budgets.js";
import { Speeds, spark, sum, drawRules, drawVersions } from "./rules.js";
import { drawTimeline, kindButtons } from "./timeline.js";
import { Explainer } from "./explain.js";

const feeds = {
  cluster: new Feed("cluster"), hot: new Feed("v1/hotkeys"), leases: new Feed("v1/leases"), rules: new Feed("v1/rules"),
  quotas: new Feed("v1/quotas"), modules: new Feed("v1/modules"), escrows: new Feed("v1/escrows"), budgets: new Feed("v1/budgets"), timeline: new Feed("v1/timeline"), self: new Feed("v1/self", 5), ring: new Feed("v1/ring"),
};
const speeds = new Speeds();
const state = { errors: [] };
let tick = 0;
let heard = 0; // when the member last answered, by the browser's clock
let key = null; // the explained key

const ring = new Ring(byId("ring"), (id) => {
  for (const row of byId("members").children) row.classList.toggle("front", id !== null && row.dataset.member === id);
});
const explainer = new Explainer((found) => {
  key = found?.owner ? found : null;
  drawPins();
});

/** read fetches all documents that are due. It reports whether the member answered. */
async function read() {
  tick++;
  const errors = [];
  const ask = (name) => feeds[name].read(tick).then(() => {
    state[name] = feeds[name].data;
    return true;
  }, (err) => {
    errors.push(err.message);
    return false;
  });
  const names = ["hot", "leases", "quotas", "modules", "escrows", "budgets", "rules", "timeline", "self"];
  const [answered] = await Promise.all([ask("cluster"), ...names.map(ask)]);
  if (answered && ringIsOld()) await ask("ring");
  state.errors = errors;
  return answered;
}

/** ringIsOld reports whether the ring must be read again: it is large and seldom changes. */
function ringIsOld() {
  const { ring: drawn, cluster } = state;
  if (!drawn) return drawn === undefined || tick >= feeds.ring.due;
  const now = new Map(cluster.members.filter((m) => m.role === "member").map((m) => [m.id, m.state]));
  return drawn.fingerprint !== cluster.ring.fingerprint || drawn.members.some((m) => (now.get(m.id) ?? "lost") !== m.state);
}

function drawPins() {
  const hot = (state.hot?.keys ?? []).filter((k) => k.hot).slice(0, 50).map((k) => ({ position: k.position, title: `hot: ${visible(k.name, 100)}` }));
  ring.mark(hot, key ? { position: key.owner_position, owner: key.owner, successor: key.successor } : null);
}

function drawTiles() {
  const { cluster, rules, hot } = state;
  const live = cluster.members.filter((m) => m.role === "member");
  const others = cluster.members.length - live.length;
  put(byId("tile-members"), count(live.length));
  put(byId("tile-members-more"), `${count(cluster.ring.members.length)} on the ring${others ? `, ${others} observing` : ""}`);
  put(byId("tile-rules"), cluster.rules.in_force ? short(cluster.rules.in_force) : "none");
  const n = (rules?.domains ?? []).reduce((sum, d) => sum + d.rules.length, rules?.left_out ?? 0);
  put(byId("tile-rules-more"), rules ? `${count(n)} in ${count(rules.domains.length)} domain${rules.domains.length === 1 ? "" : "s"}` : "");
  put(byId("tile-hot"), hot ? count(hot.keys.filter((k) => k.hot).length) : "\u2013");
  put(byId("tile-hot-more"), hot ? `counted here; ${hot.routes.length} routed anywhere` : "");
  if (!rules) return;
  const now = performance.now();
  put(byId("tile-requests"), `${rate(speeds.add("requests", rules.requests ?? sum(rules, "total_hits"), now))} /s`);
  put(byId("tile-over"), `${rate(speeds.add("over", sum(rules, "over_limit"), now))} /s`);
  spark(byId("spark-requests"), speeds.rates("requests"));
  spark(byId("spark-over"), speeds.rates("over"));
}

/** drawJournal shows the member's journal, if it has one. */
function drawJournal(journal) {
  attr(byId("journal"), "hidden", journal ? null : "");
  if (!journal) return;
  put(byId("tile-journal"), journal.state);
  put(byId("tile-journal-more"), `${bytes(journal.bytes)} of ${bytes(journal.max_bytes)}; ${count(journal.owed_hits)} hit${journal.owed_hits === 1 ? "" : "s"} only in memory`);
  attr(byId("journal"), "title", `${visible(journal.dir, 200)}: windows of at least ${journal.window}; generation ${journal.generation}; ${count(journal.loaded)} counters loaded from ${count(journal.journals)} journals`);
}

let drawn; // the ring that is drawn

function draw() {
  const { cluster, rules, timeline } = state;
  const shown = new Set([...cluster.members.filter((m) => m.role === "member").map((m) => m.id), ...gone(cluster, timeline?.events ?? []).map((m) => m.id), ...(state.ring?.members ?? []).map((m) => m.id)]);
  forget(shown);
  learn(shown);
  document.title = `${visible(cluster.self, 60)} \u00b7 Keyward`;
  put(byId("self"), visible(cluster.self, 128));
  put(byId("label"), cluster.cluster ? `in ${visible(cluster.cluster, 60)}` : "");
  put(byId("version"), visible(cluster.version ?? "", 40));
  drawHealth(state);
  drawTiles();
  drawJournal(state.self?.data);
  drawMembers(state, (id) => ring.focus(id));
  if (state.ring !== drawn) {
    drawn = state.ring;
    ring.draw(drawn ?? { fingerprint: "", members: [], sectors: [] });
  }
  drawPins();
  drawRegions(state);
  const withoutCalls = [drawQuotas, drawModules].map((part) => part(state, (domain, entries) => explainer.open(domain, entries)));
  attr(byId("quotas-box"), "hidden", withoutCalls.includes(true) ? null : "");
  drawBudgets(state, (domain, entries) => explainer.open(domain, entries));
  drawHot(state, (domain, entries) => explainer.open(domain, entries));
  drawRules(rules, byId("rule-filter").value, (domain, path) => explainer.rule(domain, path));
  drawVersions(cluster.rules);
  drawTimeline(timeline);
  list(byId("domains"), rules?.domains ?? [], (d) => d.domain, (d) => h("option", { value: d.domain }), () => {});
  if (byId("key-domain").value === "" && rules?.domains.length === 1 && document.activeElement !== byId("key-domain")) byId("key-domain").value = rules.domains[0].domain;
}

/** live reports whether the page shows the current state. */
function live(tone, text) {
  attr(byId("live"), "class", `live ${tone}`);
  put(byId("live-text"), text);
  document.body.classList.toggle("stale", tone === "bad");
}

const again = poll(async () => {
  if (await read()) {
    heard = Date.now();
    draw();
    live("good", "live");
    await explainer.look();
  } else {
    live("bad", heard ? `no answer for ${span((Date.now() - heard) / 1000)}` : "no answer");
  }
}, (hidden) => live(hidden ? "" : "good", hidden ? "paused" : "live"));

kindButtons(() => drawTimeline(state.timeline));
byId("rule-filter").addEventListener("input", () => state.cluster && draw());
byId("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("keyward-theme", root.dataset.theme);
  } catch { /* it holds until the page is closed */ }
});
addEventListener("online", again);
