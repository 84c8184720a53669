// Parts that several views are made of.

import { h, Component } from "/vendor/preact.js";
import { useEffect, useMemo, useRef, useState } from "/vendor/hooks.js";
import htm from "/vendor/htm.js";
import { get, finished, Problem } from "/api.js";
import { ago, bytes, count, rate, shown, short } from "/text.js";

export const html = htm.bind(h);

const STATE = "/odfd/schemas/resource/v1alpha1/State";
const same = (value) => value;

/** A resource on one level: its headers, its spec, and what only the running node knows of it. */
export const flat = ({ headers, spec, status }) => {
  const [, state] = Object.entries(status.conditions || {}).find(([key]) => key.endsWith(STATE)) || [];
  return { ...spec, ...headers, ...(state && state.value) };
};
export const flats = (list) => list.items.map(flat);
/** Flows: what each is for by the name of its dataset, or by the pattern of several. */
export const flows = (list) => flats(list).map((one) => ({ ...one, target: typeof one.target === "string" ? one.target.replace(/^Dataset:/, "") : one.target.name || "%" }));

/** What the API says at `path`, asked again every so many seconds while somebody looks. `read`: turns it into the value. */
export function useAsk(path, every = 0, read = same) {
  const [state, set] = useState({ path, value: null, problem: null });
  const [turn, again] = useState(0);
  useEffect(() => {
    if (!path) return undefined;
    const stop = new AbortController();
    let timer = 0;
    const look = async () => {
      try {
        const value = await get(path, stop.signal);
        if (stop.signal.aborted) return;
        set({ path, value, problem: null });
      } catch (problem) {
        if (stop.signal.aborted) return;
        set((old) => ({ path, value: old.path === path ? old.value : null, problem }));
      }
      if (every) timer = setTimeout(() => (document.hidden ? wait() : look()), every * 1000);
    };
    const wait = () => (timer = setTimeout(() => (document.hidden ? wait() : look()), 1000));
    look();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [path, every, turn]);
  const mine = state.path === path ? state : { value: null, problem: null };
  const value = useMemo(() => mine.value && read(mine.value), [mine.value]);
  return { value, problem: mine.problem, again: () => again((one) => one + 1) };
}

/** Bytes a second by id, of those of `all` whose `bytes` grew since the answer before. */
export function useRates(all, bytes) {
  const before = useRef({ at: 0, have: new Map() });
  return useMemo(() => {
    const at = performance.now();
    const { at: since, have: had } = before.current;
    const have = new Map((all || []).filter((one) => bytes(one) !== null).map((one) => [one.id, bytes(one)]));
    before.current = { at, have };
    const grown = [...have].filter(([id, now]) => since && had.has(id) && now > had.get(id));
    return new Map(grown.map(([id, now]) => [id, ((now - had.get(id)) * 1000) / (at - since)]));
  }, [all]);
}

export function Text({ of, most }) {
  return html`<bdi>${shown(of ?? "", most)}</bdi>`;
}

export function Id({ of }) {
  return of ? html`<code class="id" title=${shown(of, 300)}>${short(of)}</code>` : "–";
}

export function When({ at }) {
  return at ? html`<time datetime=${shown(at, 40)} title=${shown(at, 40)}>${ago(at)}</time>` : "–";
}

const TONES = {
  fresh: "good", current: "good", ok: "good", done: "good", idle: "good", connected: "good", updated: "good", reproduced: "good",
  confirmed: "bad", stale: "warn", syncing: "calm", unsigned: "warn", waiting: "calm", running: "calm", warning: "warn", stalled: "warn",
  paused: "calm", retrying: "warn", refuted: "bad", accused: "bad", forked: "bad", damaged: "bad", failed: "bad", refused: "bad",
  blocked: "bad", mismatch: "bad", cancelled: "warn", "not ok": "bad", "up-to-date": "good", Success: "good", NoOp: "good", Failed: "bad", Cancelled: "warn",
};
export const tone = (word) => TONES[word] || "calm";

/** A word for a state: its colour never says more than the word. */
export function State({ of, tone: given }) {
  return html`<span class=${`state ${given || tone(of)}`}><bdi>${shown(of || "–", 60)}</bdi></span>`;
}

export function Failed({ problem, again }) {
  if (!problem) return null;
  return html`<div class="note bad" role="alert">
    <p><strong>${shown(problem.message || String(problem), 600)}</strong></p>
    ${problem.hint && html`<p>${shown(problem.hint, 400)}</p>`}
    ${again && html`<button type="button" onClick=${again}>Ask again</button>`}
  </div>`;
}

/** An answer, or that it is on its way, or why it did not come. */
export function Answer({ of, children }) {
  if (of.value === null && of.problem) return html`<${Failed} problem=${of.problem} again=${of.again} />`;
  if (of.value === null) return html`<p class="quiet" aria-live="polite">Loading…</p>`;
  return html`${of.problem && html`<${Failed} problem=${of.problem} />`}${children(of.value)}`;
}

/** A table; a column is `{name, of(row), kind, word}`: `kind` is `number` or nothing, `word` the name as a text where it is
 * none. Where the window is narrow each row is a card, with the names of columns in it: the roles are said, since an
 * element of a table that is no longer laid out as one has none. A column that is empty in each row is left out. Cells
 * are keyed by column, so that a column that comes or goes closes no open question of another. */
export function Table({ label, columns: all, rows, keyed, empty = "Nothing here.", row: decorate, titled = false }) {
  if (!rows.length) return html`<p class="quiet">${empty}</p>`;
  const columns = all.filter((one, place) => place === 0 || rows.some((row) => !isEmpty(one.of(row))));
  return html`<div class="scroll" role="group" aria-label=${label} tabindex="0"><table class="cards" role="table">
    <caption class=${titled ? "" : "apart"}>${label}</caption>
    <thead role="rowgroup"><tr role="row">${columns.map((one) => html`<th scope="col" role="columnheader" class=${one.kind}>${one.name}</th>`)}</tr></thead>
    <tbody role="rowgroup">${rows.map((row, at) => html`<tr role="row" key=${keyed ? keyed(row) : at} class=${decorate ? decorate(row) : ""}>
      ${columns.map((one, place) =>
        place === 0
          ? html`<th key=${one.word ?? one.name} scope="row" role="rowheader" class=${one.kind} data-of=${one.word ?? one.name}>${one.of(row)}</th>`
          : html`<td key=${one.word ?? one.name} role="cell" class=${one.kind} data-of=${one.word ?? one.name}>${one.of(row)}</td>`)}
    </tr>`)}</tbody>
  </table></div>`;
}

/** Whether a cell shows nothing. */
function isEmpty(cell) {
  if (Array.isArray(cell)) return cell.every(isEmpty);
  if (cell && cell.type === Text) return !cell.props.of;
  return cell === null || cell === undefined || cell === false || String(cell).trim() === "";
}

export function Facts({ of }) {
  return html`<dl class="facts">${of.filter(Boolean).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

export function Share({ have, want, label }) {
  if (!want) return html`<span class="quiet">${count(have)}</span>`;
  return html`<span class="share"><progress max=${want} value=${have} aria-label=${label}></progress> ${Math.floor((100 * have) / want)} %</span>`;
}

/** How far a task came, and how fast. */
function Progress({ view, label }) {
  const rates = useRates([view], (one) => one.done);
  const said = view.unit === "bytes" ? bytes : count;
  if (!view.total && !view.done) return null;
  return html`<p class="row">${view.total ? html`<${Share} have=${view.done} want=${view.total} label=${label} />` : null}
    <span class="quiet">${said(view.done)}${view.total ? ` of ${said(view.total)}` : ""}${rates.has(view.id) ? `, ${rate(rates.get(view.id), view.unit)}` : ""}</span></p>`;
}

/** What it will do first, and only then the act. `act()` gives a task, or an answer that is whole. `children` are what
 * may be chosen before; `on` hears whether the question is open. What was asked stays beside its answer, although the
 * button may offer the opposite by then. */
export function Act({ label, title, says, command, act, then, kind = "", on, children }) {
  const [dialog, heading, harmless, asked] = [useRef(null), useRef(null), useRef(null), useRef(null)];
  const [state, set] = useState(null);
  const isSettled = Boolean(state && (state.running || state.done));
  const question = isSettled ? asked.current : { label, title, says, command, children };
  const perform = async (event) => {
    event.preventDefault();
    asked.current = question;
    set({ running: true, told: "asked" });
    let wrong = false;
    try {
      const answer = await act();
      const isTask = answer && answer.id && answer.kind;
      const result = isTask ? await finished(answer, (view) => {
        wrong = Boolean(view.finding);
        set({ running: true, told: view.message || view.state, view });
      }) : answer;
      set(({ view }) => ({ done: true, wrong, told: then ? then(result) : "Done.", view }));
    } catch (problem) {
      set(({ view }) => ({ problem, view }));
    }
  };
  const open = () => {
    if (!(state && state.running)) set(null);
    if (on) on(true);
    dialog.current.showModal();
    (children === undefined ? harmless : heading).current.focus(); // where Enter does nothing
  };
  const close = () => dialog.current.close();
  return html`<button type="button" class=${kind} onClick=${open}>${label}</button>
    <dialog ref=${dialog} aria-label=${question.title} onClose=${() => on && on(false)} onClick=${(event) => event.target === dialog.current && close()}>
      <form class="inside" onSubmit=${perform}>
        <h2 tabindex="-1" ref=${heading}>${question.title}</h2>
        ${[].concat(question.says).filter(Boolean).map((one) => html`<p>${one}</p>`)}
        ${question.children && html`<fieldset disabled=${isSettled}>${question.children}</fieldset>`}
        ${question.command && html`<p class="quiet">The same in a terminal: <code>${shown(question.command, 400)}</code></p>`}
        <div class="foot">
          <div aria-live="polite">
            ${state && state.told && html`<p class=${state.done ? `note ${state.wrong ? "bad" : "good"}` : "note"}>${typeof state.told === "string" ? shown(state.told, 600) : state.told}</p>`}
            ${state && state.view && html`<${Progress} view=${state.view} label=${`Progress of ${question.title}`} />
              ${state.running && html`<p class="quiet">It continues when this is closed: <a href="#/work" onClick=${close}>Tasks and flows</a> shows it.</p>`}`}
            ${state && state.problem && html`<${Failed} problem=${state.problem} />`}
          </div>
          <div class="row end">
            <button type="button" ref=${harmless} onClick=${close}>${state && (state.done || state.view) ? "Close" : "Cancel"}</button>
            ${!(state && state.done) && html`<button class="main" disabled=${Boolean(state && state.running)}>${question.label}</button>`}
          </div>
        </div>
      </form>
    </dialog>`;
}

/** Keeps a mistake of one view from taking the page with it. */
export class Guard extends Component {
  componentDidCatch(error) {
    this.setState({ error });
  }
  componentDidUpdate(before) {
    if (before.at !== this.props.at && this.state.error) this.setState({ error: null });
  }
  render({ children }, { error }) {
    if (!error) return children;
    const told = new Problem({ detail: `this view failed: ${error.message}`, hint: "the other views continue; please report it" }, 0);
    return html`<${Failed} problem=${told} />`;
  }
}
