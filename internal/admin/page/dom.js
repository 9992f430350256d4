// Elements, lists and numbers. Nothing here parses markup: text remains text.

const SVG = "http://www.w3.org/2000/svg";

function build(node, attrs, children) {
  for (const [name, value] of Object.entries(attrs ?? {})) {
    if (name === "on") for (const [event, f] of Object.entries(value)) node.addEventListener(event, f);
    else if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((c) => c !== undefined && c !== null));
  return node;
}

/** h returns a new HTML element. Attributes whose names start with on are listeners. */
export const h = (tag, attrs, ...children) => build(document.createElement(tag), attrs, children);

/** svg returns a new SVG element. */
export const svg = (tag, attrs, ...children) => build(document.createElementNS(SVG, tag), attrs, children);

export const byId = (id) => document.getElementById(id);

/** put sets a node's text if it differs, so that unchanged text stays selected. */
export function put(node, text) {
  const t = String(text);
  if (node.textContent !== t) node.textContent = t;
}

/** attr sets an attribute if it differs. null removes it. */
export function attr(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
}

/**
 * list updates parent's children to those of items. An item with the same key keeps its node, which moves only if necessary.
 * make returns a new node. update is called with each node and its item.
 */
export function list(parent, items, keyOf, make, update) {
  const old = parent.keyed ?? new Map();
  const now = new Map();
  for (const item of items) {
    let key = keyOf(item);
    while (now.has(key)) key += "'";
    now.set(key, { item, node: old.get(key)?.node ?? make(item) });
  }
  for (const [key, { node }] of old) if (!now.has(key)) node.remove();
  let at = parent.firstChild;
  for (const { item, node } of now.values()) {
    if (node === at) at = at.nextSibling;
    else if (node.parentNode === parent && parent.moveBefore) parent.moveBefore(node, at); // keeps the focus
    else parent.insertBefore(node, at);
    update(node, item);
  }
  parent.keyed = now;
}

// Characters that are invisible or change the direction of text. They are shown by their numbers.
const unseen = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb]/g;

/** visible returns text without deceptive characters: clients choose keys. */
export function visible(text, most = 400) {
  const all = Array.from(String(text));
  const tail = Math.min(40, most >> 1); // pods' names differ at the end
  const cut = all.length > most ? [...all.slice(0, most - tail - 1), "\u2026", ...all.slice(-tail)] : all;
  return cut.join("").replace(unseen, (c) => `\u27e8${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`);
}

/** key returns an element with a client's text, isolated from the direction of the surrounding text. */
export function key(text) {
  const node = h("bdi", { class: "key" });
  putKey(node, text);
  return node;
}

/** putKey replaces the text of such an element. */
export function putKey(node, text) {
  put(node, text === "" ? "(no name)" : visible(text, 120));
  attr(node, "title", visible(text, 2000));
}

const whole = new Intl.NumberFormat("en");

/** count formats a number of things. */
export const count = (n) => whole.format(Math.round(n));

/** rate formats a number per second with few digits. */
export function rate(n) {
  if (n >= 100) return count(n);
  return n >= 10 || n === 0 ? n.toFixed(0) : n.toFixed(1);
}

/** bytes formats a size, such as 1.5 MiB. */
export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let i = 0;
  for (; n >= 1024 && i < units.length - 1; i++) n /= 1024;
  return `${i > 0 && n < 10 && n % 1 ? n.toFixed(1) : Math.round(n)} ${units[i]}`;
}

export const percent = (x) => `${(100 * x).toFixed(x > 0 && x < 0.1 ? 1 : 0)} %`;

/** short returns the part of a hash that is shown. */
export const short = (hash) => (hash ? hash.slice(0, 8) : "none");

/** span formats a duration in seconds. */
export function span(seconds) {
  const s = Math.max(0, seconds);
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 48 * 3600) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86400)} days`;
}

/** clock is the member's clock, which may differ from the browser's. */
export const clock = {
  ahead: 0, // milliseconds
  now() {
    return Date.now() + this.ahead;
  },
  heard(date) {
    const at = Date.parse(date ?? "");
    // The header has full seconds: smaller differences are ignored.
    if (!Number.isNaN(at)) this.ahead = Math.abs(at - Date.now()) > 2000 ? at - Date.now() : 0;
  },
};

/** ago formats the age of an instant. */
export function putAgo(node, iso) {
  const at = Date.parse(iso ?? "");
  if (Number.isNaN(at) || at <= 0) {
    put(node, "\u2013");
    return;
  }
  attr(node, "datetime", iso);
  attr(node, "title", new Date(at).toLocaleString());
  const s = (clock.now() - at) / 1000;
  put(node, s < 1 ? "now" : `${span(s)} ago`);
}

/** seconds parses a Go duration: 1h0m0s, 1.5s, 500ms. */
export function seconds(text) {
  const unit = { h: 3600, m: 60, s: 1, ms: 1e-3, "\u00b5s": 1e-6, us: 1e-6, ns: 1e-9 };
  let sum = 0;
  for (const [, n, u] of String(text).matchAll(/([\d.]+)(h|ms|m|s|\u00b5s|us|ns)/g)) sum += Number(n) * unit[u];
  return sum;
}

/** per formats a window after an amount: an hour, a minute, in 1m30s. */
export function per(text, unit) {
  const name = windowName(text, unit);
  if (!/^[a-z]+$/.test(name)) return `in ${name}`;
  return name === "hour" ? "an hour" : `a ${name}`;
}

/** windowName returns a short name of a window: minute for 1m0s, and 1m30s unchanged. */
function windowName(text, unit) {
  const s = seconds(text);
  const names = { 1: "second", 60: "minute", 3600: "hour", 86400: "day", 604800: "week", 2592000: "month", 31536000: "year" };
  if (names[s]) return names[s];
  return s ? String(text).replace(/(\D)0s$/, "$1").replace(/(\D)0m$/, "$1") : (unit ?? "");
}

/** chip returns a small label. tone is good, warn, bad, info or empty. */
export function chip(text, tone, title) {
  return h("span", { class: `chip ${tone ?? ""}`.trim(), title }, text);
}

/** putChip changes a chip. */
export function putChip(node, text, tone, title) {
  put(node, text);
  attr(node, "class", `chip ${tone ?? ""}`.trim());
  attr(node, "title", title);
}
