// Limits that Envoys spend without calls.

import { h, put, attr, list, key, putKey, visible, count, rate, span, clock, byId, per } from "./dom.js";
import { parseName } from "./hot.js";

const lateReport = 8; // seconds; Envoys report every 5

/** drawQuotas fills the table of keys and the Envoys that spend them, which is hidden without any. It reports whether it is
    shown. open is called with a domain and entries to explain. */
export function drawQuotas(state, open) {
  const { quotas } = state;
  const all = quotas?.keys ?? [];
  attr(byId("quotas-part"), "hidden", all.length ? null : "");
  if (!all.length) return false;
  put(byId("quotas-note"), `${count(quotas.streams)} stream${quotas.streams === 1 ? "" : "s"} of Envoys to this member. What an Envoy may spend is charged before.${
    quotas.total > all.length ? ` ${count(all.length)} of ${count(quotas.total)} keys are listed.` : ""}`);
  const rows = [];
  for (const k of all.slice(0, 50)) {
    const id = `${k.domain}/${k.digest}/${k.name}`;
    rows.push({ id, k });
    for (const e of k.envoys.slice(0, 20)) rows.push({ id: `${id}/${e.stream}`, k, e });
  }
  list(byId("quotas"), rows, (r) => r.id, (r) => newRow(r, open), updateRow);
  return true;
}

function newRow(r, open) {
  const c = { name: key(""), domain: h("span", { class: "muted small" }), rate: h("td", { class: "num" }), assigned: h("td"), proof: h("td") };
  const row = h("tr", null);
  const explain = () => row.item.name && open(row.item.domain, parseName(row.item.name));
  const name = r.e ? h("td", { class: "envoy" }, c.name)
    : h("th", { scope: "row" }, h("button", { type: "button", class: "link", title: "Explain this key", on: { click: explain } }, c.name), c.domain);
  row.append(name, c.rate, c.assigned, c.proof);
  row.parts = c;
  return row;
}

function updateRow(row, { k, e }) {
  row.item = k;
  const c = row.parts;
  if (e) return updateEnvoy(c, e);
  putKey(c.name, k.name || k.digest.slice(0, 12));
  put(c.domain, visible(k.domain, 60));
  put(c.rate, `${rate(k.envoys.reduce((sum, x) => sum + x.rate, 0))} /s`);
  if (k.unlimited) {
    put(c.assigned, "no limit");
    put(c.proof, "");
    return;
  }
  put(c.assigned, `${count(k.charged)} of ${count(k.have)} charged, limit ${count(k.limit)} ${per(k.window)}`);
  put(c.proof, k.total_envoys > k.envoys.length ? `${count(k.total_envoys)} Envoys` : "");
}

function updateEnvoy(c, e) {
  putKey(c.name, e.name);
  put(c.rate, `${rate(e.rate)} /s`);
  put(c.assigned, e.assigned === "lease" ? `${count(e.left)} of ${count(e.lease)} left` : { deny: "refuses", allow: "admits all" }[e.assigned] ?? "nothing yet");
  put(c.proof, `${acknowledged(e)}, reported ${span(e.report_age_seconds)} ago`);
  attr(c.proof, "class", e.stalled || e.report_age_seconds > lateReport ? "warn" : null);
}

function acknowledged(e) {
  if (e.stalled) return "does not acknowledge";
  if (!e.acknowledged) return e.assigned ? "not acknowledged yet" : "nothing to acknowledge";
  return `in use for ${span((clock.now() - Date.parse(e.acknowledged)) / 1000)}`;
}
