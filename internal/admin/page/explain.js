// The explanation of one key.

import { h, svg, put, attr, list, visible, putKey, count, span, chip, putChip, byId, per } from "./dom.js";
import { memberChip } from "./hot.js";
import { get } from "./feed.js";

const verdicts = {
  ok: ["passes", "good"], over_limit: ["refused", "bad"], shadow: ["over, but passes", "warn"], unlimited: ["unlimited", "info"], no_rule: ["no rule", "info"], limited: ["limited", "info"],
};

/** Explainer is the form and its result. onFound is called with the explanation, or null. */
export class Explainer {
  constructor(onFound) {
    this.onFound = onFound;
    this.asked = null;
    this.box = byId("explained");
    byId("key-form").addEventListener("submit", (e) => {
      e.preventDefault();
      this.submit();
    });
    byId("add-entry").addEventListener("click", () => this.add({ key: "", value: "" }).querySelector("input").focus());
    byId("clear-key").addEventListener("click", () => this.clear());
    this.add({ key: "", value: "" });
    addEventListener("hashchange", () => this.fromAddress());
    this.fromAddress();
  }

  /** add adds an entry to the form. */
  add(entry) {
    const row = h("div", { class: "entry" },
      h("input", { "aria-label": "Key", placeholder: "key", value: entry.key, spellcheck: "false", class: "entry-key" }), h("span", { "aria-hidden": "true" }, "="),
      h("input", { "aria-label": "Value", placeholder: "value", value: entry.value, spellcheck: "false", class: "entry-value" }),
      h("button", { type: "button", class: "quiet", "aria-label": "Remove this entry", on: { click: () => this.remove(row) } }, "\u00d7"));
    byId("entries").append(row);
    return row;
  }

  remove(row) {
    const before = row.previousElementSibling;
    row.remove();
    if (!byId("entries").querySelector(".entry")) this.add({ key: "", value: "" });
    (before?.querySelector("input") ?? byId("entries").querySelector("input")).focus();
  }

  fill(domain, entries) {
    byId("key-domain").value = domain;
    byId("entries").querySelectorAll(".entry").forEach((e) => e.remove());
    entries.forEach((e) => this.add(e));
  }

  /** open explains a key that the user has chosen elsewhere on the page. */
  open(domain, entries) {
    this.fill(domain, entries);
    this.submit();
    byId("key-title").scrollIntoView({ block: "nearest" });
  }

  /** rule fills the form with a rule's path. The user enters values that differ between requests. */
  rule(domain, path) {
    const entries = path.map((p) => {
      const at = p.indexOf("=");
      return at < 0 ? { key: p, value: "" } : { key: p.slice(0, at), value: p.slice(at + 1) };
    });
    this.fill(domain, entries);
    byId("key-title").scrollIntoView({ block: "nearest" });
    const open = [...byId("entries").querySelectorAll(".entry-value")].find((i) => i.value === "" || i.value.includes("*"));
    if (open) open.focus();
    else this.submit();
  }

  submit() {
    const entries = [...byId("entries").querySelectorAll(".entry")]
      .map((r) => ({ key: r.querySelector(".entry-key").value, value: r.querySelector(".entry-value").value }))
      .filter((e) => e.key !== "" || e.value !== "");
    const domain = byId("key-domain").value;
    if (entries.length === 0) {
      byId("entries").querySelector("input").focus();
      return;
    }
    // The address contains the key, so that it can be shared. The part after # is never sent to a server.
    const to = new URLSearchParams({ domain, descriptor: JSON.stringify({ entries }) });
    history.replaceState(null, "", `#${to}`);
    this.ask(domain, entries);
  }

  fromAddress() {
    const from = new URLSearchParams(location.hash.slice(1));
    try {
      const { entries } = JSON.parse(from.get("descriptor"));
      const text = entries.map((e) => ({ key: String(e.key ?? ""), value: String(e.value ?? "") }));
      this.fill(from.get("domain") ?? "", text);
      this.ask(from.get("domain") ?? "", text);
    } catch { /* there is no key in the address */ }
  }

  ask(domain, entries) {
    this.asked = new URLSearchParams({ domain, descriptor: JSON.stringify({ entries }) });
    attr(byId("clear-key"), "hidden", null);
    this.look();
  }

  clear() {
    this.asked = null;
    attr(byId("clear-key"), "hidden", "");
    history.replaceState(null, "", location.pathname);
    this.show(null);
  }

  /** look fetches the key's current state. */
  async look() {
    const asked = this.asked;
    if (!asked) return;
    const found = await explain(asked).catch((err) => ({ error: err.message }));
    if (asked === this.asked) this.show(found);
  }

  show(found) {
    this.onFound(found);
    list(this.box, found ? [found] : [], () => (found.error ? "error" : "found"), (f) => (f.error ? h("p", { class: "bad" }) : newAnswer()), (node, f) => {
      if (f.error) put(node, visible(f.error, 300));
      else updateAnswer(node, f);
    });
  }
}

/** explain fetches /v1/explain or, from a member without it, /v1/counters. */
async function explain(asked) {
  const e = await get(`v1/explain?${asked}`);
  if (e.data) return { ...e.data, successor: e.data.heir };
  const c = await get(`v1/counters?${asked}`);
  if (!c.data) return { verdict: "no_rule", why: "No rule limits this descriptor.", headers: {} };
  return { verdict: c.data.remaining > 0 ? "ok" : "over_limit", why: "", owner: c.data.owner, counter: c.data, headers: {} };
}

function newAnswer() {
  const c = {
    verdict: chip(""), why: h("p", { class: "why" }), owners: h("p", { class: "owners" }), rule: h("p", { class: "small" }), bar: svg("rect", { height: 10, rx: 5 }), lent: svg("rect", { height: 10, class: "lent" }),
    count: h("span"), reset: h("span", { class: "muted" }), headers: h("dl"), steps: h("ol", { class: "steps" }),
  };
  c.meter = svg("svg", { class: "bar wide", viewBox: "0 0 300 10", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("rect", { class: "track", width: 300, height: 10, rx: 5 }), c.bar, c.lent);
  c.standing = h("div", { class: "standing" }, c.meter, h("p", null, c.count, c.reset));
  c.headerBox = h("details", null, h("summary", null, "Response headers"), c.headers);
  c.stepBox = h("details", null, h("summary", null, "How the rules were searched"), c.steps);
  const node = h("div", { class: "answer" }, h("p", { class: "verdict" }, "One more hit ", c.verdict), c.standing, c.owners, c.rule, c.why, c.headerBox, c.stepBox);
  node.parts = c;
  return node;
}

function updateAnswer(node, e) {
  const c = node.parts;
  const [text, tone] = verdicts[e.verdict] ?? [e.verdict, ""];
  putChip(c.verdict, text, tone);
  put(c.why, visible(e.why, 1000));
  const n = e.counter;
  attr(c.standing, "hidden", n ? null : "");
  if (n) {
    const part = n.limit ? Math.min(1, n.count / n.limit) : 1;
    const lent = n.limit ? Math.min(part, (n.lent ?? 0) / n.limit) : 0;
    attr(c.meter, "class", `bar wide ${part >= 1 ? "full" : ""}`);
    attr(c.bar, "width", 300 * part);
    attr(c.lent, "x", 300 * (part - lent));
    attr(c.lent, "width", 300 * lent);
    put(c.count, `${count(n.count)} of ${count(n.limit)} ${per(n.window)}${n.lent ? `, ${count(n.lent)} of them lent` : ""}`);
    put(c.reset, ` \u00b7 resets in ${n.reset_seconds < 10 ? n.reset_seconds.toFixed(1) + " s" : span(n.reset_seconds)}${n.authority !== "full" ? ` \u00b7 authority ${n.authority}` : ""}`);
  }
  owners(c.owners, e);
  rule(c.rule, e.rule);
  steps(c, e.steps ?? []);
  const headers = Object.entries(e.headers ?? {});
  attr(c.headerBox, "hidden", headers.length ? null : "");
  list(c.headers, headers.flatMap(([k, v]) => [{ tag: "dt", k, v: k }, { tag: "dd", k, v }]), (x) => x.tag + x.k, (x) => h(x.tag), (node, x) => put(node, visible(x.v, 300)));
}

function owners(node, e) {
  const stamp = JSON.stringify([e.owner, e.successor, e.owner_string, e.owner_position]);
  attr(node, "hidden", e.owner ? null : "");
  if (node.dataset.is === stamp) return;
  node.dataset.is = stamp;
  node.replaceChildren();
  if (!e.owner) return;
  node.append("Counted by ", memberChip(e.owner), ...(e.successor ? [" then ", memberChip(e.successor)] : []));
  if (e.owner_position) {
    const text = h("bdi", { class: "key" });
    putKey(text, e.owner_string ?? "");
    node.append(h("span", { class: "muted small place" }, "at ", h("code", null, e.owner_position), " for ", text));
  }
}

function rule(node, r) {
  const stamp = JSON.stringify(r ?? null);
  attr(node, "hidden", r ? null : "");
  if (!r || node.dataset.is === stamp) return;
  node.dataset.is = stamp;
  node.replaceChildren("Rule ");
  r.path.forEach((part, i) => {
    const bdi = h("bdi");
    putKey(bdi, part);
    node.append(...(i ? [h("span", { class: "sep", "aria-hidden": "true" }, "\u203a")] : []), bdi);
  });
  node.append(h("span", { class: "muted" }, ` ${visible(r.file ?? "", 200)}${r.line ? `:${r.line}` : ""}${r.algorithm && r.algorithm !== "fixed_window" ? ` \u00b7 ${r.algorithm.replaceAll("_", " ")}` : ""}${r.mechanism && r.mechanism !== "owner" ? ` \u00b7 ${r.mechanism}` : ""}`));
}

function steps(c, all) {
  attr(c.stepBox, "hidden", all.length ? null : "");
  const stamp = JSON.stringify(all);
  if (c.steps.dataset.is === stamp) return;
  c.steps.dataset.is = stamp;
  const line = (t, taken) => h("li", { class: taken ? "taken" : "muted" }, h("bdi", null, visible(t.descriptor, 200)), `: ${visible(t.why, 300)}`, h("span", { class: "muted" }, t.line ? ` (${visible(t.file, 120)}:${t.line})` : ""));
  c.steps.replaceChildren(...all.map((s) => h("li", null, h("bdi", { class: "key" }, visible(`${s.entry.key}=${s.entry.value}`, 200)),
    h("ul", null, ...(s.taken ? [line(s.taken, true)] : []), ...(s.passed ?? []).map((p) => line(p, false)), ...(s.more ? [h("li", { class: "muted" }, `${s.more} more on this level`)] : [])))));
}
