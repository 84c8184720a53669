// Mirrors a dataset of others, after saying under which name, how much of it, within which quota, and what is trusted.

import { useState } from "/vendor/hooks.js";
import { ask, DATASETS } from "/api.js";
import { Act, Failed, flat, flats, html, Text, useAsk } from "/parts.js";
import { bytes, count, part, plural, shown, short, word } from "/text.js";

const NAME = /^[A-Za-z0-9]+(-[A-Za-z0-9]+)*(\.[A-Za-z0-9]+(-[A-Za-z0-9]+)*)*$/;
const MUCH = [
  ["data", "all of its data", {}],
  ["30d", "data of the newest 30 days", { keep: "30d" }],
  ["1GiB", "the newest 1 GiB of data", { keep: "1GiB" }],
  ["10GiB", "the newest 10 GiB of data", { keep: "10GiB" }],
  ["chain", "its blocks alone, no data", { want: "chain" }],
];

/** `of`: a card, or what is announced of a dataset: `{id, name, publisher, peers, blocks, records}`. `held`: what stands
 * in its place where it is here, but not before a person closed what told of the progress. */
export function Mirror({ of, held, again }) {
  const [asked, open] = useState(false);
  const [name, call] = useState(null);
  const [much, choose] = useState("data");
  const [hash, expect] = useState("");
  const at = (path) => (asked ? path : "");
  const known = {
    datasets: useAsk(at(DATASETS), 0, flats), policy: useAsk(at("/node/v1alpha1/policy")), status: useAsk(at("/node/v1alpha1/status")),
    settings: useAsk(at("/node/v1alpha1/settings")), mirrors: useAsk(at("/net/v1alpha1/mirrors?limit=5000"), 0, flats), networks: useAsk(at("/net/v1alpha1/networks"), 0, flats),
  };
  const chosen = name ?? suggested(of, known.datasets.value || []);
  const [, , terms] = MUCH.find(([key]) => key === much);
  const request = { source: of.id, ...(chosen && { asName: chosen }), ...terms, ...(hash.trim() && { expect: hash.trim() }) };
  const flags = [["--as", request.asName], ["--keep", request.keep], ["--want", request.want], ["--expect", request.expect]];
  const command = ["odfctl mirror add", of.id, ...flags.filter(([, value]) => value).map(([flag, value]) => `${flag} ${word(value)}`)].join(" ");
  const then = (made) => html`It is mirrored as <a href=${`#/datasets/${part(made.name)}`}><${Text} of=${made.name} most=${80} /></a>, ${plural(made.blocks ? made.blocks.have : 0, "block")}${made.contact && html`; <${Text} of=${made.contact.means} most=${300} />`}.`;
  const opened = (now) => {
    open(now);
    if (!now) again();
  };
  if (held && !asked) return held;
  return html`<${Act} label="Mirror" title=${`Mirror ${shown(of.name || short(of.id), 80)}?`} command=${command} on=${opened} act=${() => ask("POST", "/node/v1alpha1/mirrors", request)} then=${(done) => then(flat(done))}
    says=${[`The node fetches ${amount(of, much)} from peers, checks each, keeps them on this disk, and follows it from then on.`,
      of.peers ? `${plural(of.peers, "connected peer")} say${of.peers === 1 ? "s" : ""} to serve it.` : "No connected peer says to serve it: it waits until one does."]}>
    ${asked && html`<div class="row">
      <label class="grow">Its name here<input value=${chosen} required maxlength="253" onInput=${(event) => call(event.target.value)} /></label>
      <label>How much of it<select value=${much} onChange=${(event) => choose(event.target.value)}>${MUCH.map(([key, text]) => html`<option value=${key}>${text}</option>`)}</select></label>
    </div>
    <${Quota} ...${known} />
    <${Trusted} policy=${known.policy} name=${chosen} />
    <${Met} policy=${known.policy.value} networks=${known.networks.value || []} hash=${hash} expect=${expect} />
    <p class="quiet">Its publisher ${of.publisher ? html`calls itself <${Text} of=${of.publisher} most=${80} />, which nothing checks` : "states no name"}: only its id identifies it, <code>${shown(of.id, 200)}</code>.</p>`}
  <//>`;
}

function amount({ blocks, records }, much) {
  if (much === "chain") return `its blocks, ${count(blocks)} now,`;
  const data = !records ? "data" : `data, ${plural(records, "record")},`;
  return `its blocks, ${count(blocks)} now, and ${much === "data" ? `their ${data}` : `the newest part of their ${data}`}`;
}

/** As its publisher calls it, where that is a name and is free here. */
export function suggested({ id, name }, datasets) {
  const taken = datasets.some((one) => one.did !== id && one.name.toLowerCase() === (name || "").toLowerCase());
  const held = datasets.find((one) => one.did === id);
  if (held) return held.name;
  const other = `odf-${id.replace(/^did:odf:fed01/, "").slice(0, 12)}`;
  return name && name.length <= 253 && NAME.test(name) && !taken ? name : other;
}

/** What mirrors may take of the disk, and what they have. The settings tell their limit as a file does. */
function Quota({ settings, mirrors, status }) {
  if (!settings.value || !mirrors.value) return html`<p class="quiet">Loading…</p>`;
  const limit = limitOf(settings.value.toml);
  const taken = mirrors.value.reduce((sum, one) => sum + one.held, 0);
  const disk = status.value && status.value.disk;
  const here = `Mirrors hold ${bytes(taken)} of data here`;
  const free = disk ? `, and ${bytes(disk.free)} of the disk are free` : "";
  if (limit) return html`<p>${here}${free}. They may take ${bytes(limit)} (<code>limits.mirror-bytes</code>): what is over it is refused, or replaces data of mirrors of a lower priority.</p>`;
  return html`<p>${here}${free}. No quota is set (<code>limits.mirror-bytes</code>): this one may take as much as the disk has, but for its reserve.</p>`;
}

export function limitOf(toml) {
  const [, , limits = ""] = toml.split(/^\[(limits)\]$/m);
  const found = /^mirror-bytes = (\d+)/m.exec(limits.split(/^\[/m)[0]);
  return found ? Number(found[1]) : 0;
}

const pattern = (text) => new RegExp(`^${[...text].map((one) => (one === "%" ? "[^]*" : one === "_" ? "[^]" : one.replace(/[\\^$.*+?()[\]{}|/]/, "\\$&"))).join("")}$`, "iu");

/** The first rule for a name that says something of `what`; as the node decides. */
export function ruleFor(policy, name, what) {
  return policy.rules.find((each) => each[what] && each.datasets.some((one) => pattern(one).test(name)));
}

function Trusted({ policy, name }) {
  if (policy.problem) return html`<${Failed} problem=${policy.problem} />`;
  if (!policy.value) return html`<p class="quiet">Loading…</p>`;
  const said = policy.value;
  const groups = Object.keys(said.groups);
  const asks = (what) => {
    const rule = ruleFor(said, name, what);
    return html`<code><${Text} of=${rule ? rule[what] : said[what]} most=${160} /></code>${rule && html` (by <${Text} of=${rule.name} most=${80} />)`}`;
  };
  return html`<p>What must hold before this node uses its rows: ${asks("use")}; before it passes them on: ${asks("serve")}.
    ${groups.length ? html` Who counts as a validator: <${Text} of=${groups.join(", ")} most=${200} />.` : " No validator counts here: what is reproduced, this node ran itself."}</p>`;
}

/** On which rung it will be met for the first time. */
function Met({ policy, networks, hash, expect }) {
  const quorum = policy && policy.settings.quorum;
  const how = hash.trim()
    ? "It is met by hash: a chain without this block is refused."
    : quorum
      ? `It is met by witnesses: a head is taken first when ${count(quorum)} of ${plural(Object.keys(policy.settings.witnesses).length, "listed witness", "listed witnesses")} cosigned it.`
      : "It is met on first use: the first chain that is seen is taken, unless you name a block of it.";
  return html`<p>${how}</p>
    <label>The hash of a block, from its owner (optional)<input value=${hash} placeholder="f1620…" spellcheck="false" onInput=${(event) => expect(event.target.value)} /></label>
    ${networks.map((one) => one.contact && html`<p class="quiet">Network <${Text} of=${one.name} most=${80} />: <${Text} of=${one.contact.means} most=${300} />.</p>`)}`;
}
