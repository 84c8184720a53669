// What the node does now and did lately, and what it pulls by itself.

import { ask } from "/api.js";
import { Act, Answer, flats, flows as read, html, Share, State, Table, Text, useAsk, useRates, When } from "/parts.js";
import { bytes, count, part, plural, rate, shown, word } from "/text.js";

export function Work() {
  const tasks = useAsk("/flow/v1alpha1/tasks?limit=5000", 2, flats);
  const flows = useAsk("/flow/v1alpha1/flows?limit=5000", 5, read);
  const rates = useRates(tasks.value, (one) => (one.state === "running" ? one.done : null));
  return html`<h1>Tasks and flows</h1>
    <section aria-labelledby="tasks"><h2 id="tasks">Tasks</h2>
      <${Answer} of=${tasks}>${(all) => html`<${Table} label="Tasks" rows=${[...all].sort(newest)} keyed=${(one) => one.id} empty="Nothing runs, and nothing ran lately." columns=${[
        { name: "Task", of: (one) => html`<${Text} of=${one.kind} most=${40} /> <${Text} of=${one.target} most=${80} />` },
        { name: "State", of: (one) => html`<${State} of=${one.finding ? "not ok" : one.state} />` },
        { name: "Progress", of: (one) => (one.state === "running" && one.total ? html`<${Share} have=${one.done} want=${one.total} label=${`Progress of ${shown(one.kind, 40)}`} />` : one.unit === "bytes" ? bytes(one.done) : one.unit ? html`${count(one.done)} <${Text} of=${one.done === 1 ? one.unit.replace(/s$/, "") : one.unit} most=${40} />` : "") },
        { name: "Rate", kind: "number", of: (one) => rate(rates.get(one.id), one.unit) },
        { name: "Message", of: (one) => html`<${Text} of=${one.fault ? one.fault.detail : one.finding || (one.state === "done" ? "" : one.message)} most=${300} />${one.fault && one.fault.hint && html` <span class="quiet"><${Text} of=${one.fault.hint} most=${200} /></span>`}` },
        { name: "Began", of: (one) => html`<${When} at=${one.startedAt} />` },
        { name: "Ended", of: (one) => html`<${When} at=${one.finishedAt} />` },
        { name: "Actions", of: (one) => (["running", "waiting"].includes(one.state) ? html`<${Act} label="Cancel" title=${`Cancel ${shown(one.kind, 40)} ${shown(one.target, 80)}?`} command=${`odfctl delete task ${one.name}`}
            says="It ends where it is. What it has committed stays; the rest is dropped and can be done again." act=${() => ask("DELETE", `/flow/v1alpha1/tasks/${part(one.id)}`).then(() => tasks.again())} then=${() => "It is cancelled."} />` : "") },
      ]} />`}<//></section>
    <section aria-labelledby="flows"><h2 id="flows">Flows</h2>
      <${Answer} of=${flows}>${(all) => html`<${Table} label="Flows" rows=${all} keyed=${(one) => one.id} empty="Nothing is pulled on a schedule. A manifest of kind Flow declares one: odfctl explain Flow shows how." columns=${[
        { name: "Flow", of: (one) => html`<${Text} of=${one.name} most=${80} />` },
        { name: "State", of: (one) => html`<${State} of=${one.state || "not in force"} />` },
        { name: "Pulls", of: (one) => html`<a href=${`#/datasets/${part(one.target)}`}><${Text} of=${one.target} most=${80} /></a>` },
        { name: "When", of: (one) => html`<${Text} of=${one.when} most=${160} />` },
        { name: "Last", of: (one) => html`${one.outcome && html`<${State} of=${one.outcome} />`} <${When} at=${one.last} />` },
        { name: "Next", of: (one) => html`<${When} at=${one.next} />` },
        { name: "Runs", kind: "number", of: (one) => count(one.runs) },
        { name: "Failed in a row", kind: "number", of: (one) => count(one.failures) },
        { name: "Message", of: (one) => html`<${Text} of=${one.message} most=${200} />` },
        { name: "Actions", of: (one) => html`<${Rest} one=${one} again=${flows.again} />` },
      ]} />`}<//></section>`;
}

const newest = (one, other) => (other.startedAt || "9").localeCompare(one.startedAt || "9");

function Rest({ one, again }) {
  const paused = one.state === "paused";
  const act = async () => {
    await ask(paused ? "DELETE" : "PUT", `/flow/v1alpha1/flows/${part(one.name)}/pause`);
    again();
  };
  return html`<${Act} label=${paused ? "Resume" : "Pause"} title=${`${paused ? "Resume" : "Pause"} ${shown(one.name, 80)}?`}
    command=${`odfctl flow ${paused ? "resume" : "pause"} ${word(one.name)}`}
    says=${paused ? "It runs automatically again, as declared." : `${shown(one.target, 80)} is not pulled automatically until you resume it. ${plural(one.runs, "run")} so far.`}
    act=${act} then=${() => (paused ? "It is resumed." : "It is paused.")} />`;
}
