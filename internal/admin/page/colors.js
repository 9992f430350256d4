// A member keeps its color while the page is open.

const colors = 12; // of page.css, m0 to m11
const slots = new Map();

/** learn assigns free colors to new members, so that the first twelve differ. */
export function learn(ids) {
  for (const id of [...ids].sort()) {
    if (slots.has(id)) continue;
    const taken = new Set(slots.values());
    let slot = 0;
    while (taken.has(slot)) slot++;
    slots.set(id, slot);
  }
}

/** forget frees the colors of members that are not shown anymore. */
export function forget(shown) {
  for (const id of slots.keys()) if (!shown.has(id)) slots.delete(id);
}

/** color returns the class of a member's color. */
export const color = (id) => (slots.has(id) ? `m${slots.get(id) % colors}` : "mx");
