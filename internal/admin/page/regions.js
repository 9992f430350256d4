// Limits that several regions share.

import { put, attr, list, h, visible, count, byId } from "./dom.js";

/** drawRegions fills the table of escrows, which is hidden without a federation. */
export function drawRegions(state) {
  const { escrows } = state;
  const shown = escrows && escrows.region;
  attr(byId("regions-box"), "hidden", shown ? null : "");
  if (!shown) return;
  const away = escrows.coordinators.filter((c) => c.away).map((c) => visible(c.name, 60));
  const ways = escrows.coordinators.map((c) => `${visible(c.name, 60)} ${Math.round(c.round_trip_seconds * 1000)} ms`);
  put(byId("regions-note"), `Region ${visible(escrows.region, 60)} of ${visible(escrows.federation, 60)}, layout ${count(escrows.epoch)}. `
    + (away.length ? `Away: ${away.join(", ")}; outage policies decide.` : `Coordinator: ${ways.join(", ") || "none"}.`)
    + (escrows.total > escrows.keys.length ? ` ${count(escrows.keys.length)} of ${count(escrows.total)} keys are shown.` : ""));
  list(byId("escrows"), escrows.keys.slice(0, 100), (k) => k.digest, () => h("tr", null, h("th", { scope: "row" }), h("td", { class: "num" }), h("td", { class: "num" }), h("td", { class: "num" }), h("td")), (row, k) => {
    const [digest, limit, left, pool, others] = row.children;
    put(digest, k.digest.slice(0, 12));
    put(limit, `${count(k.limit)} in ${k.window}`);
    put(left, `${count(k.left)} of ${count(k.have)}`);
    put(pool, k.used_up ? `all ${count(k.usable)}` : `${count(k.used)} of ${count(k.usable)}`);
    put(others, (k.others ?? []).map((o) => `${visible(o.region, 60)} ${count(o.have)}`).join(", "));
  });
}
