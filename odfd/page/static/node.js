// The node itself: what it stands on, what is wrong with it, and the settings in force.

import { Answer, Facts, html, Id, State, Table, Text, useAsk, When } from "/parts.js";
import { bytes, count } from "/text.js";

export function Node({ status }) {
  const doctor = useAsk("/node/v1alpha1/doctor", 30);
  const settings = useAsk("/node/v1alpha1/settings");
  return html`<h1>Node</h1>
    ${status && html`<section aria-label="What it is"><${Facts} of=${[
      ["Name", html`<${Text} of=${status.name || "–"} most=${80} />`],
      ["Version", html`<${Text} of=${status.version} most=${40} />`],
      ["Running since", html`<${When} at=${status.startedAt} />`],
      ["Memory", bytes(status.memory)],
      ["Key", html`<${Id} of=${status.nodeId} />`],
      ["Datasets", count(Object.values(status.datasets).reduce((sum, each) => sum + each, 0))],
      ["Of these shown to others", count(status.published)],
      ["Peers", count(status.peers)],
      ["Tasks under way", count(status.tasks)],
      status.disk && ["Disk free", `${bytes(status.disk.free)} of ${bytes(status.disk.total)}`],
      status.disk && ["Database", bytes(status.disk.database)],
      status.engine && ["Engine", html`<${Text} of=${status.engine.name} most=${40} /> <${State} of=${status.engine.state} />`],
    ]} /></section>`}
    <section aria-labelledby="probes"><h2 id="probes">What it stands on</h2>
      <${Answer} of=${doctor}>${(all) => html`<${Table} label="What was tried" rows=${[...all].sort(worst)} keyed=${(one) => one.name} columns=${[
        { name: "Tried", of: (one) => html`<${Text} of=${one.name} most=${60} />` },
        { name: "Result", of: (one) => html`<${State} of=${one.result} />` },
        { name: "Found", of: (one) => html`<${Text} of=${one.message} most=${400} />` },
        { name: "What to do", of: (one) => html`<${Text} of=${one.hint} most=${300} />` },
      ]} />`}<//></section>
    <section aria-labelledby="settings"><h2 id="settings">Settings in force</h2>
      <${Answer} of=${settings}>${(found) => html`<p class="quiet">${found.file ? html`From <code><${Text} of=${found.file} most=${300} /></code>, variables, flags and defaults` : "From variables, flags and defaults; no file was read"}; secrets are masked.</p>
        <pre tabindex="0"><${Text} of=${found.toml} most=${60_000} /></pre>`}<//></section>`;
}

const RANK = { failed: 0, warning: 1, ok: 2 };
const worst = (one, other) => RANK[one.result] - RANK[other.result];
