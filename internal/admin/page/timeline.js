// The timeline.

import { h, svg, put, attr, list, visible, putAgo, short, byId } from "./dom.js";

const kinds = { ring: "ring", member: "members", rules: "rules", hot: "hot keys", handoff: "counters", journal: "journal" };

const shapes = { // in a box of 16
  ring: "M8 2.500a5.500 5.500 0 1 0 .01 0zM8 6a2 2 0 1 0 .01 0z",
  member: "M8 2a3 3 0 1 0 .01 0zM2.500 14a5.500 5 0 0 1 11 0z",
  rules: "M3 2h10v12H3zM5.500 5.500h5M5.500 8h5M5.500 10.500h3",
  hot: "M8 1.500c.5 3 3.800 4 3.800 8a3.800 3.800 0 0 1-7.600 0c0-2 1-2.700 1.600-4 .8.8 1 1.300 1 2 1-1.400 1.400-3.500 1.200-6z",
  journal: "M8 2c3 0 5 .8 5 2s-2 2-5 2-5-.8-5-2 2-2 5-2zM3 4v8c0 1.200 2 2 5 2s5-.8 5-2V4M3 8c0 1.200 2 2 5 2s5-.8 5-2",
  handoff: "M2 5.500h10M9 2.500l3 3-3 3M14 10.500H4M7 7.500l-3 3 3 3",
};

const off = new Set();

/** buttons select the kinds that are shown. again is called when the selection changes. */
export function kindButtons(again) {
  for (const [kind, name] of Object.entries(kinds)) {
    const b = h("button", { type: "button", class: "kind", "aria-pressed": "true" }, name);
    b.addEventListener("click", () => {
      if (!off.delete(kind)) off.add(kind);
      attr(b, "aria-pressed", String(!off.has(kind)));
      again();
    });
    byId("kinds").append(b);
  }
}

/** drawTimeline lists the events, newest first. */
export function drawTimeline(timeline) {
  const all = timeline?.events ?? [];
  const shown = all.filter((e) => !off.has(e.kind));
  const items = shown.length ? shown : [{ kind: "none", text: timeline === null ? "This process keeps no timeline." : "No events yet." }];
  list(byId("timeline"), items, (e) => `${e.time} ${e.kind} ${e.text}`, (e) => {
    const time = h("time", { class: "muted" });
    const icon = svg("svg", { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true", class: "icon" }, svg("path", { d: shapes[e.kind] ?? "" }));
    const text = h("bdi", { title: visible(e.text, 1000) }, visible(e.text, 300));
    const item = h("li", { class: `event on-${e.kind}${e.state === "lost" ? " on-lost" : ""}` }, icon, h("p", null, h("span", { class: "hidden" }, `${kinds[e.kind] ?? ""}: `), text), time);
    if (e.fingerprint) item.querySelector("p").append(" ", h("code", { class: "muted", title: e.fingerprint }, short(e.fingerprint)));
    item.time = time;
    return item;
  }, (item, e) => {
    if (e.time) putAgo(item.time, e.time);
    else put(item.time, "");
  });
}
