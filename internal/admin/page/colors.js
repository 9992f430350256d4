// A member keeps its colour as long as the page is open, whoever comes and goes.

const colours = 12; // of page.css, m0 to m11
const slots = new Map();

/** learn gives colours to members that have none: the lowest that is free, so the first twelve differ. */
export function learn(ids) {
  for (const id of [...ids].sort()) {
    if (slots.has(id)) continue;
    const taken = new Set(slots.values());
    let slot = 0;
    while (taken.has(slot)) slot++;
    slots.set(id, slot);
  }
}

/** forget frees the colours of members that are not shown any more. */
export function forget(shown) {
  for (const id of slots.keys()) if (!shown.has(id)) slots.delete(id);
}

/** colour is the class of a member's colour. */
export const colour = (id) => (slots.has(id) ? `m${slots.get(id) % colours}` : "mx");
