// Rows, size and watermark of a dataset as its chain grew.

import { Answer, html, useAsk, When } from "/parts.js";
import { Line } from "/plot.js";
import { bytes, count, part } from "/text.js";

const MOST = 1000;

/** `whole`: records and bytes of all blocks, from which the newest are counted back where they are not all. */
export function History({ name, whole }) {
  const blocks = useAsk(`/dataset/v1alpha1/datasets/${part(name)}/blocks?kind=AddData&kind=ExecuteTransform&limit=${MOST}`, 30);
  return html`<section aria-labelledby="history"><h2 id="history">Over time</h2>
    <${Answer} of=${blocks}>${(found) => html`<${Plots} blocks=${[...found].reverse()} whole=${whole} />`}<//>
  </section>`;
}

function Plots({ blocks, whole }) {
  if (!blocks.length) return html`<p class="quiet">No data came yet.</p>`;
  const times = blocks.map((one) => Date.parse(one.systemTime));
  const sum = (of, all) => {
    const theirs = blocks.reduce((found, one) => found + (of(one) || 0), 0);
    let total = blocks.length === MOST && all > theirs ? all - theirs : 0;
    return blocks.map((one, at) => ({ x: times[at], y: (total += of(one) || 0) }));
  };
  if (times[0] === times[times.length - 1])
    return html`<p class="quiet">All of its data came in ${blocks.length === 1 ? "one block" : `${count(blocks.length)} blocks at one time`}: <${When} at=${blocks[0].systemTime} />.</p>`;
  const watermarks = blocks.map((one, at) => ({ x: times[at], y: one.watermark ? Date.parse(one.watermark) : NaN })).filter((one) => !Number.isNaN(one.y));
  return html`${blocks.length === MOST && html`<p class="quiet">Of the newest ${count(MOST)} blocks of data.</p>`}
    <${Line} title="Records" points=${sum((one) => one.records, whole.records)} says=${count} time />
    <${Line} title="Size" points=${sum((one) => one.dataSize, whole.bytes)} says=${bytes} time />
    ${watermarks.length > 0 && html`<${Line} title="Watermark" points=${watermarks} says=${(at) => new Date(at).toISOString().slice(0, 10)} time floats />`}`;
}
