// Keys with holds: what is spent, held and left.

import { h, svg, put, attr, list, key, putKey, visible, count, span, clock, byId, per } from "./dom.js";
import { parseName } from "./hot.js";

/** drawBudgets fills the table of this member's keys with holds, which is hidden without any. open is called with a domain
    and entries to explain. */
export function drawBudgets(state, open) {
  const { budgets } = state;
  const all = budgets?.keys ?? [];
  attr(byId("budgets-box"), "hidden", all.length ? null : "");
  if (!all.length) return;
  put(byId("budgets-note"), `Keys with holds that this member counts. Held hits are charged; what a request does not use of them comes back. ${
    budgets.total > all.length ? `${count(all.length)} of ${count(budgets.total)} keys are listed.` : ""}`);
  list(byId("budgets"), all.slice(0, 100), (k) => k.digest, () => newRow(open), updateRow);
}

function newRow(open) {
  const c = { key: key(""), domain: h("span", { class: "muted small" }), text: h("span"), open: h("b"), oldest: h("span", { class: "muted small" }), reset: h("td", { class: "num" }) };
  c.used = svg("rect", { height: 6, rx: 3 });
  c.held = svg("rect", { height: 6, class: "lent" });
  c.meter = svg("svg", { class: "bar", viewBox: "0 0 60 6", width: 60, height: 6, "aria-hidden": "true" }, svg("rect", { class: "track", width: 60, height: 6, rx: 3 }), c.used, c.held);
  const row = h("tr", null);
  const explain = () => row.item.name && open(row.item.domain, parseName(row.item.name));
  row.append(
    h("th", { scope: "row" }, h("button", { type: "button", class: "link", title: "Explain this key", on: { click: explain } }, c.key), c.domain),
    h("td", { class: "used" }, c.meter, c.text), h("td", { class: "num" }, c.open, c.oldest), c.reset,
  );
  row.parts = c;
  return row;
}

function updateRow(row, k) {
  row.item = k;
  const c = row.parts;
  const inFlight = k.algorithm === "in_flight";
  putKey(c.key, k.name || k.digest.slice(0, 12));
  put(c.domain, visible(k.domain, 60));
  const part = k.limit ? Math.min(1, (k.spent + k.held) / k.limit) : 0;
  const held = k.limit ? Math.min(part, k.held / k.limit) : 0;
  attr(c.meter, "class", `bar ${part >= 1 ? "full" : ""}`);
  attr(c.used, "width", 60 * part);
  attr(c.held, "x", 60 * (part - held));
  attr(c.held, "width", 60 * held);
  put(c.text, inFlight ? `${count(k.held)} of ${count(k.limit)} in flight`
    : `${count(k.spent)} spent, ${count(k.held)} held, ${count(k.left)} left of ${count(k.limit)} ${per(k.window)}`);
  put(c.open, count(k.open));
  put(c.oldest, k.oldest ? `for ${span((clock.now() - Date.parse(k.oldest)) / 1000)}` : "");
  put(c.reset, inFlight ? "\u2013" : `in ${span(k.reset_seconds)}`);
}
