// What the page knows: JSON of the member that serves it, asked for again and again while somebody looks.

import { clock } from "./dom.js";

const patience = 3000; // milliseconds that an answer may take
const absent = 30; // seconds until a path that was not there is asked for again

/** get reads JSON; null is: this member has no such thing. */
export async function get(path) {
  const res = await fetch(`../${path}`, { signal: AbortSignal.timeout(patience), headers: { Accept: "application/json" }, cache: "no-store" });
  clock.heard(res.headers.get("Date"));
  if (res.status === 404) {
    await res.text();
    return { status: 404, data: null, size: 0 };
  }
  const text = await res.text();
  if (!res.ok) throw new Error(`${path.split("?")[0]}: ${res.status} ${text.slice(0, 200).trim()}`);
  return { status: 200, data: JSON.parse(text), size: text.length };
}

/** Feed is one path, the interval in seconds at which it is read, and what it last said. */
export class Feed {
  constructor(path, every = 1) {
    Object.assign(this, { path, every, due: 0, data: undefined });
  }

  /** read asks if it is time to; every tick is a second. It says whether there is an answer. */
  async read(tick) {
    if (tick < this.due) return false;
    const { status, data, size } = await get(this.path);
    // A long list is read less often: 100 kB a second are enough.
    this.due = tick + (status === 404 ? absent : Math.max(this.every, Math.ceil(size / 100_000)));
    this.data = data;
    return true;
  }
}

/** poll calls look once a second while the page is visible, one call after the other. */
export function poll(look, onPause) {
  let timer = 0;
  let looking = false;
  const again = async () => {
    clearTimeout(timer);
    if (document.hidden || looking) return;
    looking = true;
    const began = performance.now();
    try {
      await look();
    } finally {
      looking = false;
      if (document.hidden) onPause(true); // look may have said "live" since
      timer = setTimeout(again, Math.max(100, 1000 - (performance.now() - began)));
    }
  };
  document.addEventListener("visibilitychange", () => {
    onPause(document.hidden);
    again();
  });
  again();
  return again;
}
