// Talks to the API of the node. Every request carries the key of the session, which only scripts of this origin can read.

import { part } from "/text.js";

export const DATASETS = "/dataset/v1alpha1/datasets?limit=5000";
const KEPT = "odfd-key";
const MOST_FRAME = 1 << 24;
let key = localStorage.getItem(KEPT) || "";

/** A fault as the node tells it: what happened, the rule, and what to do next. */
export class Problem extends Error {
  constructor(said, status) {
    super(said.detail || said.title || `the node answered ${status}`);
    this.rule = said.rule || "";
    this.hint = said.hint || "";
    this.place = said.place || "";
    this.status = status;
  }
}

/** Turns the token of an address into a session. */
export async function begin(token) {
  const answer = await asked("POST", "/session", { token });
  key = (await answer.json()).key;
  localStorage.setItem(KEPT, key);
}

export async function leave() {
  await asked("DELETE", "/session");
  localStorage.removeItem(KEPT);
  key = "";
}

async function asked(method, path, body, signal) {
  const headers = { "x-odfd-key": key };
  if (body !== undefined) headers["content-type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({ detail: "the node does not answer", rule: "connection", hint: "odfctl status shows whether it runs" }, 0);
  }
  if (!answer.ok) {
    let said = {};
    try {
      said = await answer.json();
    } catch {
      said = {};
    }
    throw new Problem(said, answer.status);
  }
  return answer;
}

export async function ask(method, path, body, signal) {
  const answer = await asked(method, path, body, signal);
  return answer.json();
}

const sent = new Map();

/** Asks before the view is there that will: the answer is on its way while other files still come. */
export function askAhead(path) {
  const answer = ask("GET", path);
  answer.catch(() => {}); // told to the view
  sent.set(path, answer);
  return answer;
}

/** What the API says at `path`, all pages of a list; it may have been asked ahead, which is good once. */
export async function get(path, signal) {
  const ahead = sent.get(path);
  sent.delete(path);
  const answer = await (ahead || ask("GET", path, undefined, signal));
  for (let rest = answer && answer.continue; rest; ) {
    const more = await ask("GET", `${path}&continue=${part(rest)}`, undefined, signal);
    answer.items.push(...more.items);
    rest = more.continue;
  }
  return answer;
}

/** Values of an answer that has no end, as they come. */
export async function* lines(path, signal) {
  const answer = await asked("GET", path, undefined, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const found = (rest + value).split("\n");
    rest = found.pop();
    for (const line of found) {
      const said = JSON.parse(line);
      if (said && said.problem && Object.keys(said).length === 1) throw new Problem(said.problem, 200);
      yield said;
    }
  }
}

/** The answer to a statement of SQL: columns, at most `most` rows, and what it was made of. */
export async function query(sql, most, signal) {
  const stop = new AbortController();
  if (signal) signal.addEventListener("abort", () => stop.abort());
  const answer = await asked("POST", "/node/v1alpha1/query", { sql, plain: true }, stop.signal);
  const found = { columns: [], rows: [], head: null, whole: false };
  for await (const [kind, content] of frames(answer.body.getReader())) {
    if (kind === "H") found.head = content;
    else if (kind === "C") found.columns = content;
    else if (kind === "J") found.rows.push(...content.slice(0, most - found.rows.length));
    else if (kind === "P") throw new Problem(content, 200);
    else if (kind === "E") {
      found.whole = content.rows <= most;
      return found;
    }
    if (found.rows.length >= most) {
      stop.abort();
      return found;
    }
  }
  throw new Problem({ detail: "the answer was cut off", rule: "connection", hint: "ask again" }, 0);
}

async function* frames(reader) {
  let held = new Uint8Array(0);
  for (;;) {
    while (held.length >= 5) {
      const size = new DataView(held.buffer, held.byteOffset).getUint32(1);
      if (size > MOST_FRAME) throw new Problem({ detail: "what came is no answer", rule: "query-frame" }, 0);
      if (held.length < 5 + size) break;
      const text = new TextDecoder().decode(held.subarray(5, 5 + size));
      const kind = String.fromCharCode(held[0]);
      held = held.slice(5 + size);
      yield [kind, JSON.parse(text)];
    }
    const { done, value } = await reader.read();
    if (done) return;
    const more = new Uint8Array(held.length + value.length);
    more.set(held);
    more.set(value, held.length);
    held = more;
  }
}

/** A long operation to its end; `told` hears of its progress. Throws what it failed of. */
export async function finished(task, told, signal) {
  for await (const view of lines(`/node/v1alpha1/tasks/${part(task.id)}?follow=1`, signal)) {
    told(view);
    if (view.state === "done") return view.result;
    if (view.state === "failed") throw new Problem(view.fault || {}, 200);
    if (view.state === "cancelled") throw new Problem({ detail: `${view.kind} was cancelled`, rule: "cancelled" }, 200);
  }
  throw new Problem({ detail: "the node stopped before it was done", rule: "connection" }, 0);
}
