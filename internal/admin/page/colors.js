// A member keeps its color as long as the page is open, whoever comes and goes.

const colors = 12; // of page.css, m0 to m11
const slots = new Map();

/** learn gives colors to members that have none: the lowest that is free, so the first twelve differ. */
export function learn(ids) {
  for (const id of [...ids].sort()) {
    if (slots.has(id)) continue;
    const taken = new Set(slots.values());
    let slot = 0;
    while (taken.has(slot)) slot++;
    slots.set(id, slot);
  }
}

/** forget frees the colors of members that are not shown any more. */
export function forget(shown) {
  for (const id of slots.keys()) if (!shown.has(id)) slots.delete(id);
}

/** color is the class of a member's color. */
export const color = (id) => (slots.has(id) ? `m${slots.get(id) % colors}` : "mx");
