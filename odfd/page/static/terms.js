// What is set for one dataset: labels, who may see it, how it is mirrored, what must hold before it is used, who pulls it.

import { Answer, Facts, flat, flows as read, html, Id, State, Table, Text, useAsk, When } from "/parts.js";
import { bytes, count, shown } from "/text.js";
import { ruleFor } from "/mirror.js";

export function Terms({ detail }) {
  const one = detail.dataset;
  const [mirrors, policy, flows] = [useAsk(one.owner ? "" : "/net/v1alpha1/mirrors?limit=5000", 15, (list) => list.items.map((each) => ({ ...flat(each), sharedBy: each.spec.peers }))), useAsk("/node/v1alpha1/policy"), useAsk("/flow/v1alpha1/flows?limit=5000", 30, read)];
  const pulling = (flows.value || []).filter((each) => each.target === one.name);
  const labels = Object.entries(detail.labels);
  const complete = one.frontiers && (one.frontiers.sealed ? "for ever: it is sealed" : one.frontiers.upper ? html`before <${When} at=${one.frontiers.upper} />` : "");
  const facts = (said, mirror) => html`<${Facts} of=${[
    ["Labels", labels.length ? labels.map(([key, value]) => html`<span class="label"><${Text} of=${`${key}=${value}`} most=${80} /></span> `) : "none"],
    ["Shown to", one.published ? "others" : one.sharedWith.length ? one.sharedWith.map((each) => html`<${Id} of=${each} /> `) : "no other node: it is private"],
    asks(said, one, mirror, "use", "Before it is used"),
    asks(said, one, mirror, "serve", "Before it is passed on"),
    complete && ["Complete", complete],
    ...(mirror ? followed(mirror) : []),
  ]} />`;
  return html`<section aria-labelledby="terms"><h2 id="terms">Settings</h2>
    <${Answer} of=${policy}>${(said) => (one.owner ? facts(said) : html`<${Answer} of=${mirrors}>${(all) => facts(said, all.find((each) => each.source === one.id))}<//>`)}<//>
    ${detail.holds.length > 0 && html`<${Table} label="Readers for whom its history stays as it is" rows=${detail.holds} keyed=${(each) => each.id} columns=${[
      { name: "Held by", of: (each) => html`<${Text} of=${each.note || each.id} most=${120} />` },
      { name: "Since", of: (each) => html`<${Text} of=${each.time} most=${60} />` },
      { name: "Until", of: (each) => (each.expiresAt ? html`<${When} at=${each.expiresAt} />` : "it is released") },
    ]} />`}
    ${pulling.length > 0 && html`<${Table} label="Flows that pull it" rows=${pulling} keyed=${(each) => each.id} columns=${[
      { name: "Flow", of: (each) => html`<a href="#/work"><${Text} of=${each.name} most=${80} /></a>` },
      { name: "State", of: (each) => html`<${State} of=${each.state || "not in force"} />` },
      { name: "When", of: (each) => html`<${Text} of=${each.when} most=${160} />` },
      { name: "Next", of: (each) => html`<${When} at=${each.next} />` },
    ]} />`}
  </section>`;
}

/** An expression of policy for it, and by whose word it is that one. */
function asks(policy, one, mirror, what, name) {
  const rule = ruleFor(policy, one.name, what);
  const said = (mirror && mirror[what]) || (rule ? rule[what] : policy[what]);
  const by = rule && rule[what] === said ? html`by <${Text} of=${rule.name} most=${80} />` : said === policy[what] ? "as for all" : "for this mirror";
  return [name, html`<code><${Text} of=${said} most=${160} /></code> <span class="quiet">${by}</span>`];
}

function followed(mirror) {
  return [
    ["Mirror", html`<${State} of=${mirror.state} />`],
    ["What is kept", mirror.want === "chain" ? "blocks alone" : mirror.keep ? shown(mirror.keep, 60) : "all of it"],
    ["On this disk", bytes(mirror.held)],
    mirror.rate && ["At most", html`<${Text} of=${mirror.rate} most=${40} /> a second`],
    ["Priority", count(mirror.priority || 0)],
    mirror.network && ["Network", html`<${Text} of=${mirror.network} most=${80} />`],
    mirror.via && ["Looked for at", html`<${Text} of=${mirror.via} most=${200} />`],
    mirror.sharedBy && ["Shared by", mirror.sharedBy.map((each) => html`<${Id} of=${each} /> `)],
    mirror.contact && ["Met by", html`<${Text} of=${mirror.contact.by.replace("-", " ")} most=${40} />`],
  ].filter(Boolean);
}
