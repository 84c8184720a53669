// Makes texts for people. What strangers wrote is only ever shown as text, and what would steer its display is made visible.

const STEERS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]|[\u{e0000}-\u{e0fff}]/gu;
const MOST = 4000;

/** A text of a stranger: control and direction characters as their numbers, and no more of it than fits a page. */
export function shown(value, most = MOST) {
  const text = String(value);
  const cut = text.length > most ? text.slice(0, most) + "…" : text;
  return cut.replace(STEERS, (one) => `\\u{${one.codePointAt(0).toString(16)}}`);
}

/** That the publisher of a dataset shows it no more; empty if it does. */
export const withdrawn = (at) => (at ? `Withdrawn by its publisher on ${at.slice(0, 10)}.` : "");

/** A value of JSON in one line. */
export function cell(value, most = 300) {
  if (value === null || value === undefined) return "";
  return shown(typeof value === "object" ? JSON.stringify(value) : value, most);
}

/** An address that a person may follow, or nothing: scripts and files have addresses too. */
export function link(text) {
  try {
    const url = new URL(text);
    return url.protocol === "https:" || url.protocol === "http:" ? url.href : null;
  } catch {
    return null;
  }
}

const numbers = new Intl.NumberFormat("en");
export const count = (number) => (number === null || number === undefined || number === null ? "–" : numbers.format(number));
export const plural = (number, one, more = one + "s") => `${count(number)} ${number === 1 ? one : more}`;

export function bytes(number) {
  if (number === null || number === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"]; // as odfctl says them
  let unit = 0;
  while (number >= 999.5 && unit < units.length - 1) {
    number /= 1000;
    unit += 1;
  }
  return `${unit && number < 99.95 ? number.toFixed(1) : Math.round(number)} ${units[unit]}`;
}

export const rate = (number, unit = "bytes") =>
  number === undefined || number === null ? "–" : unit === "bytes" ? `${bytes(number)}/s` : `${number < 10 ? number.toFixed(1) : count(Math.round(number))} ${shown(unit, 40)}/s`;

const STEPS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

export function ago(text, now = Date.now()) {
  if (!text) return "–";
  const seconds = Math.round((now - Date.parse(text)) / 1000);
  if (Number.isNaN(seconds)) return shown(text, 40);
  const past = Math.abs(seconds);
  if (past < 2) return "now";
  if (past > 120 * 86400) return text.slice(0, 10);
  const [unit, size] = STEPS.find(([, each]) => past >= each * (each === 1 ? 1 : 1.5)) || STEPS[3];
  const said = `${Math.round(past / size)} ${unit}`;
  return seconds > 0 ? `${said} ago` : `in ${said}`;
}

/** A number of seconds in the unit that suits it. */
export function span(seconds) {
  const [unit, size] = STEPS.find(([, each]) => seconds >= each) || STEPS[3];
  return `${Math.round(seconds / size)} ${unit}`;
}

/** The beginning and the end of an id that is too long to read. */
export function short(id) {
  const text = shown(id || "–", 200);
  if (text.startsWith("did:")) return `…${text.slice(-8)}`;
  return text.length > 20 ? `${text.slice(0, 8)}…${text.slice(-6)}` : text;
}

export const quoted = (name) => `"${String(name).replaceAll('"', '""')}"`;

/** A word of a shell command, as a person would type it. */
export const word = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${String(text).replaceAll("'", "'\\''")}'`);

/** A step of a path, whatever is in it; `.` and `..` would be walked by browsers, however they are written. */
export const part = (text) => (/^\.{1,2}$/.test(text) ? "-" : encodeURIComponent(text));
