// Hot keys and leases.

import { h, svg, put, attr, list, key, putKey, visible, rate, count, span, clock, chip, byId, per } from "./dom.js";
import { color } from "./colors.js";

/** parseName parses the name of a descriptor, k=v,k2=v2. Entries that contain commas may need correction by the user. */
export function parseName(name) {
  return name.split(/,(?=[^,=]+=)/).map((part) => {
    const at = part.indexOf("=");
    return at < 0 ? { key: part, value: "" } : { key: part.slice(0, at), value: part.slice(at + 1) };
  });
}

/** memberChip returns a label with a member's name in its color. */
export function memberChip(id) {
  return h("span", { class: `who-chip ${color(id)}` }, h("span", { class: "swatch", "aria-hidden": "true" }), h("bdi", { title: visible(id, 128) }, visible(id, 28)));
}

const meanings = {
  cap: "Envoy denies what is certainly over the limit", pin: "another member counts it", split: "several members count a part each", never: "an operator has ordered to keep it with its owner",
};

/** done returns the labels for a route and its leases. */
function done(k, route) {
  const out = [];
  if (route) {
    out.push(chip(route.mode, route.mode === "never" ? "" : "info", meanings[route.mode] ?? ""));
    for (const s of route.sub_keys ?? []) out.push(memberChip(s.member));
    if (route.manual) out.push(chip("by hand", "", `said by ${visible(route.by, 60)}`));
  }
  if (k.holders?.length) {
    out.push(chip("leased", "info", "other members decide with lent parts of its limit"));
    for (const l of k.holders) out.push(memberChip(l.member));
  }
  if (out.length === 0) out.push(h("span", { class: "muted" }, k.hot ? "watched" : "cooling"));
  return out;
}

/** drawHot fills the tables. open is called with a domain and entries to explain. */
export function drawHot(state, open) {
  const { hot, leases } = state;
  const routes = new Map((hot?.routes ?? []).map((r) => [`${r.domain}\n${r.owner_string}`, r]));
  const mine = (hot?.keys ?? []).map((k) => ({ ...k, mine: true, route: routes.get(`${k.domain}\n${k.owner_string}`) })).sort((a, b) => b.rate - a.rate);
  const known = new Set(mine.map((k) => `${k.domain}\n${k.owner_string}`));
  const others = [...routes.entries()].filter(([at]) => !known.has(at)).map(([, r]) => ({ ...r, route: r }));
  const all = [...mine, ...others];
  const note = hot === null ? "This process counts nothing, so it has no hot keys."
    : all.length ? "The hot keys of this member, and the routes of all hot keys." : "No key is hot.";
  put(byId("hot-note"), note);
  attr(byId("hot-box"), "hidden", all.length === 0 ? "" : null);
  list(byId("hot"), all.slice(0, 100), (k) => `${k.domain}\n${k.owner_string}\n${k.digest ?? ""}`, (k) => newRow(k, open), updateRow);

  const held = (leases?.keys ?? []).filter((l) => l.have > 0 || l.denied);
  attr(byId("leases-box"), "hidden", held.length === 0 ? "" : null);
  list(byId("leases"), held.slice(0, 100), (l) => l.digest, () => h("tr", null, h("th", { scope: "row" }), h("td"), h("td", { class: "num" }), h("td", { class: "num" }), h("td")), (row, l) => {
    const [name, owner, left, demand, ends] = row.children;
    if (!name.firstChild) name.append(key(l.name), " ", h("span", { class: "muted small" }));
    putKey(name.firstChild, l.name);
    put(name.lastChild, visible(l.domain, 60));
    if (owner.dataset.is !== l.owner) owner.replaceChildren(memberChip(l.owner));
    owner.dataset.is = l.owner;
    put(left, l.denied ? "none: used up" : `${count(l.left)} of ${count(l.have)}`);
    put(demand, `${rate(l.demand)} /s`);
    put(ends, `in ${span((Date.parse(l.expires) - clock.now()) / 1000)}`);
  });
}

function newRow(k, open) {
  const c = {
    key: key(k.name), domain: h("span", { class: "muted small" }), rate: h("b"), since: h("span", { class: "muted small" }),
    used: h("span"), bar: svg("rect", { height: 6, rx: 3 }), lent: svg("rect", { height: 6, class: "lent" }), done: h("div", { class: "chips" }),
  };
  const row = h("tr", null);
  const button = h("button", { type: "button", class: "link", title: "Explain this key", on: { click: () => open(row.item.domain, parseName(row.item.name)) } }, c.key);
  c.meter = svg("svg", { class: "bar", viewBox: "0 0 60 6", width: 60, height: 6, "aria-hidden": "true" }, svg("rect", { class: "track", width: 60, height: 6, rx: 3 }), c.bar, c.lent);
  row.append(h("th", { scope: "row" }, button, c.domain), h("td", { class: "num" }, c.rate, c.since), h("td", { class: "used" }, c.meter, c.used), h("td", null, c.done));
  row.parts = c;
  return row;
}

function updateRow(row, k) {
  row.item = k;
  const c = row.parts;
  putKey(c.key, k.name || k.owner_string || k.digest);
  put(c.domain, visible(k.domain, 60));
  put(c.rate, k.mine ? `${rate(k.rate)} /s` : "\u2013");
  put(c.since, k.since ? `${k.mine && !k.hot ? "" : "for "}${span((clock.now() - Date.parse(k.since)) / 1000)}` : "");
  const part = k.limit ? Math.min(1, k.used / k.limit) : 0;
  const lent = k.limit ? Math.min(part, (k.lent ?? 0) / k.limit) : 0;
  attr(c.meter, "class", k.mine ? `bar ${part >= 1 ? "full" : ""}` : "bar none");
  attr(c.bar, "width", 60 * part);
  attr(c.lent, "x", 60 * (part - lent));
  attr(c.lent, "width", 60 * lent);
  put(c.used, k.mine ? `${count(k.used)} of ${count(k.limit)} ${per(k.window)}${k.lent ? `, ${count(k.lent)} lent` : ""}` : k.manual ? "counted elsewhere" : `counted by ${visible(k.by, 40)}`);
  const stamp = JSON.stringify([k.route, k.holders?.map((l) => l.member), k.hot]);
  if (c.done.dataset.is !== stamp) c.done.replaceChildren(...done(k, k.route));
  c.done.dataset.is = stamp;
}
