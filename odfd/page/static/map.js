// A map of the peers that this node is connected with: who holds how much of what is here.

import { html } from "/parts.js";
import { part, plural, shown } from "/text.js";

const WIDE = 340;
const HIGH = 250;
const LABELLED = 16;

/** Each peer leads to what it holds; the line to one is the thicker the more that is. */
export function PeerMap({ peers, chosen, me }) {
  if (!peers.length) return null;
  const holds = (one) => (one.holds || []).length;
  const most = Math.max(1, ...peers.map(holds));
  const placed = peers.map((one, at) => {
    const angle = (2 * Math.PI * at) / peers.length - Math.PI / 2;
    return { one, x: WIDE / 2 + 125 * Math.cos(angle), y: HIGH / 2 + 95 * Math.sin(angle) };
  });
  const [x, y] = [WIDE / 2, HIGH / 2];
  // No higher than what is on it: one peer alone stands above the node.
  const top = Math.min(y - 40, ...placed.map((each) => each.y - 30));
  const foot = Math.max(y + 44, ...placed.map((each) => each.y + 36));
  const end = (one) => `…${shown(one.peerId, 80).slice(-6)}`;
  const told = (one) => `${end(one)}, ${shown(one.peerId, 80)}: serves ${plural(holds(one), "dataset")} of what is here`;
  return html`<div class="graph map"><svg viewBox=${`0 ${top} ${WIDE} ${foot - top}`} role="group" aria-label=${`Map of ${plural(peers.length, "connected peer")}`}>
    ${placed.map((each) => html`<line class=${holds(each.one) ? "tie" : "tie none"} x1=${x} y1=${y} x2=${each.x} y2=${each.y} stroke-width=${1 + (4 * holds(each.one)) / most} />`)}
    <circle class="self" cx=${x} cy=${y} r="20" /><text class="told" x=${x} y=${y + 34} text-anchor="middle">${shown(me || "this node", 24)}</text>
    ${placed.map(({ one, x: left, y: at }) => html`<a href=${`#/network?peer=${part(one.peerId)}`} aria-label=${told(one)} aria-current=${one.peerId === chosen ? "true" : undefined}>
      <circle class="peer" cx=${left} cy=${at} r=${peers.length > LABELLED ? 6 : 11} />
      ${peers.length <= LABELLED && html`<text class="told" x=${left} y=${at < HIGH / 2 ? at - 17 : at + 25} text-anchor="middle">${end(one)}</text>`}</a>`)}
  </svg></div>`;
}
