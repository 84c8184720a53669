// A statement of SQL over the datasets of the node, its rows, and a simple chart of them.

import { useRef, useState } from "/vendor/hooks.js";
import { DATASETS, query } from "/api.js";
import { Failed, flats, html, Table, Text, useAsk } from "/parts.js";
import { Bars, Line } from "/plot.js";
import { cell, count, plural, quoted, shown } from "/text.js";

const MOST = 1000;
const BARS = 50;

export function Sql({ asked }) {
  const [text, write] = useState(asked.get("q") || "");
  const [state, set] = useState(null);
  const running = useRef(null);
  const run = async (event) => {
    if (event) event.preventDefault();
    if (!text.trim()) return;
    const stop = new AbortController();
    running.current = stop;
    set({ running: true });
    const began = performance.now();
    try {
      const answer = await query(text, MOST, stop.signal);
      set({ answer, seconds: (performance.now() - began) / 1000 });
    } catch (problem) {
      set(problem.name === "AbortError" ? null : { problem });
    }
  };
  const press = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
  };
  return html`<h1>SQL</h1>
    <form onSubmit=${run}>
      <label>Statement<textarea rows="6" spellcheck="false" autocapitalize="off" value=${text} onInput=${(event) => write(event.target.value)} onKeyDown=${press} placeholder=${'SELECT * FROM "nyc.flights" LIMIT 20'}></textarea></label>
      <div class="row"><button type="submit" class="main" disabled=${Boolean(state && state.running)}>Run</button>
        ${state && state.running && html`<button type="button" onClick=${() => running.current.abort()}>Stop</button>`}
        <span class="quiet">Ctrl+Enter runs it. It reads and changes nothing.</span></div>
    </form>
    ${!state && html`<${Readable} write=${write} />`}
    <div aria-live="polite">${state && state.running && html`<p class="quiet">Running…</p>`}</div>
    ${state && state.problem && html`<${Failed} problem=${state.problem} />`}
    ${state && state.answer && html`<${Result} answer=${state.answer} seconds=${state.seconds} />`}`;
}

const NAMED = 12;

/** Datasets that a statement may name; each writes a first one. */
function Readable({ write }) {
  const datasets = useAsk(DATASETS, 0, flats);
  const some = (datasets.value || []).filter((one) => one.records).slice(0, NAMED);
  if (!some.length) return null;
  return html`<section aria-labelledby="readable" class="answer"><h2 id="readable">What can be read</h2>
    <p class="row">${some.map((one) => html`<button type="button" onClick=${() => write(`SELECT * FROM ${quoted(one.name)} LIMIT 20`)}><${Text} of=${one.name} most=${80} /></button>`)}</p>
    <p class="quiet">Each is a table by its name, in double quotes${datasets.value.length > some.length ? html`; <a href="#/datasets">all datasets</a>` : ""}.</p></section>`;
}

function Result({ answer, seconds }) {
  const { columns, rows, head, whole } = answer;
  const numeric = columns.map(([, type], at) => /int|float|double|decimal/.test(type) || rows.some((row) => typeof row[at] === "number"));
  const shape = columns.map(([name, type], at) => ({
    name: html`<span title=${shown(type, 100)}><${Text} of=${name} most=${60} /></span>`,
    word: shown(name, 60),
    kind: numeric[at] ? "number" : "",
    of: (row) => (row[at] === null ? html`<span class="quiet">null</span>` : html`<span class="value"><${Text} of=${cell(row[at])} /></span>`),
  }));
  return html`<section aria-label="Answer" class="answer">
    <p role="status">${whole ? plural(rows.length, "row") : `The first ${plural(rows.length, "row")}; there may be more`} <span class="quiet">in ${seconds.toFixed(2)} s</span></p>
    ${head && html`<${Made} head=${head} />`}
    <${Chart} columns=${columns} rows=${rows} numeric=${numeric} />
    <${Table} label="Rows of the answer" columns=${shape} rows=${rows} empty="No row is like this." />
  </section>`;
}

/** What it was made of: what was read up to where, and how far that may be relied on. */
function Made({ head }) {
  const weak = head.standings.filter((one) => one.blocks < one.of);
  return html`<p class="quiet">Read: ${head.pins.map((one, at) => html`${at ? ", " : ""}<${Text} of=${one.name} most=${60} /> to block #${count(one.sequenceNumber)}`)}. Weakest fact: <${Text} of=${head.standing} most=${120} />.</p>
    ${weak.map((one) => html`<p class="note warn"><${Text} of=${one.name} most=${60} />: ${count(one.blocks)} of ${plural(one.of, "block")} are within reach for use, <${Text} of=${one.fact} most=${160} />.</p>`)}
    ${head.remarks.map((one) => html`<p class="note warn"><${Text} of=${one} most=${400} /></p>`)}`;
}

function Chart({ columns, rows, numeric }) {
  const figures = columns.map((_, at) => at).filter((at) => numeric[at]);
  const [along, setAlong] = useState(Math.max(0, columns.findIndex((_, at) => !numeric[at])));
  const [up, setUp] = useState(figures.find((at) => at !== along) ?? -1);
  if (rows.length < 2 || !figures.length) return null;
  const value = (row) => Number(row[up]);
  const points = up < 0 ? [] : rows.filter((row) => row[up] !== null && row[along] !== null && Number.isFinite(value(row)));
  const time = /timestamp|date/.test(columns[along][1]);
  const continuous = time || (numeric[along] && points.length > BARS);
  const placed = points.map((row) => ({ x: continuous ? (time ? Date.parse(row[along]) : Number(row[along])) : cell(row[along], 40), y: value(row) }));
  const sorted = continuous ? placed.filter((one) => Number.isFinite(one.x)).sort((one, other) => one.x - other.x) : placed.slice(0, BARS);
  const pick = (label, at, set, from) => html`<label>${label}<select value=${at} onChange=${(event) => set(Number(event.target.value))}>${from.map((each) => html`<option value=${each}>${shown(columns[each][0], 60)}</option>`)}</select></label>`;
  return html`<details><summary>Chart</summary>
    <div class="row">${pick("Along", along, setAlong, columns.map((_, at) => at))}${pick("Figure", up, setUp, figures)}</div>
    ${sorted.length === 0 ? html`<p class="quiet">There is nothing to draw.</p>` : continuous
      ? html`<${Line} title=${shown(columns[up][0], 60)} points=${sorted} time=${time} floats />`
      : html`<${Bars} title=${shown(columns[up][0], 60)} points=${sorted} />`}
    ${!continuous && placed.length > BARS && html`<p class="quiet">The first ${count(BARS)} of ${count(placed.length)}.</p>`}
  </details>`;
}
