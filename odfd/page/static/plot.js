// Small charts as SVG, each with its first and last value in words.

import { html } from "/parts.js";
import { count } from "/text.js";

const WIDE = 520;
const HIGH = 110;
/** Room after the last point, in which its step can be seen. */
const LAST = 40;
const moment = (at, fine) => new Date(at).toISOString().replace("T", " ").slice(0, fine ? 19 : 16);

/** Steps, since between two blocks nothing changes. */
export function Line({ title, points, says = count, time = false, floats = false }) {
  const xs = points.map((one) => one.x);
  const ys = points.map((one) => one.y);
  const [left, right] = [Math.min(...xs), Math.max(...xs)];
  const [low, top] = [floats ? Math.min(...ys) : Math.min(0, ...ys), Math.max(...ys)];
  const x = (value) => 4 + ((WIDE - LAST) * (value - left)) / (right - left || 1);
  const y = (value) => HIGH - 6 - ((HIGH - 14) * (value - low)) / (top - low || 1);
  const path = points.map((one, at) => (at ? `H${x(one.x).toFixed(1)}V${y(one.y).toFixed(1)}` : `M${x(one.x).toFixed(1)} ${y(one.y).toFixed(1)}`)).join("") + `H${WIDE - 4}`;
  const where = time ? (at) => moment(at, right - left < 600_000) : count;
  const told = `${title}: ${says(ys[0])} at ${where(left)}, ${says(ys[ys.length - 1])} at ${where(right)}`;
  return html`<figure class="plot">
    <figcaption><span>${title}</span> <strong>${says(ys[ys.length - 1])}</strong></figcaption>
    <svg viewBox=${`0 0 ${WIDE} ${HIGH}`} role="img" aria-label=${told} preserveAspectRatio="none">
      <path class="area" d=${`${path}V${HIGH - 6}H4Z`} />
      <path class="line" d=${path} />
    </svg>
    <p class="axis" aria-hidden="true"><span>${where(left)}</span><span>${where(right)}</span></p>
  </figure>`;
}

export function Bars({ title, points, says = count }) {
  const top = Math.max(0, ...points.map((one) => one.y));
  const low = Math.min(0, ...points.map((one) => one.y));
  const size = (value) => (100 * Math.abs(value)) / (top - low || 1);
  return html`<figure class="plot"><figcaption>${title}</figcaption>
    <ul class="bars">${points.map((one) => html`<li><span class="name"><bdi>${one.x}</bdi></span>
      <span class="track"><span class=${one.y < 0 ? "bar below" : "bar"} style=${{ width: `${size(one.y)}%` }}></span></span>
      <span class="number">${says(one.y)}</span></li>`)}</ul>
  </figure>`;
}
