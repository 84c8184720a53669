// Rows of a dataset, newest first, a page at a time.

import { useEffect, useState } from "/vendor/hooks.js";
import { query } from "/api.js";
import { Answer, Failed, html, Table, Text, useAsk } from "/parts.js";
import { cell, count, part, quoted, shown } from "/text.js";

const PAGE = 50;
const OPS = { 0: "+A", 1: "-R", 2: "-C", 3: "+C" };
const MEANS = "+A appended, -C what a correction replaced, +C what it says now, -R taken back";

export function Rows({ name }) {
  const [before, turn] = useState([]);
  return before.length
    ? html`<${Older} name=${name} before=${before[before.length - 1]} turn=${turn} pages=${before} />`
    : html`<${Newest} name=${name} turn=${turn} />`;
}

function Newest({ name, turn }) {
  const tail = useAsk(`/dataset/v1alpha1/datasets/${part(name)}/tail?limit=${PAGE}`, 15);
  return html`<section aria-label="Rows"><${Answer} of=${tail}>${({ columns, rows }) => {
    const [names, types] = [columns.map((one) => one.name), columns.map((one) => one.type)];
    const newest = [...rows].reverse();
    return html`<${Sheet} name=${name} names=${names} types=${types} rows=${newest} />
      <${Pages} names=${names} rows=${newest} pages=${[]} turn=${turn} />`;
  }}<//></section>`;
}

function Older({ name, before, turn, pages }) {
  const [state, set] = useState({});
  useEffect(() => {
    const stop = new AbortController();
    set({});
    query(`SELECT * FROM ${quoted(name)} WHERE "offset" < ${Number(before)} ORDER BY "offset" DESC LIMIT ${PAGE}`, PAGE, stop.signal)
      .then((answer) => set({ answer }))
      .catch((problem) => problem.name !== "AbortError" && set({ problem }));
    return () => stop.abort();
  }, [name, before]);
  const names = state.answer ? state.answer.columns.map(([one]) => one) : [];
  const types = state.answer ? state.answer.columns.map(([, one]) => one) : [];
  const rows = state.answer ? state.answer.rows : [];
  return html`<section aria-label="Rows">
    ${state.problem ? html`<${Failed} problem=${state.problem} />` : state.answer ? html`<${Sheet} name=${name} names=${names} types=${types} rows=${rows} />` : html`<p class="quiet">Loading…</p>`}
    <${Pages} names=${names} rows=${rows} pages=${pages} turn=${turn} />
  </section>`;
}

/** Decimals and wide integers come as texts: they are figures by their type, or where that is not told by their look. */
function isFigure(rows, at, type) {
  if (type) return /^(u?int|float|double|decimal)/i.test(type);
  return rows.some((row) => typeof row[at] === "number");
}

function Sheet({ name: dataset, names, types, rows }) {
  const op = names.indexOf("op");
  const columns = names.map((name, at) => ({
    name: html`<${Text} of=${name} most=${60} />`,
    word: shown(name, 60),
    kind: at !== op && isFigure(rows, at, types[at]) ? "number" : "",
    of: (row) => name === "offset" ? html`<a href=${`#/datasets/${part(dataset)}/lineage?record=${part(row[at])}`} title="Where it came from">${cell(row[at])}</a>` : (at === op ? OPS[row[at]] || cell(row[at]) : row[at] === null ? html`<span class="quiet">null</span>` : html`<span class="value"><${Text} of=${cell(row[at])} /></span>`),
  }));
  return html`<${Table} label="Rows, newest first" columns=${columns} rows=${rows} empty="It has no rows here." />
    ${op >= 0 && rows.length > 0 && html`<p class="quiet">op: ${MEANS}.</p>`}`;
}

function Pages({ names, rows, pages, turn }) {
  const at = names.indexOf("offset");
  const last = rows.length && at >= 0 ? Number(rows[rows.length - 1][at]) : 0;
  if (!pages.length && !last) return null;
  return html`<nav class="row pages" aria-label="Pages">
    <button type="button" disabled=${!pages.length} onClick=${() => turn(pages.slice(0, -1))}>Newer</button>
    ${rows.length > 0 && at >= 0 && html`<span>offsets ${count(last)} to ${count(Number(rows[0][at]))}</span>`}
    <button type="button" disabled=${!last} onClick=${() => turn([...pages, last])}>Older</button>
  </nav>`;
}
