// How far a dataset may be relied on, who says so, and what was found wrong, with the rows that differ side by side.

import { useState } from "/vendor/hooks.js";
import { ask } from "/api.js";
import { Act, Answer, Facts, html, Id, State, Table, Text, useAsk, When } from "/parts.js";
import { cell, count, part, plural, short, shown, withdrawn, word } from "/text.js";
import { decided, LOOKED_INTO, reachSentence, sentence, turn } from "/words.js";

export function Trust({ name, detail }) {
  const trust = useAsk(`/dataset/v1alpha1/datasets/${part(name)}/trust`, 15);
  return html`<${Answer} of=${trust}>${(view) => html`
    <${Verdict} view=${view} state=${detail.dataset.state} />
    ${view.evidence.length > 0 && html`<section aria-labelledby="evidence"><h2 id="evidence">What was found wrong</h2>
      ${view.evidence.map((one) => html`<${Evidence} one=${one} name=${name} />`)}</section>`}
    <${Choices} choices=${view.choices} name=${name} again=${trust.again} />
    <${Strip} view=${view} />
    <${Steps} view=${view} />
    <${Past} past=${view.past} />
    <${Voices} view=${view} />
    ${view.shards.map((one) => html`<section><h2><a href=${`#/datasets/${part(one.datasetId)}/trust`}>Shard ${shown(one.ref, 80)}</a></h2>
      <${Verdict} view=${one} state="" /></section>`)}`}<//>`;
}

function Verdict({ view, state }) {
  const bad = view.reach.use < view.blocks;
  return html`<div class=${`verdict ${bad ? (["refuted", "accused", "forked", "damaged"].includes(state) ? "bad" : "warn") : "good"}`}>
    <p class="large">${reachSentence(view)}</p>
    ${view.withdrawnAt && html`<p>${withdrawn(view.withdrawnAt)} No new block comes; what is here can be used.</p>`}
    ${bad && view.why && html`<p><${Text} of=${sentence(view.why.message || view.why.rule)} most=${600} /></p>`}
    <p class="quiet">To others this node gives ${view.reach.serve >= view.blocks ? "all of it" : view.reach.serve > 0 ? `blocks 0 to ${count(view.reach.serve - 1)}` : "none of it"}, if it is published.</p>
  </div>`;
}

function Evidence({ one, name }) {
  const rows = [];
  for (const each of one.cells) {
    let row = rows.find((found) => found.row === each.row && found.block === each.block);
    if (!row) rows.push((row = { row: each.row, block: each.block, context: each.context, cells: [] }));
    row.cells.push(each);
  }
  const known = [...new Set(rows.flatMap((row) => Object.keys(row.context)))];
  const wrong = [...new Set(one.cells.map((each) => each.column))];
  const found = (row, column) => row.cells.find((each) => each.column === column);
  return html`<article class="evidence">
    <p class="row"><${State} of=${one.kind} tone="bad" /> ${one.block !== null && html`<strong>block #${count(one.block)}</strong>`}
      <span class="grow"><${Text} of=${one.message} most=${400} /></span> <span class="quiet"><${When} at=${one.at} /></span></p>
    ${one.recheck && html`<p>${LOOKED_INTO[one.recheck] || shown(one.recheck)}</p>`}
    ${rows.length > 0 && html`<p>${rows.slice(0, 3).map((row) => html`${row.cells.slice(0, 3).map((each) => html`In row ${count(each.row)}, <strong><${Text} of=${each.column} most=${60} /></strong> was published as <strong><${Text} of=${cell(each.published, 80)} /></strong>, and is <strong><${Text} of=${cell(each.computed, 80)} /></strong> when the step is run again. `)}`)}</p>
    <div class="scroll" role="group" aria-label="Rows that differ" tabindex="0"><table class="cards" role="table">
      <caption>What was published, and what comes out when the step is run again</caption>
      <thead role="rowgroup"><tr role="row"><th scope="col" role="columnheader">Row</th>${known.map((each) => html`<th scope="col" role="columnheader"><${Text} of=${each} most=${60} /></th>`)}
        ${wrong.map((each) => html`<th scope="col" role="columnheader"><${Text} of=${each} most=${60} />, published</th><th scope="col" role="columnheader"><${Text} of=${each} most=${60} />, computed</th>`)}</tr></thead>
      <tbody role="rowgroup">${rows.map((row) => html`<tr role="row"><th scope="row" role="rowheader" data-of="Row">${count(row.row)}</th>
        ${known.map((each) => html`<td role="cell" data-of=${shown(each, 60)}><${Text} of=${cell(row.context[each])} /></td>`)}
        ${wrong.map((column) => {
          const at = found(row, column);
          return at ? html`<td role="cell" class="gone" data-of=${`${shown(column, 60)}, published`}><strong><${Text} of=${cell(at.published)} /></strong></td><td role="cell" class="added" data-of=${`${shown(column, 60)}, computed`}><strong><${Text} of=${cell(at.computed)} /></strong></td>` : html`<td role="cell" class="quiet" colspan="2" data-of=${shown(column, 60)}>the same</td>`;
        })}</tr>`)}</tbody>
    </table></div>`}
    ${one.sides.length > 0 && html`<${Sides} one=${one} />`}
    ${one.bundle && html`<p class="quiet">Anybody who has the engine can check it: <code>odfctl trust evidence ${shown(one.bundle, 90)}${one.kept ? "" : " --fetch"} -O evidence.odfe</code>, then <code>odfctl trust recheck evidence.odfe</code>.
      ${!one.kept && html` <${Act} label="Fetch the evidence" title="Fetch the evidence?" says="The node asks peers for the file that proves it, and keeps it on this disk."
        command=${`odfctl trust evidence ${one.bundle} --fetch`} act=${() => ask("POST", `/node/v1alpha1/evidence/${part(one.id)}`)} then=${() => "It is here now."} />`}</p>`}
  </article>`;
}

/** The histories of a fork beside each other: below, they are the same; the same key signed both. */
function Sides({ one }) {
  const told = [
    ["Block where they part", (side) => html`<${Id} of=${side.block} />`],
    ["Head", (side) => html`<${Id} of=${side.head.hash} />`],
    ["Blocks", (side) => count(side.head.blocks)],
    ["Epoch", (side) => count(side.head.epoch)],
    ["Signed by", (side) => html`<${Id} of=${side.head.signer} />`],
    ["Signed", (side) => html`<${When} at=${side.head.issuedAt} />`],
  ];
  return html`<${Table} label="The histories that were signed" rows=${told} keyed=${([name]) => name} columns=${[
    { name: one.block === null ? "Of each" : `From block #${count(one.block)} on`, of: ([name]) => name },
    ...one.sides.map((side, at) => ({ name: side.held ? "The one that is here" : `Another${one.sides.length > 2 ? ` (${at + 1})` : ""}`, of: ([, of]) => of(side) })),
  ]} />`;
}

/** What a person may decide. An open question stays until it is closed, also when its answer left nothing to decide. */
function Choices({ choices: now, name, again }) {
  const [asked, hold] = useState(null);
  const choices = asked || now;
  const on = (isOpen) => hold(isOpen ? choices : null);
  const resolve = (body) => async () => {
    const answer = await ask("POST", `/dataset/v1alpha1/datasets/${part(name)}/trust/resolve`, body);
    again();
    return answer;
  };
  if (!choices.length) return null;
  return html`<section aria-labelledby="choices"><h2 id="choices">Waits for your decision</h2>
    <ul class="choices">${choices.map((one) => html`<li key=${one.hash}><p><${Id} of=${one.hash} /> <${Text} of=${one.message} most=${300} /></p>
      <${Act} label="Follow it" title=${`Follow ${short(one.hash)}?`} command=${`odfctl trust resolve ${word(name)} --follow ${one.hash}`}
        says=${["This node takes it as the valid one, whatever other nodes state, and continues from there. Your decision holds until you change it.", html`<${Text} of=${one.message} most=${300} />`]}
        on=${on} act=${resolve({ follow: one.hash })} then=${() => "Decided."} /></li>`)}</ul>
    <${Act} label="Abandon it" kind="plain" title=${`Abandon ${shown(name, 80)}?`} command=${`odfctl trust resolve ${word(name)} --abandon`}
      says="This node uses nothing of it beyond what is settled, and does not ask again." on=${on} act=${resolve({ abandon: true })} then=${() => "Abandoned."} />
  </section>`;
}

const SPAN = /^([\w-]+) (?:at #(\d+)|(\d+)-(\d+))/;

/** What each validator says of which blocks, under what this node relies on. */
function Strip({ view }) {
  if (!view.blocks) return null;
  const said = [
    { who: "reach for use here", spans: view.reach.use > 0 ? [{ verdict: "reach", first: 0, last: view.reach.use - 1 }] : [] },
    ...[...view.attestations, ...view.dissent].map((one) => ({
      who: one.group === "me" ? "this node" : one.group || short(one.validator),
      spans: one.spans.map((text) => SPAN.exec(text)).filter(Boolean).map(([, verdict, at, first, last]) => ({ verdict, first: Number(at ?? first), last: Number(at ?? last) })),
    })),
  ];
  const here = view.attestations.some((one) => one.group === "me") || view.dissent.some((one) => one.group === "me");
  for (const one of view.evidence) if (!here && one.block !== null && one.kind === "mismatch") said.push({ who: "found here", spans: [{ verdict: "mismatch", first: one.block, last: one.block }] });
  const kinds = [...new Set(said.flatMap((one) => one.spans.map((each) => each.verdict)))];
  const kind = (verdict) => (verdict === "reach" || verdict === "reproduced" ? verdict : verdict === "mismatch" ? "mismatch" : "other");
  const told = said.map((one) => `${one.who}: ${one.spans.map((each) => `${each.verdict === "reach" ? "blocks" : each.verdict} ${each.first} to ${each.last}`).join(", ") || "nothing"}`).join("; ");
  return html`<section aria-labelledby="strip"><h2 id="strip">Verdicts by block</h2>
    <div class="strip" role="img" aria-label=${shown(told, 1000)}>
      ${said.map((one) => html`<span class="who">${shown(one.who, 40)}</span>
        <svg viewBox=${`0 0 ${view.blocks} 10`} preserveAspectRatio="none"><rect class="ground" width=${view.blocks} height="10" />
          ${one.spans.map((each) => html`<rect class=${kind(each.verdict)} x=${each.first} width=${Math.max(view.blocks / 200, each.last + 1 - each.first)} height="10"><title>${`${shown(each.verdict, 40)} ${each.first}–${each.last}`}</title></rect>`)}</svg>`)}
      <span class="who"></span><span class="ends"><span>#0</span><span>#${count(view.blocks - 1)}</span></span>
    </div>
    <p class="row legend">${kinds.map((one) => html`<span><i class=${`swatch ${kind(one)}`}></i> ${one === "reach" ? "reach for use here" : shown(one, 40)}</span>`)}</p>
  </section>`;
}

/** The decision as the node makes it, fact by fact. */
function Steps({ view }) {
  const { facts, why } = view;
  const forks = view.evidence.filter((one) => /fork/.test(one.kind));
  const mismatches = view.evidence.filter((one) => one.kind === "mismatch");
  const counted = (one) => `${plural(one.have, "group")} that count${one.have === 1 ? "s" : ""} found the same; policy asks for ${one.needed ? count(one.needed) : "none"}`;
  const steps = [
    ["Blocks and data are here", view.blocks > 0, view.blocks ? `${plural(view.blocks, "block")}, each hashed on arrival and linked to the one before` : "no block was received yet"],
    ["The head is signed", Boolean(view.signedAt), view.signedAt ? html`by a key that may write, <${When} at=${view.signedAt} />` : html`<${Text} of=${view.unsigned || "no signature is known"} most=${300} />`],
    ["One history", !facts.forked && !forks.length, facts.forked || forks.length ? "its key signed two that differ" : "no other one is known"],
    facts.fresh === null ? null : ["The head is recent", facts.fresh, facts.fresh ? "as policy asks" : "older than policy asks: newer ones may be withheld"],
    ["Its transforms, run again", facts.reproduced && !mismatches.length, mismatches.length ? `another result at ${mismatches.map((one) => `#${one.block}`).join(", ")}` : facts.reproduced ? "this node got the same rows" : "this node has not run them"],
    facts.attested && ["Validators who ran it", facts.attested.have >= facts.attested.needed && facts.attested.have > 0, counted(facts.attested)],
    facts.observed && ["Observers of its source", facts.observed.have >= facts.observed.needed && facts.observed.have > 0, counted(facts.observed)],
    facts.witnessed === null ? null : ["Witnesses", facts.witnessed, facts.witnessed ? "enough cosigned this history" : "too few cosigned this history: others may be shown another"],
  ].filter(Boolean);
  return html`<section aria-labelledby="steps"><h2 id="steps">How it was decided</h2>
    <ol class="steps">${steps.map(([what, holds, told]) => html`<li class=${holds ? "good" : "not"}><span class="mark" aria-hidden="true">${holds ? "✓" : "–"}</span><span><strong>${what}</strong><span class="apart">${holds ? ": yes" : ": no"}</span> <span class="quiet">${told}</span></span></li>`)}
      <li class=${view.reach.use >= view.blocks && view.blocks ? "good end" : "not end"}><span class="mark" aria-hidden="true">⇒</span><span><strong>${reachSentence(view)}</strong>
        ${why && html` <span class="quiet">Rule <code><${Text} of=${why.rule} most=${60} /></code>${why.block !== null ? ` at block #${why.block}` : ""}: <${Text} of=${why.message} most=${400} /></span>`}</span></li>
    </ol>
    <${Decisions} of=${view.decisions} />
  </section>`;
}

const REFUTED = ["verdict.mismatch", "dataset.forked", "authority.forked", "damage.found"];

/** That something was found wrong with it before, also when all of it may be relied on by now. */
export function Before({ name }) {
  const trust = useAsk(`/dataset/v1alpha1/datasets/${part(name)}/trust`, 30);
  const worst = trust.value && trust.value.past.find((one) => REFUTED.includes(one.kind));
  if (!worst) return null;
  return html`<div class="note warn"><p><strong>Found wrong <${When} at=${worst.at} />:</strong> <${Text} of=${worst.message} most=${300} />${/[.!?]$/.test(worst.message) ? "" : "."} <a href=${`#/datasets/${part(name)}/trust`}>What happened, and what holds now</a></p></div>`;
}

/** What was found and decided, newest first, also of blocks that were given up since. */
function Past({ past }) {
  if (!past.length) return null;
  return html`<section aria-labelledby="past"><h2 id="past">What happened to it</h2>
    <${Table} label="What happened to it, newest first" rows=${past.slice(0, 50)} keyed=${(one) => `${one.at} ${one.kind}`} columns=${[
      { name: "When", of: (one) => html`<${When} at=${one.at} />` },
      { name: "What", of: (one) => html`<span title=${shown(one.kind, 60)}>${turn(one.kind)}</span>` },
      { name: "What was found", of: (one) => html`<${Text} of=${one.message} most=${500} />` },
    ]} />
  </section>`;
}

function Decisions({ of }) {
  return of.map((one) => html`<p>${one.by === "person" ? "The operator" : "Witnesses"} decided <${When} at=${one.at} /> ${decided(one.matter)} <${Id} of=${one.hash} />.</p>`);
}

function Voices({ view }) {
  const rows = [...view.attestations.map((one) => ({ ...one, dissents: false })), ...view.dissent.map((one) => ({ ...one, dissents: true }))];
  return html`<section aria-labelledby="voices"><h2 id="voices">Who says so</h2>
    <${Table} titled label="Validators" rows=${rows} empty="No validator spoke of it." row=${(one) => (one.dissents ? "gone" : "")} columns=${[
      { name: "Validator", of: (one) => html`<${Text} of=${one.group === "me" ? "this node" : one.group || ""} most=${60} /> <${Id} of=${one.validator} />` },
      { name: "Says", of: (one) => html`<${Text} of=${one.spans.join(", ")} most=${300} />` },
      { name: "Against it", of: (one) => (one.dissents ? "yes" : "") },
      { name: "On", of: (one) => html`<${Text} of=${[one.engine, one.platform].filter(Boolean).join(" ")} most=${120} />` },
      { name: "When", of: (one) => html`<${When} at=${one.at} />` },
    ]} />
    ${view.unlisted > 0 && html`<p class="quiet">${plural(view.unlisted, "more validator")} spoke, in no group of yours.</p>`}
    ${view.observations.length > 0 && html`<${Table} titled label="Observers of the source" rows=${view.observations} columns=${[
      { name: "Observer", of: (one) => html`<${Text} of=${one.group || ""} most=${60} /> <${Id} of=${one.observer} />` },
      { name: "Found", of: (one) => html`<${State} of=${one.result} />` },
      { name: "Block", kind: "number", of: (one) => `#${count(one.block)}` },
      { name: "When", of: (one) => html`<${When} at=${one.at} />` },
    ]} />`}
    ${view.witnesses.length > 0 && html`<${Table} titled label="Witnesses" rows=${view.witnesses} columns=${[
      { name: "Witness", of: (one) => html`<${Text} of=${one.name} most=${80} />` },
      { name: "Counts", of: (one) => (one.counts ? "yes" : "no") },
      { name: "Cosigned", of: (one) => (one.size === null ? "nothing" : plural(one.size, "block")) },
      { name: "When", of: (one) => html`<${When} at=${one.at} />` },
      { name: "Trouble", of: (one) => html`<${Text} of=${one.trouble} most=${200} />` },
    ]} />`}
    ${view.heads.length > 0 && html`<${Table} titled label="Signed heads, newest first" rows=${view.heads} columns=${[
      { name: "Head", of: (one) => html`<${Id} of=${one.hash} />` },
      { name: "Blocks", kind: "number", of: (one) => count(one.blocks) },
      { name: "Epoch", kind: "number", of: (one) => count(one.epoch) },
      { name: "Signed by", of: (one) => html`<${Id} of=${one.signer} />` },
      { name: "Signed", of: (one) => html`<${When} at=${one.issuedAt} />` },
      { name: "Good until", of: (one) => html`<${Text} of=${one.expiresAt} most=${40} />` },
    ]} />`}
    <${Facts} of=${[["Epoch", count(view.epoch)], ["Head", html`<${Id} of=${view.head} />`], ["Met first", view.facts.met ? html`<${Text} of=${view.facts.met} />` : "–"]]} />
  </section>`;
}
