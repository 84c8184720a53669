// The datasets that one is made of, and those that are made of it, as a graph to click through.

import { useState } from "/vendor/hooks.js";
import { ask, finished } from "/api.js";
import { Answer, Failed, html, Table, Text, useAsk } from "/parts.js";
import { cell, count, part, plural, shown } from "/text.js";

const BOX = { wide: 210, high: 58, across: 70, down: 18 };

export function Lineage({ name, detail, asked }) {
  const graph = useAsk(`/dataset/v1alpha1/datasets/${part(name)}/lineage`, 30);
  return html`<section aria-label="Lineage">
    <${Answer} of=${graph}>${(found) => html`<${Graph} nodes=${found.nodes} />
      <${Table} label="Datasets of the graph" rows=${found.nodes} keyed=${(one) => one.id} columns=${[
        { name: "Dataset", of: (one) => (one.kind ? html`<a href=${`#/datasets/${part(one.ref)}/lineage`}><${Text} of=${one.ref} most=${100} /></a>` : html`<${Text} of=${one.ref} most=${100} />`) },
        { name: "Here it is", of: (one) => ({ self: "this dataset", upstream: "an input", downstream: "derived from it" })[one.relation] },
        { name: "Kind", of: (one) => one.kind || "not held here" },
        { name: "Made of", of: (one) => html`<${Text} of=${one.inputs.map((each) => each.ref).join(", ") || one.source} most=${200} />` },
        { name: "Records", kind: "number", of: (one) => count(one.records) },
        { name: "Trouble", of: (one) => one.problem && html`<${Text} of=${one.problem.detail} most=${200} />` },
      ]} />`}<//>
  </section>
  ${detail.dataset.records > 0 && html`<${Record} key=${asked.get("record")} name=${name} records=${detail.dataset.records} columns=${columnsOf(detail)} first=${asked.get("record") || ""} />`}`;
}

const columnsOf = ({ profile }) => (profile ? profile.columns.map((each) => each.name).filter((each) => !["offset", "op", "system_time"].includes(each)) : []);

/** Columns by the longest way from a source, so that every arrow goes to the right. */
function placed(nodes) {
  const known = new Map(nodes.map((one) => [one.id, one]));
  const column = new Map();
  const depth = (id, seen) => {
    if (column.has(id)) return column.get(id);
    if (seen.has(id)) return 0;
    seen.add(id);
    const inputs = (known.get(id)?.inputs || []).filter((each) => known.has(each.id));
    const found = inputs.length ? 1 + Math.max(...inputs.map((each) => depth(each.id, seen))) : 0;
    column.set(id, found);
    return found;
  };
  nodes.forEach((one) => depth(one.id, new Set()));
  const filled = [];
  return new Map(nodes.map((one) => {
    const at = column.get(one.id);
    filled[at] = (filled[at] || 0) + 1;
    return [one.id, { x: at * (BOX.wide + BOX.across), y: (filled[at] - 1) * (BOX.high + BOX.down) }];
  }));
}

function Graph({ nodes }) {
  const at = placed(nodes);
  const all = [...at.values()];
  const wide = Math.max(...all.map((one) => one.x)) + BOX.wide + 4;
  const high = Math.max(...all.map((one) => one.y)) + BOX.high + 4;
  const arrows = nodes.flatMap((one) => one.inputs.filter((each) => at.has(each.id)).map((each) => [at.get(each.id), at.get(one.id)]));
  return html`<div class="scroll graph" role="group" aria-label="Graph of datasets" tabindex="0">
    <svg width=${wide} height=${high} viewBox=${`-2 -2 ${wide} ${high}`} role="group" aria-label=${`${plural(nodes.length, "dataset")}, inputs on the left`}>
      ${arrows.map(([from, to]) => {
        const [x1, y1, x2, y2] = [from.x + BOX.wide, from.y + BOX.high / 2, to.x, to.y + BOX.high / 2];
        const half = (x1 + x2) / 2;
        return html`<path class="arrow" d=${`M${x1} ${y1}C${half} ${y1} ${half} ${y2} ${x2 - 7} ${y2}`} /><path class="tip" d=${`M${x2} ${y2}l-8 -4v8z`} />`;
      })}
      ${nodes.map((one) => html`<${Node} one=${one} at=${at.get(one.id)} />`)}
    </svg></div>`;
}

function Node({ one, at }) {
  const told = one.kind ? `${one.kind}${one.records === null ? "" : `, ${plural(one.records, "record")}`}` : "not held here";
  const name = shown(one.ref, 27);
  const box = html`<g transform=${`translate(${at.x} ${at.y})`} class=${`node ${one.relation} ${one.problem ? "troubled" : ""} ${one.kind ? "" : "absent"}`}>
    <rect width=${BOX.wide} height=${BOX.high} rx="8" /><title>${shown(one.ref, 200)}</title><text x="12" y="24" class="name">${name}</text>${" "}<text x="12" y="44" class="told">${told}</text></g>`;
  return one.kind ? html`<a href=${`#/datasets/${part(one.ref)}/lineage`}>${box}</a>` : box;
}

/** Which records of the inputs one record was made of, down to where they came from. */
function Record({ name, columns, records, first }) {
  const [offset, set] = useState(first);
  const [column, choose] = useState("");
  const [state, told] = useState(null);
  const trace = async (event) => {
    event.preventDefault();
    told({ running: "asked" });
    try {
      const task = await ask("POST", `/dataset/v1alpha1/datasets/${part(name)}/lineage`, { record: Number(offset), ...(column && { column }) });
      told({ found: await finished(task, (view) => told({ running: view.message || view.state })) });
    } catch (problem) {
      told({ problem });
    }
  };
  return html`<section aria-labelledby="record"><h2 id="record">Where a record came from</h2>
    <form class="row" onSubmit=${trace}>
      <label>Offset of the record<input type="number" min="0" step="1" required placeholder=${records ? `0 to ${records - 1}` : ""} value=${offset} onInput=${(event) => set(event.target.value)} /></label>
      <label>Only its column<select value=${column} onChange=${(event) => choose(event.target.value)}><option value="">all</option>${columns.map((each) => html`<option value=${each}>${shown(each, 80)}</option>`)}</select></label>
      <button type="submit" disabled=${Boolean(state && state.running)}>Trace</button>
    </form>
    <div aria-live="polite">${state && state.running && html`<p class="quiet">${shown(state.running, 200)}</p>`}</div>
    ${state && state.problem && html`<${Failed} problem=${state.problem} />`}
    ${state && state.found && html`<${Traced} found=${state.found} />`}
  </section>`;
}

const ROLES = { value: "its values are in it", decides: "it decides that the record is there", change: "it takes a record back, or replaces one" };

function Traced({ found }) {
  const origin = (one) => (one.origin ? [one.origin.kind, one.origin.name, one.origin.address, one.origin.state].filter(Boolean).join(" ") : "");
  return html`<p class="quiet">${found.complete ? "Followed down to where it was ingested; nothing was left out." : "Not all of it could be followed."}</p>
    ${found.column && html`<p>What <code><${Text} of=${found.column} most=${80} /></code> of record ${count(found.record)} was made of.</p>`}
    <${Table} label="Records on the way" rows=${found.records} keyed=${(one) => `${one.id} ${one.offset}`} columns=${[
      { name: "Record", of: (one) => html`<${Text} of=${`${one.ref} @ ${one.offset}`} most=${120} />` },
      { name: "Block", kind: "number", of: (one) => (one.sequenceNumber === null ? "–" : `#${count(one.sequenceNumber)}`) },
      { name: "It is", of: (one) => html`<${Text} of=${one.problem ? `${one.state}: ${one.problem.detail}` : one.state} most=${200} />` },
      { name: "Values", of: (one) => html`<span class="value"><${Text} of=${one.row ? Object.entries(one.row).map(([key, value]) => `${key}=${cell(value, 60)}`).join("  ") : ""} most=${500} /></span>` },
      { name: "Made of", of: (one) => html`${one.rows.map((each) => html`<span class="step"><${Text} of=${`${each.ref} @ ${each.offset}`} most=${120} /> <span class="quiet">${ROLES[each.role] || ""}${each.cause ? "; its coming made the record be written" : ""}</span></span>`)}
        ${one.truncated && html`<span class="step quiet">and more, ${count(one.count)} in all</span>`}<${Text} of=${origin(one)} most=${400} />` },
      { name: "By", of: (one) => html`${one.paths.map((each) => html`<span class="step"><${Text} of=${each.steps.map((step) => `${step.operator.toLowerCase()}${step.line ? ` (line ${step.line})` : ""}`).join(" → ")} most=${300} /></span>`)}` },
    ]} />`;
}
