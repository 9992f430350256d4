// The documents of the member that serves the page, read periodically while the page is visible.

import { clock } from "./dom.js";

const patience = 3000; // milliseconds for an answer
const absent = 30; // seconds until a path that the member did not serve is read again

/** get fetches JSON. It returns null if the member does not serve the path. */
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

/** Feed is a path, the interval in seconds at which it is read, and its last document. */
export class Feed {
  constructor(path, every = 1) {
    Object.assign(this, { path, every, due: 0, data: undefined });
  }

  /** read fetches the path if it is due. A tick is a second. It reports whether the member answered. */
  async read(tick) {
    if (tick < this.due) return false;
    const { status, data, size } = await get(this.path);
    // A large document is read less often, to limit the traffic to 100 kB per second.
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
      if (document.hidden) onPause(true); // look may have set "live" meanwhile
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
