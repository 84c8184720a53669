// Blocks of a dataset, newest first; each with its event, and how that differs from the event of its kind before it.

import { useState } from "/vendor/hooks.js";
import { Answer, Failed, html, Id, Text, useAsk, When } from "/parts.js";
import { bytes, cell, count, part, plural } from "/text.js";

const PAGE = 50;

export function Chain({ name, detail }) {
  const [before, turn] = useState([]);
  const from = before.length ? `&before=${before[before.length - 1]}` : "";
  const blocks = useAsk(`/dataset/v1alpha1/datasets/${part(name)}/blocks?limit=${PAGE}${from}`, before.length ? 0 : 15);
  return html`<section aria-label="Chain">
    <p class="quiet">${plural(detail.dataset.blocks, "block")}; each names the hash of the one before it. Open one to see its event.</p>
    <${Answer} of=${blocks}>${(found) => html`
      <ol class="chain">${found.map((one) => html`<${Block} key=${one.hash} name=${name} one=${one} />`)}</ol>
      ${(before.length > 0 || (found.length > 0 && found[found.length - 1].sequenceNumber > 0)) && html`<nav class="row pages" aria-label="Pages">
        <button type="button" disabled=${!before.length} onClick=${() => turn(before.slice(0, -1))}>Newer</button>
        <button type="button" disabled=${!found.length || found[found.length - 1].sequenceNumber === 0}
          onClick=${() => turn([...before, found[found.length - 1].hash])}>Older</button>
      </nav>`}`}<//>
  </section>`;
}

function Block({ name, one }) {
  const [open, set] = useState(false);
  return html`<li><details onToggle=${(event) => set(event.target.open)}>
    <summary><span class="number">#${count(one.sequenceNumber)}</span> <strong>${one.event}</strong>
      <span class="grow"><${Text} of=${one.summary} most=${200} /></span> <span class="quiet"><${When} at=${one.systemTime} /></span></summary>
    ${open && html`<${Event} name=${name} one=${one} />`}
  </details></li>`;
}

function Event({ name, one }) {
  const block = useAsk(`/dataset/v1alpha1/datasets/${part(name)}/blocks/${one.hash}`);
  const earlier = useAsk(`/dataset/v1alpha1/datasets/${part(name)}/blocks?kind=${part(one.event)}&before=${one.hash}&limit=1`);
  const found = earlier.value && earlier.value[0];
  const other = useAsk(found ? `/dataset/v1alpha1/datasets/${part(name)}/blocks/${found.hash}` : "");
  return html`<div class="event"><p class="row quiet"><span>hash <${Id} of=${one.hash} /></span><span>${bytes(one.size)}</span>
      ${one.dataSize !== null && html`<span>data ${bytes(one.dataSize)}</span>`}</p>
    <${Answer} of=${block}>${(now) => {
      if (earlier.problem || other.problem) return html`<${Failed} problem=${earlier.problem || other.problem} />`;
      if (!earlier.value || (found && !other.value)) return html`<p class="quiet">Loading…</p>`;
      return html`<${Difference} now=${leaves(content(now))} then=${found ? leaves(content(other.value)) : new Map()} other=${found} />`;
    }}<//></div>`;
}

const content = (block) => {
  const said = block.manifest.content || block.manifest;
  return said.event || said;
};

const DEEP = 12;
const MOST = 400;

/** The values of a manifest by their path. */
function leaves(value, path = "", found = new Map(), depth = 0) {
  if (found.size >= MOST) return found;
  if (value !== null && typeof value === "object" && depth < DEEP)
    for (const [key, each] of Object.entries(value)) leaves(each, path ? `${path}.${key}` : key, found, depth + 1);
  else found.set(path, cell(value, 4000));
  return found;
}

function Difference({ now, then, other }) {
  const paths = [...new Set([...now.keys(), ...then.keys()])];
  const kind = (path) => (!other ? "" : !then.has(path) ? "added" : !now.has(path) ? "gone" : then.get(path) !== now.get(path) ? "changed" : "");
  const marks = { added: "+", gone: "−", changed: "≠", "": "" };
  const changes = paths.filter((path) => kind(path)).length;
  return html`<p class="quiet">${other ? `Compared with the event of this kind before it, #${count(other.sequenceNumber)}: ${changes ? `${count(changes)} of ${count(paths.length)} values differ.` : "all is the same."}` : "The first event of this kind."}</p>
    <div class="scroll" role="group" aria-label="Event" tabindex="0"><table class="cards difference" role="table">
      <thead role="rowgroup"><tr role="row"><th scope="col" role="columnheader"><span class="apart">How it differs</span></th><th scope="col" role="columnheader">Value</th>${other && html`<th scope="col" role="columnheader">in #${count(other.sequenceNumber)}</th>`}<th scope="col" role="columnheader">in this block</th></tr></thead>
      <tbody role="rowgroup">${paths.map((path) => html`<tr role="row" class=${kind(path)}>
        <td role="cell">${marks[kind(path)]}<span class="apart">${kind(path)}</span></td><th scope="row" role="rowheader"><code><${Text} of=${path} most=${120} /></code></th>
        ${other && html`<td role="cell" data-of=${`in #${count(other.sequenceNumber)}`}><span class="value"><${Text} of=${then.get(path) ?? ""} /></span></td>`}
        <td role="cell" data-of=${other ? "in this block" : undefined}><span class="value"><${Text} of=${now.get(path) ?? ""} /></span></td></tr>`)}</tbody>
    </table></div>`;
}
