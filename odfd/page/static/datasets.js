// All datasets of the node, and before them what needs a person.

import { useMemo, useState } from "/vendor/hooks.js";
import { DATASETS } from "/api.js";
import { Answer, flats, html, State, Table, Text, useAsk, When } from "/parts.js";
import { bytes, count, part, plural, shown, withdrawn } from "/text.js";
import { fact, reliance, sentence } from "/words.js";

const PAGE = 50;
const TROUBLED = ["refuted", "accused", "forked", "damaged", "refused", "unsigned"];
const MEANS = {
  refuted: "Running its transform again gives another result.",
  accused: "A validator ran its transform again and got another result.",
  forked: "Its key signed two histories. Neither continues here until one is chosen.",
  damaged: "The data on this disk is not what was written.",
  refused: "Its publisher signed a block that breaks a rule. The data here stays as it is.",
  unsigned: "Its head is not signed, so other nodes cannot use it.",
};

export function Datasets({ status, asked }) {
  const datasets = useAsk(DATASETS, 10, flats);
  const later = (path) => (datasets.value ? path : ""); // what takes the node longer than the list does
  const doctor = useAsk(later("/node/v1alpha1/doctor"), 60);
  const tasks = useAsk(later("/flow/v1alpha1/tasks?limit=5000"), 30, flats);
  return html`<h1>Datasets</h1>
    <${Answer} of=${datasets}>${(all) => html`
      <${Needed} needs=${needs(all, doctor.value || [], status, tasks.value || [])} looked=${Boolean(doctor.value && status)} />
      <${List} all=${all} first=${asked.get("q") || ""} />`}<//>`;
}

/** What waits for a person, worst first. */
function needs(datasets, probes, status, tasks) {
  const found = [];
  for (const one of datasets) {
    if (TROUBLED.includes(one.state))
      found.push({
        rank: ["refused", "unsigned"].includes(one.state) ? 1 : 0, state: one.state, name: one.name, means: MEANS[one.state],
        told: one.relyOn ? sentence(fact(one.relyOn.fact)) : "", href: `#/datasets/${part(one.name)}/trust`, to: "See why",
      });
    else if (one.conditions.length)
      found.push({ rank: 2, state: one.conditions.join(", ").toLowerCase(), name: one.name, means: withdrawn(one.withdrawnAt), told: one.withdrawnAt ? "The copy here stays." : "", tone: "warn", href: `#/datasets/${part(one.name)}/trust`, to: "See why" });
  }
  for (const probe of probes)
    if (probe.result !== "ok")
      found.push({ rank: probe.result === "failed" ? 0 : 2, state: probe.result, name: probe.name, means: sentence(probe.message), told: probe.hint });
  const failing = (status && status.flows && status.flows.failing) || {};
  for (const [name, times] of Object.entries(failing))
    found.push({ rank: 1, state: "failed", name, means: `This flow failed ${plural(times, "time")} in a row.`, told: "", href: "#/work", to: "See flows" });
  for (const task of unmended(tasks).filter((one) => !dismissed.has(one.id)).slice(0, 5))
    found.push({ task: task.id, rank: 3, state: task.finding ? "not ok" : "failed", tone: task.finding ? "bad" : "warn", name: `${task.kind} ${task.target}`, means: task.fault ? task.fault.detail : task.finding, told: "", href: "#/work", to: "See tasks" });
  return found.sort((one, other) => one.rank - other.rank);
}

/** Kinds of tasks that mend an earlier failure of theirs when they are done for the same target, as in odfctl top. */
const MENDING = ["apply", "backup", "export", "import", "ingest", "pull", "push"];

/** The tasks that failed or found something wrong, without those that the same work mended since. */
function unmended(tasks) {
  const well = (task) => MENDING.includes(task.kind) && tasks.some((one) => one.state === "done" && !one.finding && one.kind === task.kind && one.target === task.target && (one.startedAt || "") > (task.startedAt || ""));
  return tasks.filter((one) => (one.state === "failed" || one.finding) && !well(one));
}

/** Tasks that a person read of and dismissed, in this browser: nothing else ends those that no later work mends. */
const DISMISSED = "odfd.dismissed";
const dismissed = new Set(JSON.parse(localStorage.getItem(DISMISSED) || "[]"));

function dismiss(task) {
  dismissed.add(task);
  localStorage.setItem(DISMISSED, JSON.stringify([...dismissed].slice(-500))); // more than the node keeps tasks
}

const FIRST = 6;

function Needed({ needs: found, looked }) {
  const [all, set] = useState(false);
  const [gone, hide] = useState([]);
  found = found.filter((one) => !gone.includes(one.task));
  const end = (task) => {
    dismiss(task);
    hide([...gone, task]);
    document.getElementById("needs").focus(); // the button goes, and a keyboard would begin at the top again
  };
  const none = !found.length;
  if (none && !looked && !gone.length) return null;
  return html`<section class="needs" aria-labelledby="needs">
    <h2 id="needs" tabindex="-1" class=${none ? "note good" : ""}>${none ? "Nothing needs you." : html`Needs you <span class="quiet">${count(found.length)}</span>`}</h2>
    <ul>${(all ? found : found.slice(0, FIRST)).map((one) => html`<li key=${one.task || `${one.state} ${one.name}`} class=${one.rank ? "" : "bad"}>
      <${State} of=${one.state} tone=${one.tone} />
      <p><strong><${Text} of=${one.name} most=${120} /></strong>${" "}<span><${Text} of=${one.means} most=${300} />${one.told && html` <span class="quiet"><${Text} of=${one.told} most=${300} /></span>`}</span></p>
      ${one.task && html`<button type="button" class="plain" onClick=${() => end(one.task)}>Dismiss<span class="apart"> ${shown(one.name, 120)}</span></button>`}
      ${one.href && html`<a class="button" href=${one.href}>${one.to}<span class="apart"> ${shown(one.name, 120)}</span></a>`}
    </li>`)}</ul>
    ${found.length > FIRST && html`<button type="button" class="plain" aria-expanded=${all} onClick=${() => set(!all)}>${all ? "Fewer" : `All ${count(found.length)}`}</button>`}
  </section>`;
}

const byName = new Intl.Collator();
const ORDERS = {
  name: ["Name", (one, other) => byName.compare(one.name, other.name)],
  watermark: ["Freshest first", (one, other) => (other.watermark || "").localeCompare(one.watermark || "")],
  records: ["Most records first", (one, other) => (other.records || 0) - (one.records || 0)],
  bytes: ["Largest first", (one, other) => (other.bytes || 0) - (one.bytes || 0)],
};

function List({ all, first }) {
  const [text, search] = useState(first);
  const [kind, setKind] = useState("");
  const [state, setState] = useState("");
  const [order, setOrder] = useState("name");
  const [page, turn] = useState(0);
  const said = (one) => Object.entries(one.labels).map(([key, value]) => `${key}=${value}`);
  const found = useMemo(() => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (one) => {
      const where = `${one.name} ${one.did} ${said(one).join(" ")}`.toLowerCase();
      return (!kind || one.kind === kind) && (!state || one.state === state) && words.every((each) => where.includes(each));
    };
    return all.filter(fits).sort(ORDERS[order][1]);
  }, [all, text, kind, state, order]);
  const states = [...new Set(all.map((one) => one.state))].sort();
  const last = Math.max(0, Math.ceil(found.length / PAGE) - 1);
  const at = Math.min(page, last);
  const changed = (set) => (event) => {
    set(event.target.value);
    turn(0);
  };
  const columns = [
    { name: "Name", of: (one) => html`<a href=${`#/datasets/${part(one.name)}`}><${Text} of=${one.name} most=${80} /></a>${said(one).map((each) => html` <span class="label"><${Text} of=${each} most=${60} /></span>`)}` },
    { name: "State", of: (one) => html`<${State} of=${one.state} />${one.withdrawnAt && html` <${State} of="withdrawn" tone="warn" />`}` },
    { name: "Rely on", of: (one) => html`<span class="quiet">${reliance(one)}</span>` },
    { name: "Kind", of: (one) => one.kind },
    { name: "Records", kind: "number", of: (one) => count(one.records) },
    all.some((one) => one.bytes !== undefined) && { name: "Size", kind: "number", of: (one) => bytes(one.bytes) },
    { name: "Watermark", of: (one) => html`<${When} at=${one.watermark} />` },
    { name: "Peers", kind: "number", of: (one) => count(one.peers) },
  ].filter(Boolean);
  return html`<section aria-label="List of datasets">
    <form class="row" role="search" onSubmit=${(event) => event.preventDefault()}>
      <label class="grow">Search<input type="search" placeholder="name, id or label=value" value=${text} onInput=${changed(search)} /></label>
      <label>Kind<select value=${kind} onChange=${changed(setKind)}><option value="">all</option><option>root</option><option>derivative</option></select></label>
      <label>State<select value=${state} onChange=${changed(setState)}><option value="">all</option>${states.map((one) => html`<option>${one}</option>`)}</select></label>
      <label>Order<select value=${order} onChange=${changed(setOrder)}>${Object.entries(ORDERS).map(([key, [word]]) => html`<option value=${key}>${word}</option>`)}</select></label>
    </form>
    <p class="quiet" role="status">${found.length === all.length ? plural(all.length, "dataset") : `${count(found.length)} of ${plural(all.length, "dataset")}`}</p>
    <${Table} label="Datasets" columns=${columns} rows=${found.slice(at * PAGE, (at + 1) * PAGE)} keyed=${(one) => one.did}
      empty=${all.length ? "None is like this." : "No datasets yet: odfctl apply -f MANIFEST makes one, odfctl mirror add takes one of others."} />
    ${!found.length && text.trim() && html`<p><a href=${`#/search?q=${part(text.trim())}`}>Search the network for it</a></p>`}
    ${last > 0 && html`<nav class="row pages" aria-label="Pages">
      <button type="button" disabled=${at === 0} onClick=${() => turn(at - 1)}>Previous</button>
      <span>Page ${at + 1} of ${last + 1}</span>
      <button type="button" disabled=${at === last} onClick=${() => turn(at + 1)}>Next</button>
    </nav>`}
  </section>`;
}
