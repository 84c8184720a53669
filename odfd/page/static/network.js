// Peers, what is announced in the network, and what this node mirrors.

import { ask } from "/api.js";
import { Act, Answer, Facts, flat, flats, html, Id, Share, State, Table, Text, useAsk, useRates, When } from "/parts.js";
import { PeerMap } from "/map.js";
import { Mirror } from "/mirror.js";
import { useState } from "/vendor/hooks.js";
import { bytes, count, part, plural, rate, shown, short, word } from "/text.js";

export function Network({ status, asked }) {
  const names = status ? status.networks : [];
  return html`<h1>Network</h1>
    ${status && html`<${Facts} of=${[
      [names.length > 1 ? "Networks" : "Network", names.length ? html`<${Text} of=${names.join(", ")} most=${300} />` : "none joined"],
      ["Peers", count(status.peers)],
      ["Peer id", html`<${Id} of=${status.peerId} />`],
      ["Node", html`<${Id} of=${status.nodeId} />`],
      ["Listens at", status.listen.length ? html`<span class="value"><${Text} of=${status.listen.join(" ")} most=${600} /></span>` : "nowhere"],
      ["Over HTTP", status.http.length ? html`<${Text} of=${status.http.join(" ")} most=${300} />` : "nowhere"],
    ]} />`}
    ${status && !names.length && html`<p class="note">Join one with an invitation: <code>odfctl join INVITATION</code></p>`}
    <${Mirrors} />
    ${names.map((name, at) => html`<${Announced} key=${name} name=${name} id=${`announced-${at}`} several=${names.length > 1} />`)}
    <${Peers} chosen=${asked.get("peer")} me=${status && status.name} />`;
}

function Mirrors() {
  const mirrors = useAsk("/net/v1alpha1/mirrors?limit=5000", 3, flats);
  const rates = useRates(mirrors.value, (one) => (one.bytes ? one.bytes.have : null));
  return html`<section aria-labelledby="mirrors"><h2 id="mirrors">Mirrors</h2>
    <${Answer} of=${mirrors}>${(all) => html`<${Table} label="Mirrors" rows=${all} keyed=${(one) => one.id} empty="This node mirrors nothing." columns=${[
      { name: "Dataset", of: (one) => html`<a href=${`#/datasets/${part(one.name)}`}><${Text} of=${one.name} most=${80} /></a>` },
      { name: "State", of: (one) => html`<${State} of=${one.state} />` },
      { name: "Blocks", kind: "number", of: (one) => (one.blocks ? html`<${Share} ...${one.blocks} label=${`Blocks of ${shown(one.name, 80)}`} />` : "–") },
      { name: "Data", kind: "number", of: (one) => (one.bytes ? html`<${Share} ...${one.bytes} label=${`Data of ${shown(one.name, 80)}`} />` : "–") },
      { name: "Rate", kind: "number", of: (one) => rate(rates.get(one.id)) },
      { name: "On disk", kind: "number", of: (one) => bytes(one.held) },
      { name: "Peers", kind: "number", of: (one) => count(one.peers) },
      { name: "Node", of: (one) => html`<${Node} of=${one.node} />` },
      { name: "Met by", of: (one) => html`<${Met} of=${one.contact} />` },
      { name: "Message", of: (one) => html`<${Text} of=${one.message} most=${200} />` },
      { name: "Actions", of: (one) => html`<${Rest} one=${one} again=${mirrors.again} />` },
    ]} />`}<//></section>`;
}

/** A node by its id, then what it calls itself, which nothing checks. */
function Node({ of }) {
  if (!of) return html`<span class="quiet">–</span>`;
  const id = shown(of.peerId, 80);
  return html`<code class="id" title=${id}>${id.length > 24 ? `${id.slice(0, 12)}…${id.slice(-8)}` : id}</code>${of.name && of.name !== of.peerId && html` <${Text} of=${of.name} most=${64} />`}${of.alike > 0 && html` <span class="quiet">(${plural(of.alike, "other")} called alike: compare the id)</span>`}`;
}

/** How a dataset was met for the first time, with what that means and what to do about it. */
function Met({ of }) {
  if (!of) return html`<span class="quiet">–</span>`;
  return html`<details><summary>${of.by.replace("-", " ")}</summary><p class="quiet"><${Text} of=${of.means} most=${300} />${of.advice && html`. To be surer: <${Text} of=${of.advice} most=${300} />`}</p></details>`;
}

function Rest({ one, again }) {
  const paused = one.state === "paused";
  const act = async () => {
    const answer = await ask(paused ? "DELETE" : "PUT", `/net/v1alpha1/mirrors/${part(one.name)}/pause`);
    again();
    return answer;
  };
  return html`<${Act} label=${paused ? "Resume" : "Pause"} title=${`${paused ? "Resume" : "Pause"} ${shown(one.name, 80)}?`}
    command=${`odfctl mirror ${paused ? "resume" : "pause"} ${word(one.name)}`}
    says=${paused ? "The node follows it again and fetches the blocks since then." : "The node fetches nothing more of it until you resume it. The data here stays, and is served."}
    act=${act} then=${() => (paused ? "It is resumed." : "It is paused.")} />`;
}

const MOST = 200;

function Announced({ name, id, several }) {
  const network = useAsk(`/net/v1alpha1/networks/${part(name)}`, 10, flat);
  const [text, search] = useState("");
  return html`<section aria-labelledby=${id}><h2 id=${id}>Announced in <${Text} of=${name} most=${80} /></h2>
    <${Answer} of=${network}>${({ datasets, contact }) => {
      const fits = datasets.filter((one) => `${one.name || ""} ${one.called || ""} ${one.publisher || ""} ${one.id}`.toLowerCase().includes(text.toLowerCase()));
      return html`${contact && html`<p><${Text} of=${`How this network was met: ${contact.means}.`} most=${400} /></p>${contact.advice.map((each) => html`<p class="note"><${Text} of=${each} most=${400} /></p>`)}`}
        <form class="row" role="search" onSubmit=${(event) => event.preventDefault()}><label class="grow">Search<input type="search" value=${text} onInput=${(event) => search(event.target.value)} /></label></form>
        <p class="quiet" role="status">${fits.length > MOST ? `The first ${count(MOST)} of ${plural(fits.length, "dataset")}` : plural(fits.length, "dataset")}</p>
        <${Table} label=${several ? `Datasets that are announced in ${shown(name, 80)}` : "Datasets that are announced"} rows=${fits.slice(0, MOST)} keyed=${(one) => one.id} empty="Nobody announces any." columns=${[
          { name: "Dataset", of: (one) => html`<a href=${one.name ? `#/datasets/${part(one.name)}` : `#/search/${part(one.id)}`}><${Text} of=${one.name || one.called || short(one.id)} most=${80} /></a>` },
          { name: "Publisher", of: (one) => html`<${Text} of=${one.publisher || ""} most=${80} />` },
          { name: "Node", of: (one) => html`<${Node} of=${one.node} />` },
          { name: "Id", of: (one) => html`<${Id} of=${one.id} />` },
          { name: "Blocks", kind: "number", of: (one) => count(one.blocks) },
          { name: "Signed", of: (one) => html`<${When} at=${one.signedAt} />` },
          { name: "Peers that serve it", kind: "number", of: (one) => count(one.peers) },
          { name: "Met by", of: (one) => html`<${Met} of=${one.contact} />` },
          { name: "Actions", of: (one) => html`<${Mirror} of=${{ ...one, name: one.called || "" }} held=${one.held && html`<span class="quiet">held here</span>`} again=${network.again} />` },
        ]} />`;
    }}<//></section>`;
}

function Peers({ chosen, me }) {
  const peers = useAsk("/net/v1alpha1/peers?limit=5000", 5, flats);
  const holders = useAsk("/node/v1alpha1/holders", 5, (all) => new Map(all.map((one) => [one.peerId, one.names])));
  const held = (all) => all.filter((one) => one.connected).map((one) => ({ ...one, holds: (holders.value && holders.value.get(one.peerId)) || [] }));
  return html`<${Answer} of=${peers}>${(all) => html`<${Holders} peers=${held(all)} chosen=${chosen} me=${me} />`}<//>
    <section aria-labelledby="peers"><h2 id="peers">Peers</h2>
    <${Answer} of=${peers}>${(all) => html`<${Table} label="Peers" rows=${[...all].sort((one, other) => !!other.connected - !!one.connected).slice(0, MOST)} keyed=${(one) => one.peerId} empty="No peer is known." columns=${[
      { name: "Peer", of: (one) => html`<${Node} of=${one} />` },
      { name: "State", of: (one) => html`<${State} of=${one.blocked ? "blocked" : one.connected ? "connected" : "away"} />` },
      { name: "Serves", kind: "number", of: (one) => (one.datasets === undefined ? "–" : plural(one.datasets, "dataset")) },
      { name: "In", kind: "number", of: (one) => rate(one.receivedRate) },
      { name: "Out", kind: "number", of: (one) => rate(one.sentRate) },
      { name: "Score", kind: "number", of: (one) => count(one.score) },
      { name: "Seen", of: (one) => html`<${When} at=${one.lastSeen} />` },
      { name: "Addresses", of: (one) => html`<span class="value"><${Text} of=${(one.addresses || []).join(" ")} most=${200} /></span>` },
    ]} />`}<//></section>`;
}

const NAMED = 8;

/** Who of the connected peers serves what of this node, by peer. */
function Holders({ peers, chosen, me }) {
  if (!peers.length) return null;
  const one = peers.find((each) => each.peerId === chosen);
  return html`<section aria-labelledby="holders"><h2 id="holders">Who holds what</h2>
    <${PeerMap} peers=${peers.slice(0, MOST)} chosen=${chosen} me=${me} />
    ${one && html`<p>Of <${Id} of=${chosen} /> alone. <a href="#/network">Show all peers</a></p>`}
    <${Table} label="Datasets of this node, by the peers that say they serve them" rows=${one ? [one] : peers.slice(0, MOST)} keyed=${(one) => one.peerId} columns=${[
      { name: "Peer", of: (one) => html`<${Node} of=${one} />` },
      { name: "Serves of what is here", kind: "number", of: (one) => count((one.holds || []).length) },
      { name: "Datasets", of: (one) => html`<${Held} names=${one.holds || []} />` },
    ]} /></section>`;
}

function Held({ names }) {
  const [all, set] = useState(false);
  return html`${(all ? names : names.slice(0, NAMED)).map((name) => html`<a class="label" href=${`#/datasets/${part(name)}`}><${Text} of=${name} most=${80} /></a> `)}
    ${names.length > NAMED && html`<button type="button" class="plain" aria-expanded=${all} onClick=${() => set(!all)}>${all ? "Fewer" : `All ${count(names.length)}`}</button>`}`;
}
