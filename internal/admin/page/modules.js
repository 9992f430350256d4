// Envoys whose modules spend leases without calls.

import { h, put, attr, list, key, putKey, visible, count, rate, span, clock, byId } from "./dom.js";
import { parseName } from "./hot.js";

const mostEnvoys = 50;
const mostKeys = 20; // of one Envoy

/** drawModules fills the table of Envoys with the module and their keys, which is hidden without any. It reports whether it
    is shown. open is called with a domain and entries to explain. */
export function drawModules(state, open) {
  const { modules } = state;
  const all = modules?.envoys ?? [];
  const refused = Object.values(modules?.refused ?? {}).reduce((sum, n) => sum + n, 0);
  const shown = all.length > 0 || refused > 0;
  attr(byId("modules-part"), "hidden", shown ? null : "");
  if (!shown) return false;
  const envoys = all.slice(0, mostEnvoys);
  put(byId("modules-note"), `${count(modules.total)} Envoy${modules.total === 1 ? "" : "s"} of this pod with the module. What is leased to it is charged before.${
    modules.total > envoys.length ? ` ${count(envoys.length)} of them are listed.` : ""}${refused ? ` Refused connections: ${refusals(modules.refused)}.` : ""}`);
  attr(byId("modules-note"), "data-refused", refused ? "" : null);
  const rows = [];
  for (const e of envoys) {
    const id = `${e.node}/${e.since}`;
    rows.push({ id, e });
    for (const k of e.keys.slice(0, mostKeys)) rows.push({ id: `${id}/${k.domain}/${k.digest}/${k.name}`, e, k });
  }
  list(byId("modules"), rows, (r) => r.id, (r) => newRow(r, open), updateRow);
  return true;
}

const refusals = (by) => Object.entries(by).filter(([, n]) => n > 0).map(([reason, n]) => `${count(n)} ${visible(reason, 20)}`).join(", ");

function newRow(r, open) {
  const c = { name: key(""), more: h("span", { class: "muted small" }), rate: h("td", { class: "num" }), lease: h("td"), calls: h("td") };
  const row = h("tr", null);
  const explain = () => row.item.name && open(row.item.domain, parseName(row.item.name));
  const name = r.k
    ? h("td", { class: "envoy" }, h("button", { type: "button", class: "link", title: "Explain this key", on: { click: explain } }, c.name), c.more)
    : h("th", { scope: "row" }, c.name, c.more);
  row.append(name, c.rate, c.lease, c.calls);
  row.parts = c;
  return row;
}

function updateRow(row, { e, k }) {
  row.item = k;
  const c = row.parts;
  if (k) return updateKey(c, k);
  const shown = Math.min(e.keys.length, mostKeys);
  putKey(c.name, e.node || "an Envoy without a node id");
  put(c.more, `ABI ${visible(e.abi, 40)}, connected for ${span((clock.now() - Date.parse(e.since)) / 1000)}${
    e.total_keys > shown ? `, ${count(shown)} of ${count(e.total_keys)} keys listed` : ""}`);
  put(c.rate, `${rate(e.keys.reduce((sum, x) => sum + x.rate, 0))} /s`);
  put(c.lease, `${count(e.used)} of ${count(e.slots)} leases in use`);
  put(c.calls, calls(e) + (e.corrupt > 0 ? `, ${count(e.corrupt)} corrupt` : ""));
  attr(c.calls, "class", e.corrupt > 0 ? "warn" : null);
}

function updateKey(c, k) {
  putKey(c.name, k.name || k.digest.slice(0, 12));
  put(c.more, visible(k.domain, 60));
  put(c.rate, `${rate(k.rate)} /s`);
  put(c.lease, k.given > 0 ? `${count(k.left)} of ${count(k.given)} left` : "no lease");
  put(c.calls, calls(k));
}

const calls = (x) => `${count(x.taken)} without a call; calls: ${count(x.no_lease)} without a lease, ${count(x.empty)} with an empty one`;
