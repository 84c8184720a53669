// The schema of a dataset, with what its files say of the values.

import { html, Table, Text } from "/parts.js";
import { cell, count, plural } from "/text.js";

export function Columns({ detail }) {
  const { profile } = detail;
  if (!profile) return null;
  const of = profile.isWhole ? "" : `, of the newest ${plural(profile.slices, "slice")} alone`;
  const unread = profile.unread ? ` ${plural(profile.unread, "slice")} could not be read.` : "";
  const columns = [
    { name: "Column", of: (one) => html`<code><${Text} of=${one.name} most=${80} /></code>` },
    { name: "Type", of: (one) => html`<span class="quiet"><${Text} of=${one.type} most=${80} />${one.optional ? "" : ", never null"}</span>` },
    { name: "Nulls", kind: "number", of: (one) => count(one.nulls) },
    { name: "Least", of: (one) => html`<span class="value"><${Text} of=${cell(one.minimum, 60)} /></span>` },
    { name: "Greatest", of: (one) => html`<span class="value"><${Text} of=${cell(one.maximum, 60)} /></span>` },
    { name: "Distinct", kind: "number", of: (one) => distinct(one.distinct) },
    { name: "Meaning", of: (one) => html`<${Text} of=${one.comment} most=${200} />` },
  ];
  return html`<section aria-labelledby="columns"><h2 id="columns">Columns</h2>
    <p class="quiet">What the data files say of ${plural(profile.records, "record")}${of}; no rows are read for it.${unread}${profile.message && html` <${Text} of=${profile.message} most=${300} />`}</p>
    <${Table} label="Columns" columns=${columns} rows=${profile.columns} keyed=${(one) => one.name} empty="It has no schema yet." />
  </section>`;
}

function distinct(range) {
  if (!range) return "–";
  return range.atLeast === range.atMost ? count(range.atLeast) : `${count(range.atLeast)}–${count(range.atMost)}`;
}
