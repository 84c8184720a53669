// Starts the page: a session from the address, then the view that the rest of the address names.

import { render } from "/vendor/preact.js";
import { useEffect, useRef, useState } from "/vendor/hooks.js";
import { begin, leave } from "/api.js";
import { Failed, Guard, html, Text, useAsk } from "/parts.js";
import { Datasets } from "/datasets.js";
import { Dataset } from "/dataset.js";
import { Network } from "/network.js";
import { Node } from "/node.js";
import { Work } from "/work.js";
import { Sql } from "/sql.js";
import { Events } from "/events.js";

const VIEWS = [
  ["datasets", "Datasets", Datasets],
  ["network", "Network", Network],
  ["work", "Tasks and flows", Work],
  ["sql", "SQL", Sql],
  ["events", "Events", Events],
  ["node", "Node", Node],
];

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
  const status = useAsk("/status", 5);
  const main = useRef(null);
  const first = useRef(true);
  useEffect(() => {
    const moved = () => go(place());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  const [top, name, tab] = at.steps;
  const [, title, View] = VIEWS.find(([path]) => path === top) || VIEWS[0];
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
        ${top === "datasets" && name
          ? html`<${Dataset} key=${name} name=${name} tab=${tab} asked=${at.asked} />`
          : html`<${View} key=${top} status=${node} asked=${at.asked} />`}
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
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  let refused = null;
  if (token) {
    history.replaceState(null, "", "/#/datasets");
    try {
      await begin(token);
    } catch (problem) {
      refused = problem;
    }
  }
  root.replaceChildren();
  render(refused ? html`<${Closed} problem=${refused} />` : html`<${Page} />`, root);
  if (refused) return;
  addEventListener("hashchange", () => {
    if (location.hash.startsWith("#token=")) location.reload();
  });
}

start();
