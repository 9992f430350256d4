// The ring as a picture: the hash space, clockwise from the top, and inside the share of each member.

import { h, svg, put, attr, percent, short, visible } from "./dom.js";
import { color } from "./colors.js";

const outer = { r: 146, w: 26 };
const inner = { r: 104, w: 14 };
const pin = 156;

/** point returns the point at a fraction of the turn, 0 to 1, and a radius. */
function point(part, r) {
  const a = 2 * Math.PI * part;
  return `${(r * Math.sin(a)).toFixed(2)} ${(-r * Math.cos(a)).toFixed(2)}`;
}

/** arc returns a path from one fraction of the turn to another. */
function arc(from, to, r) {
  if (to - from > 0.9999) return `M${point(0, r)}A${r} ${r} 0 1 1 ${point(0.5, r)}A${r} ${r} 0 1 1 ${point(1, r)}`;
  return `M${point(from, r)}A${r} ${r} 0 ${to - from > 0.5 ? 1 : 0} 1 ${point(to, r)}`;
}

/** place returns the fraction of the turn of a hash of 16 hex digits. */
export const place = (hash) => Number.parseInt(hash.slice(0, 13), 16) / 2 ** 52;

/** Ring draws into a box. onHover is called with the member under the pointer, or null. */
export class Ring {
  constructor(box, onHover) {
    this.onHover = onHover;
    this.bands = svg("g", { fill: "none" });
    this.pins = svg("g");
    this.svg = svg("svg", { viewBox: "-170 -170 340 340", role: "img", "aria-label": "The ring" }, this.bands, this.pins);
    this.title = h("b");
    this.lines = [h("span"), h("span", { class: "muted" })];
    this.middle = h("p", { class: "middle" }, this.title, ...this.lines);
    box.append(this.svg, this.middle);
    this.svg.addEventListener("pointermove", (e) => this.point(e));
    this.svg.addEventListener("pointerleave", () => this.focus(null));
  }

  /** draw draws another ring. */
  draw(map) {
    this.map = map;
    const paths = map.members.map(() => "");
    for (let from = 0, to; from < map.sectors.length; from = to) {
      for (to = from + 1; to < map.sectors.length && map.sectors[to] === map.sectors[from]; to++);
      paths[map.sectors[from]] += arc(from / map.sectors.length, to / map.sectors.length, outer.r - outer.w / 2);
    }
    this.byMember = new Map();
    this.bands.replaceChildren();
    if (map.members.length === 0) {
      this.bands.append(svg("path", { d: arc(0, 1, outer.r - outer.w / 2), "stroke-width": outer.w, class: "empty" }));
    }
    let sum = 0;
    const gap = map.members.length > 1 && map.members.length < 60 ? 0.0035 : 0;
    map.members.forEach((m, i) => {
      const g = svg("g", { class: `owner ${color(m.id)} ${m.state === "active" ? "" : "unwell"}` });
      if (paths[i]) g.append(svg("path", { d: paths[i], "stroke-width": outer.w }));
      if (m.share > gap) g.append(svg("path", { d: arc(sum + gap / 2, sum + m.share - gap / 2, inner.r - inner.w / 2), "stroke-width": inner.w }));
      sum += m.share;
      this.bands.append(g);
      this.byMember.set(m.id, g);
    });
    const shares = map.members.slice(0, 20).map((m) => `${visible(m.id, 60)} owns ${percent(m.share)}`);
    attr(this.svg, "aria-label", map.members.length ? `The ring of ${map.members.length}: ${shares.join(", ")}` : "The ring is empty");
    this.focus(this.focused && this.byMember.has(this.focused) ? this.focused : null);
    this.mark();
  }

  /** point returns the member under the pointer. */
  point(e) {
    if (!this.map) return;
    const box = this.svg.getBoundingClientRect();
    const x = ((e.clientX - box.left) / box.width) * 340 - 170;
    const y = ((e.clientY - box.top) / box.height) * 340 - 170;
    const r = Math.hypot(x, y);
    const part = (Math.atan2(x, -y) / (2 * Math.PI) + 1) % 1;
    this.focus(this.under(r, part));
  }

  under(r, part) {
    const { sectors, members } = this.map;
    if (r <= outer.r + 4 && r >= outer.r - outer.w) return members[sectors[Math.floor(part * sectors.length)]]?.id ?? null;
    if (r <= inner.r + 4 && r >= inner.r - inner.w - 4) {
      let sum = 0;
      for (const m of members) if (part < (sum += m.share)) return m.id;
    }
    return null;
  }

  /** focus highlights a member, or none with null. */
  focus(id) {
    const changed = this.focused !== id;
    this.focused = id;
    for (const [m, g] of this.byMember ?? []) g.classList.toggle("dim", id !== null && m !== id);
    this.say();
    if (changed) this.onHover?.(id);
  }

  say() {
    const m = this.map?.members.find((x) => x.id === this.focused);
    attr(this.middle, "class", `middle ${m ? color(m.id) : ""}`);
    if (m) {
      this.text(visible(m.id, 60), `${percent(m.share)} of the ring`, `weight ${m.weight}, ${m.state}`);
    } else if (this.key?.owner) {
      attr(this.middle, "class", `middle ${color(this.key.owner)}`);
      this.text(visible(this.key.owner, 60), "owns this key", this.key.successor ? `then ${visible(this.key.successor, 40)}` : "no successor");
    } else if (this.map) {
      const n = this.map.members.length;
      this.text(n === 0 ? "Empty" : String(n), n === 0 ? "no member is on the ring" : n === 1 ? "member" : "members", this.map.fingerprint ? `ring ${short(this.map.fingerprint)}` : "");
      this.middle.classList.toggle("big", n > 0);
    }
  }

  text(title, ...lines) {
    put(this.title, title);
    lines.forEach((l, i) => put(this.lines[i], l));
  }

  /** mark marks keys: hot ones as {position, title}, and the explained one as {position, owner, successor}. */
  mark(hot = this.hot ?? [], key = this.key ?? null) {
    [this.hot, this.key] = [hot, key];
    const pins = hot.filter((k) => k.position).map((k) => {
      const [x, y] = point(place(k.position), pin).split(" ");
      return svg("circle", { class: "hot", cx: x, cy: y, r: 5 }, svg("title", null, k.title));
    });
    if (key?.position) {
      const at = place(key.position);
      pins.push(
        svg("path", { class: "ray", d: `M${point(at, inner.r - inner.w - 2)}L${point(at, pin)}` }),
        svg("path", { class: `pin ${color(key.owner)}`, d: `M${point(at, outer.r + 3)}L${point(at - 0.012, outer.r + 21)}L${point(at + 0.012, outer.r + 21)}Z` }),
      );
    }
    this.pins.replaceChildren(...pins);
    this.focus(this.focused ?? null);
  }
}
