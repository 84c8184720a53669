// One dataset: what it is, its rows, its chain, where it comes from, and how far it may be relied on.

import { ask } from "/api.js";
import { Act, Answer, Facts, html, Id, State, Text, useAsk, When } from "/parts.js";
import { bytes, count, link, part, plural, quoted, shown, withdrawn, word } from "/text.js";
import { reliance, unheld } from "/words.js";
import { Chain } from "/chain.js";
import { Lineage } from "/lineage.js";
import { Columns } from "/columns.js";
import { History } from "/history.js";
import { Publish } from "/publish.js";
import { Readme } from "/readme.js";
import { Rows } from "/rows.js";
import { Terms } from "/terms.js";
import { Before, Trust } from "/trust.js";

const TABS = [
  ["overview", "Overview", Overview],
  ["rows", "Rows", Rows],
  ["chain", "Chain", Chain],
  ["lineage", "Lineage", Lineage],
  ["trust", "Trust", Trust],
];

export function Dataset({ name, tab, asked }) {
  const detail = useAsk(`/dataset/v1alpha1/datasets/${part(name)}/detail?profile=1`, 60);
  const [at, , View] = TABS.find(([path]) => path === tab) || TABS[0];
  return html`<p class="trail"><a href="#/datasets">Datasets</a></p>
    <h1><${Text} of=${name} most=${120} /></h1>
    <${Answer} of=${detail}>${(found) => html`
      <${Summary} detail=${found} again=${detail.again} seen=${at === "trust"} />
      <nav class="tabs" aria-label="Parts of the dataset">${TABS.map(([path, label]) =>
        html`<a href=${`#/datasets/${part(name)}${path === "overview" ? "" : `/${path}`}`} aria-current=${path === at ? "page" : undefined}>${label}</a>`)}</nav>
      <${View} name=${name} detail=${found} asked=${asked} />`}<//>`;
}

function Summary({ detail, again, seen }) {
  const one = detail.dataset;
  const troubled = ["refuted", "accused", "forked", "damaged"].includes(one.state);
  return html`<div class="summary">
    <p class="row"><${State} of=${one.state} /> <span>${one.kind}</span> <span class="quiet">reach for use: ${reliance(one)}</span>
      ${one.conditions.map((each) => html`<${State} of=${each.toLowerCase()} tone="warn" />`)}
      ${troubled && !seen && html`<a class="button" href=${`#/datasets/${part(one.name)}/trust`}>See why</a>`}</p>
    ${one.conditions.includes("Blocked") && html`<p class="note warn">Its transform pins an engine that is not here, so nothing is appended. <code>odfctl engine prove ${one.name}</code> moves it to the engine of this node if that gives the same.</p>`}
    ${one.unheld.map((each) => html`<p class="note warn">${unheld(each)}.</p>`)}
    ${one.withdrawnAt && html`<p class="note warn">${withdrawn(one.withdrawnAt)} This copy stays and can be used${one.published ? ", and others get it from this node until you unpublish it" : ""}. Stop mirroring it and delete it to free its space.</p>`}
    <div class="row acts"><${Acts} one=${one} detail=${detail} again=${again} /></div>
  </div>`;
}

function Acts({ one, detail, again }) {
  const mirror = !one.owner;
  const done = (text) => (result) => {
    again();
    return typeof text === "function" ? text(result) : text;
  };
  const pulled = ({ items }) => items.map((item) => `${item.ref}: ${item.outcome}${item.fault ? `, ${item.fault.detail}` : item.message ? `, ${item.message}` : ""}`).join("; ");
  const source = detail.inputs.length ? `runs its query over what is new in ${plural(detail.inputs.length, "input")}` : "polls its source and takes in what is new";
  const verified = (report) => report.ok
    ? `In order: ${plural(report.checked.blocks, "block")}, ${plural(report.checked.slices, "slice")}, ${bytes(report.checked.bytes)} hashed.`
    : `Not in order: ${report.failures.map((each) => each.message).join("; ")}`;
  return html`
    <${Act} label="Pull" title=${`Pull ${shown(one.name, 80)}?`} command=${`odfctl pull ${word(one.name)}`}
      says=${mirror ? "The node asks peers for blocks and data that it lacks, checks each, and keeps them on this disk."
        : `The node ${source}. New rows are appended and signed; what was appended cannot be taken away again.`}
      act=${() => ask("POST", "/node/v1alpha1/pull", { refs: [one.name] })} then=${done(pulled)} />
    <${Act} label="Verify" title=${`Verify ${shown(one.name, 80)}?`} command=${`odfctl verify ${word(one.name)}`}
      says="The node reads all of its blocks and data on this disk and compares their hashes. Nothing is changed; for much data it takes minutes of the disk."
      act=${() => ask("POST", `/dataset/v1alpha1/datasets/${part(one.name)}/verify`, { level: "data" })} then=${verified} />
    ${one.kind === "derivative" && html`<${Act} label="Re-run" title=${`Run all of ${shown(one.name, 80)} again?`} command=${`odfctl verify ${word(one.name)} --level reproduced`}
      says="The node runs every transform of it again on its own engine and compares each row. Nothing is changed; it costs what computing it once cost."
      act=${() => ask("POST", `/dataset/v1alpha1/datasets/${part(one.name)}/verify`, { level: "reproduced" })} then=${verified} />`}
    <${Publish} one=${one} detail=${detail} again=${again} />
    <a class="button" href=${`#/sql?q=${part(`SELECT * FROM ${quoted(one.name)} LIMIT 20`)}`}>Query</a>
    ${mirror && html`<${Act} label="Stop mirroring" kind="plain" title=${`Stop mirroring ${shown(one.name, 80)}?`} command=${`odfctl mirror remove ${word(one.name)}`}
      says="The node no longer follows it. The data here stays until it is collected."
      act=${() => ask("DELETE", `/net/v1alpha1/mirrors/${part(one.id)}`)} then=${done("It is no longer followed.")} />`}`;
}

function Overview({ name, detail }) {
  const one = detail.dataset;
  const readme = detail.attachments.find((each) => /(^|\/)readme(\.md|\.txt)?$/i.test(each.path));
  const others = detail.attachments.filter((each) => each !== readme);
  const site = detail.license && link(detail.license.websiteUrl);
  return html`<${Before} name=${name} /><div class="two">
    <section aria-labelledby="about"><h2 id="about">About</h2>
      ${detail.description ? html`<p><${Text} of=${detail.description} /></p>` : html`<p class="quiet">No description.</p>`}
      ${detail.keywords.length > 0 && html`<p>${detail.keywords.map((each) => html`<span class="label"><${Text} of=${each} most=${60} /></span> `)}</p>`}
      <${Facts} of=${[
        ["Records", count(one.records)],
        ["Size", bytes(one.bytes ?? (detail.profile && detail.profile.isWhole ? detail.profile.bytes : null))],
        ["Blocks", count(one.blocks)],
        ["Watermark", html`<${When} at=${one.watermark} />`],
        ["Updated", html`<${When} at=${detail.updatedAt} />`],
        ["Created", html`<${When} at=${detail.createdAt} />`],
        ["Signed by", one.owner ? "this node" : "another node"],
        ["Shown to others", one.published ? "yes" : "no, it is private"],
        one.peers !== null && ["Peers that have it", count(one.peers)],
        ["License", detail.license ? html`${site ? html`<a href=${site} rel="noopener noreferrer" target="_blank"><${Text} of=${detail.license.name} most=${80} /></a>` : html`<${Text} of=${detail.license.name} most=${80} />`}` : "none"],
        ["Id", html`<${Id} of=${one.id} />`],
        ["Head", html`<${Id} of=${one.head} />`],
      ]} />
      <${Rowlist} detail=${detail} />
    </section>
    <${History} name=${name} whole=${one} />
  </div>
  <${Columns} detail=${detail} />
  <${Terms} detail=${detail} />
  ${readme && html`<section aria-labelledby="readme"><h2 id="readme"><${Text} of=${readme.path} most=${80} /></h2><${Readme} text=${readme.content} /></section>`}
  ${others.map((each) => html`<details><summary><${Text} of=${each.path} most=${120} /></summary><pre tabindex="0"><${Text} of=${each.content} most=${20000} /></pre></details>`)}
  ${(detail.source || detail.transform) && html`<details><summary>${detail.transform ? "Query" : "Source"}, as it was declared</summary>
    <pre tabindex="0"><${Text} of=${declared(detail)} most=${20000} /></pre></details>`}`;
}

function declared({ source, transform }) {
  const queries = transform && transform.queries;
  if (Array.isArray(queries)) return queries.map((each) => `${each.alias ? `-- ${each.alias}\n` : ""}${each.query}`).join("\n\n");
  return JSON.stringify(transform || source, null, 2);
}

/** What became of the rows that were read here: nothing that was left out is silent. */
function Rowlist({ detail }) {
  if (!detail.rows) return null;
  const told = ["read", "appended", "corrected", "retracted", "unchanged", "conflicting", "superseded", "late", "untimed", "quarantined"];
  const rows = detail.rows.rows;
  const found = told.filter((each) => rows[each]).map((each) => `${count(rows[each])} ${each}`);
  if (!found.length) return null;
  return html`<p class="quiet">Of the rows read in ${plural(detail.rows.transactions, "transaction")}: ${found.join(", ")}.</p>`;
}
