// What happens, as it happens.

import { useEffect, useState } from "/vendor/hooks.js";
import { get, lines } from "/api.js";
import { Failed, html, Table, Text, When } from "/parts.js";
import { cell, count, plural } from "/text.js";

const KEPT = 1000;
const SHOWN = 200;

export function Events() {
  const [events, set] = useState([]);
  const [problem, fail] = useState(null);
  const [text, search] = useState("");
  const [still, hold] = useState(null);
  const [turn, again] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    fail(null);
    const follow = async () => {
      const kept = await get("/resource/v1alpha1/events?kept=1", stop.signal);
      set(kept.slice(-KEPT).reverse());
      const since = kept.length ? kept[kept.length - 1].sequence : 0;
      for await (const event of lines(`/resource/v1alpha1/events?since=${since}`, stop.signal)) set((old) => [event, ...old].slice(0, KEPT));
    };
    follow().catch((error) => error.name !== "AbortError" && !stop.signal.aborted && fail(error));
    return () => stop.abort();
  }, [turn]);
  const from = still || events;
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const found = from.filter((one) => words.every((word) => `${one.kind} ${one.subject} ${one.message}`.toLowerCase().includes(word)));
  return html`<h1>Events</h1>
    <form class="row" role="search" onSubmit=${(event) => event.preventDefault()}>
      <label class="grow">Search<input type="search" placeholder="kind, dataset or message" value=${text} onInput=${(event) => search(event.target.value)} /></label>
      <button type="button" aria-pressed=${Boolean(still)} onClick=${() => hold(still ? null : events)}>${still ? "Continue" : "Hold still"}</button>
    </form>
    ${problem && html`<${Failed} problem=${problem} again=${() => again(turn + 1)} />`}
    <p class="quiet">${found.length > SHOWN ? `The newest ${count(SHOWN)} of ${plural(found.length, "event")}` : plural(found.length, "event")}${still && events[0] !== still[0] ? "; more came meanwhile" : ""}</p>
    <${Table} label="Events, newest first" rows=${found.slice(0, SHOWN)} keyed=${(one) => one.sequence} empty="Nothing happened yet." columns=${[
      { name: "Kind", of: (one) => html`<code><${Text} of=${one.kind} most=${80} /></code>` },
      { name: "About", of: (one) => html`<${Text} of=${one.subject} most=${100} />` },
      { name: "What happened", of: (one) => html`<${Text} of=${one.message} most=${400} /> <span class="quiet value"><${Text} of=${Object.entries(one.data).map(([key, value]) => `${key}=${cell(value, 60)}`).join(" ")} most=${300} /></span>` },
      { name: "When", of: (one) => html`<${When} at=${one.time} />` },
    ]} />`;
}
