// Starts the page: a session from the address, then the view that the rest of the address names.

import { render } from "/vendor/preact.js";
import { useEffect, useRef, useState } from "/vendor/hooks.js";
import { opened } from "/first.js";
import { begin, leave, Problem } from "/api.js";
import { Failed, Guard, html, Text, useAsk } from "/parts.js";
import { Datasets } from "/datasets.js";

const VIEWS = [
  ["datasets", "Datasets"],
  ["search", "Search"],
  ["network", "Network"],
  ["work", "Tasks and flows"],
  ["sql", "SQL"],
  ["events", "Events"],
  ["node", "Node"],
];
/** Views of one thing, by those of all. */
const NAMED = { datasets: "dataset", search: "card" };
const COME = { datasets: Datasets };
/** The files of other views come when one is first looked at, or when the browser has nothing else to do. */
const LOADS = {
  dataset: async () => (await import("/dataset.js")).Dataset,
  search: async () => (await import("/search.js")).Search,
  card: async () => (await import("/search.js")).Card,
  network: async () => (await import("/network.js")).Network,
  work: async () => (await import("/work.js")).Work,
  sql: async () => (await import("/sql.js")).Sql,
  events: async () => (await import("/events.js")).Events,
  node: async () => (await import("/node.js")).Node,
};

async function bring(view) {
  if (!COME[view]) COME[view] = await LOADS[view]();
}

function View({ of, ...given }) {
  const [, come] = useState(null);
  const [why, fail] = useState(null);
  useEffect(() => {
    if (!COME[of]) bring(of).then(() => come(of), fail);
  }, [of]);
  const problem = why && new Problem({ detail: `this view was not loaded: ${why.message}`, hint: "odfctl status shows whether the node runs" }, 0);
  if (problem) return html`<h1>Not here</h1><${Failed} problem=${problem} again=${() => location.reload()} />`;
  return COME[of] ? html`<${COME[of]} ...${given} />` : html`<p class="quiet" aria-live="polite">Loading…</p>`;
}

/** `#/datasets/NAME/trust?q=x` as its steps and what it asks. */
function place() {
  const [path, ...asked] = location.hash.replace(/^#\/?/, "").split("?");
  const steps = path.split("/").filter(Boolean).map((step) => {
    try {
      return decodeURIComponent(step);
    } catch {
      return step;
    }
  });
  return { steps: steps.length ? steps : ["datasets"], asked: new URLSearchParams(asked.join("?")) };
}

function Page() {
  const [at, go] = useState(place);
  const status = useAsk("/node/v1alpha1/status", 5);
  const main = useRef(null);
  const first = useRef(true);
  useEffect(() => {
    const moved = () => go(place());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  const [top, name, tab] = at.steps;
  const [view, title] = VIEWS.find(([path]) => path === top) || VIEWS[0];
  useEffect(() => {
    document.title = `${name ? `${name} · ` : ""}${title} · odfd`;
    if (!first.current) main.current.focus();
    first.current = false;
  }, [top, name]);
  if (status.problem && status.problem.rule === "page-session") return html`<${Closed} problem=${status.problem} />`;
  const node = status.value;
  return html`<header>
      <a class="skip" href=${location.hash || "#/"} onClick=${(event) => {
        event.preventDefault();
        main.current.focus();
      }}>Skip to the content</a>
      <a class="brand" href="#/datasets"><img src="/icon.svg" alt="" width="24" height="24" /> <span>${node ? html`<${Text} of=${node.name || "odfd"} most=${40} />` : "odfd"}</span></a>
      <nav aria-label="Views">${VIEWS.map(([path, word]) =>
        html`<a href=${`#/${path}`} aria-current=${path === top ? "page" : undefined}>${word}</a>`)}</nav>
      <button type="button" class="plain" onClick=${async () => {
        await leave();
        location.reload();
      }}>Leave</button>
    </header>
    <main ref=${main} tabindex="-1">
      ${status.problem && html`<${Failed} problem=${status.problem} />`}
      <${Guard} at=${location.hash}>
        ${NAMED[top] && name
          ? html`<${View} of=${NAMED[top]} key=${`${top}/${name}`} name=${name} tab=${tab} asked=${at.asked} />`
          : html`<${View} of=${view} key=${view} status=${node} asked=${at.asked} />`}
      <//>
    </main>
    <footer>odfd ${node ? node.version : ""} · what is shown here, <code>odfctl</code> says in a terminal</footer>`;
}

function Closed({ problem }) {
  const field = useRef(null);
  const [refused, set] = useState(null);
  const open = async (event) => {
    event.preventDefault();
    try {
      await begin(field.current.value.trim());
      location.replace("/");
    } catch (why) {
      set(why);
    }
  };
  return html`<main class="closed"><h1>This page is closed</h1><${Failed} problem=${refused || problem} />
    ${location.protocol === "https:" && html`<form class="row" onSubmit=${open}>
      <label class="grow">Token<input type="password" autocomplete="current-password" ref=${field} required /></label>
      <button class="main">Open</button></form>`}</main>`;
}

async function start() {
  const root = document.getElementById("page");
  let refused = null;
  let first = null;
  try {
    first = await opened;
  } catch (problem) {
    refused = problem;
  }
  root.replaceChildren();
  render(refused ? html`<${Closed} problem=${refused} />` : html`<${Page} />`, root);
  if (refused) return;
  addEventListener("hashchange", () => {
    if (location.hash.startsWith("#token=")) location.reload();
  });
  await first.answered; // which other files would only delay
  const rest = () => Object.keys(LOADS).forEach((view) => bring(view).catch(() => {})); // told when it is looked at
  (window.requestIdleCallback || setTimeout)(rest, { timeout: 5000 });
}

start();
