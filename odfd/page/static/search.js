// Finds datasets of others by words, over the cards that this node has, and shows one card.

import { useEffect, useState } from "/vendor/hooks.js";
import { ask } from "/api.js";
import { Answer, Facts, Failed, html, Id, State, Table, Text, useAsk, When } from "/parts.js";
import { bytes, count, link, part, plural, shown, span, withdrawn } from "/text.js";
import { scripts } from "/words.js";
import { Mirror } from "/mirror.js";

const SPANS = [["", "at any time"], ["86400", "within a day"], ["604800", "within a week"], ["2592000", "within 30 days"], ["31536000", "within a year"]];
const PAGE = 20;
const MOST = 200;
const FIELDS = ["q", "license", "column", "since", "attested"];
const DID = /^did:odf:[0-9a-z]{20,200}$/i;

export function Search({ asked }) {
  const words = Object.fromEntries(FIELDS.map((each) => [each, asked.get(each) || ""]));
  const key = JSON.stringify(words);
  const go = (event) => {
    event.preventDefault();
    const said = new FormData(event.target);
    const q = said.get("q").trim();
    if (DID.test(q)) return void (location.hash = `#/search/${part(q)}`);
    const next = FIELDS.filter((each) => said.get(each).trim()).map((each) => `${each}=${part(said.get(each).trim())}`).join("&");
    location.hash = `#/search${next ? `?${next}` : ""}`;
  };
  return html`<h1>Search the network</h1>
    <form class="search" role="search" key=${key} onSubmit=${go}>
      <div class="row"><label class="grow">Words, or the id of a dataset<input type="search" name="q" placeholder="air quality" value=${words.q} /></label>
        <button class="main">Search</button></div>
      <div class="row">
        <label>License<input name="license" placeholder="any" value=${words.license} /></label>
        <label>Column<input name="column" placeholder="any" value=${words.column} /></label>
        <label>Changed<select name="since">${SPANS.map(([value, text]) => html`<option value=${value} selected=${value === words.since}>${text}</option>`)}</select></label>
        <label>Confirmed by validators<input type="number" name="attested" min="0" max="99" placeholder="0" value=${words.attested} /></label>
      </div>
    </form>
    <${Found} key=${key} words=${words} />`;
}

function Found({ words }) {
  const [state, set] = useState({});
  const [limit, more] = useState(PAGE);
  const [turn, again] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    const request = {
      words: words.q, license: words.license, column: words.column, attested: Number(words.attested) || 0, limit,
      ...(words.since && { updatedWithin: Number(words.since) }),
    };
    ask("POST", "/node/v1alpha1/search", request, stop.signal).then((answer) => set({ answer }), (problem) => problem.name !== "AbortError" && set({ problem }));
    return () => stop.abort();
  }, [limit, turn]);
  if (state.problem) return html`<${Failed} problem=${state.problem} again=${() => again(turn + 1)} />`;
  if (!state.answer) return html`<p class="quiet" aria-live="polite">Loading…</p>`;
  const { found, more: rest, cards, withdrawn: taken } = state.answer;
  const beyond = rest > 0 && limit >= MOST;
  return html`<p class="quiet" role="status">${rest ? `The first ${count(found.length)} of ${plural(found.length + rest, "dataset")}` : plural(found.length, "dataset")}, in ${plural(cards, "card")} that publishers signed.
      First those with the highest trust level here, then those that peers in most subnets serve; the publishers' own claims do not count.</p>
    ${!found.length && html`<p class="note">${cards ? "None is like this. A word finds what begins with it; every word must occur." : "No card came yet: they come within the first minute in a network."}</p>`}
    ${taken.map((one) => html`<p class="note warn"><a href=${`#/datasets/${part(one.name)}`}><${Text} of=${one.name} most=${120} /></a> is here: ${withdrawn(one.withdrawnAt)}</p>`)}
    <ol class="hits">${found.map((one) => html`<${Hit} key=${one.id} one=${one} again=${() => again(turn + 1)} />`)}</ol>
    ${rest > 0 && !beyond && html`<button type="button" onClick=${() => more(Math.min(MOST, limit * 2))}>More</button>`}
    ${beyond && html`<p class="quiet">${count(rest)} more: say more words.</p>`}`;
}

function Hit({ one, again }) {
  return html`<li class="hit" aria-label=${shown(one.name, 80)}>
    <div class="row"><h2 class="grow"><a href=${`#/search/${part(one.id)}`}><${Text} of=${one.name} most=${120} /></a></h2>
      <${Standing} of=${one.standing} /><${Take} one=${one} again=${again} /></div>
    <${Alike} one=${one} />
    ${one.words.title && html`<p><${Text} of=${one.words.title} most=${128} /></p>`}
    ${one.description && html`<p><${Text} of=${one.description} most=${240} /></p>`}
    <${Facts} of=${[
      ["Publisher", html`<${Publisher} one=${one} />`],
      ["License", html`<${License} one=${one} />`],
      ["Size", html`${plural(one.records, "record")} in ${plural(one.blocks, "block")}${one.bytes > 0 ? `, ${bytes(one.bytes)}` : ""}`],
      ["Changed", html`<${When} at=${one.updatedAt} />`],
      one.firstEvent && ["Rows of", html`<${Events} one=${one} />`],
      one.words.place && ["Place", html`<${Text} of=${one.words.place} most=${128} />`],
      ["Who serves it", html`<${Served} one=${one} />`],
      ["Id", html`<${Id} of=${one.id} />`],
    ]} />
  </li>`;
}

const TONE = { announced: "warn", chain: "warn", data: "calm", forked: "bad", accused: "bad", refuted: "bad", damaged: "bad" };
const STANDS = {
  announced: "Nobody whose word counts here vouches for it.",
  accused: "A validator whose word counts here found that its computation gives something else.",
  forked: "Its key signed two histories.",
};

function Standing({ of }) {
  return html`<span title=${STANDS[of] || ""}><${State} of=${of} tone=${TONE[of] || "good"} /></span>`;
}

function Take({ one, again }) {
  const held = one.localName && html`<a class="button" href=${`#/datasets/${part(one.localName)}`}>Held here<span class="apart"> as ${shown(one.localName, 80)}</span></a>`;
  return html`<${Mirror} of=${one} held=${held} again=${again} />`;
}

/** What tells a name from those that are taken for it. */
function Alike({ one }) {
  const letters = scripts(one.name);
  if (!one.namesakes && letters.length < 2) return null;
  return html`<p class="note warn">${one.namesakes > 0 && `${plural(one.namesakes, "other dataset")} ${one.namesakes === 1 ? "has" : "have"} a name that looks like this one: distinguish them by publisher and id. This is `}
    ${one.namesakes > 0 && html`<code>${shown(one.id, 200)}</code>, signed by <code>${shown(one.author, 200)}</code>. `}
    ${letters.length > 1 && `Its name mixes letters of ${letters.join(" and ")}.`}</p>`;
}

function Publisher({ one }) {
  return html`${one.publisher ? html`<${Text} of=${one.publisher} most=${80} />` : html`<span class="quiet">no name</span>`} <${Id} of=${one.author} />`;
}

/** The first and the last event time of its rows. */
function Events({ one }) {
  return html`<${When} at=${one.firstEvent} /> to <${When} at=${one.lastEvent} />`;
}

const degrees = (value, positive, negative) => `${Math.abs(value)}° ${value < 0 ? negative : positive}`;
const box = ({ west, south, east, north }) =>
  `${degrees(west, "E", "W")} to ${degrees(east, "E", "W")}, ${degrees(south, "N", "S")} to ${degrees(north, "N", "S")}`;

function License({ one }) {
  const site = link(one.licenseUrl);
  if (!one.license) return site ? html`<a href=${site} rel="noopener noreferrer nofollow" target="_blank">its text</a>` : "not said";
  return site ? html`<a href=${site} rel="noopener noreferrer nofollow" target="_blank"><${Text} of=${one.license} most=${64} /></a>` : html`<${Text} of=${one.license} most=${64} />`;
}

function Served({ one }) {
  if (!one.peers) return "no connected peer";
  return `${plural(one.peers, "peer")} in ${plural(one.places, "subnet")}`;
}

/** Rows that a publisher shows; they are a stranger's texts until a mirror has checked them. */
function Sample({ of }) {
  const rows = of.rows.map((values, at) => ({ values, at }));
  const columns = of.columns.map((name, place) => ({ name: shown(name, 80), of: ({ values }) => html`<${Text} of=${values[place] ?? "–"} most=${64} />` }));
  return html`<section aria-labelledby="sample"><h2 id="sample">Sample</h2>
    <p class="quiet">The newest rows, which its publisher shows${of.leftOut > 0 && `; ${plural(of.leftOut, "more row")} had no room on the card`}. A mirror checks them.</p>
    <${Table} label="Sample" rows=${rows} keyed=${(each) => each.at} empty="No row had room." columns=${columns} />
  </section>`;
}

/** One card: what its chain says, what its publisher says, and what this node knows. */
export function Card({ name: id }) {
  const card = useAsk(`/node/v1alpha1/cards/${part(id)}`, 30);
  const trail = html`<p class="trail"><a href="#/search">Search</a></p>`;
  if (card.problem && !card.value)
    return html`${trail}<h1><${Text} of=${id} most=${120} /></h1><${Failed} problem=${card.problem} again=${card.again} />
      ${DID.test(id) && card.problem.rule === "card" && html`<${Mirror} of=${{ id, name: "", publisher: "", peers: 0, blocks: 0 }} again=${card.again} />`}`;
  return html`${trail}<${Answer} of=${card}>${(one) => html`
    <h1><${Text} of=${one.name} most=${120} /></h1>
    <p class="row"><${Standing} of=${one.standing} /> <span><${Text} of=${one.kind} most=${40} /></span> ${STANDS[one.standing] && html`<span class="quiet">${STANDS[one.standing]}</span>`}</p>
    <div class="row acts"><${Take} one=${one} again=${card.again} /></div>
    <${Alike} one=${one} />
    <div class="two">
      <section aria-labelledby="facts"><h2 id="facts">What its chain says</h2>
        <p class="quiet">Up to block #${count(one.blocks - 1)}; every mirror checks this.</p>
        ${one.description ? html`<p><${Text} of=${one.description} /></p>` : html`<p class="quiet">No description.</p>`}
        ${one.keywords.length > 0 && html`<p>${one.keywords.map((each) => html`<a class="label" href=${`#/search?q=${part(each)}`}><${Text} of=${each} most=${64} /></a> `)}</p>`}
        <${Facts} of=${[
          ["Records", count(one.records)], ["Blocks", count(one.blocks)], one.bytes > 0 && ["Size", bytes(one.bytes)], ["License", html`<${License} one=${one} />`],
          ["Watermark", html`<${When} at=${one.watermark} />`], one.firstEvent && ["Rows of", html`<${Events} one=${one} />`],
          one.updateInterval > 0 && ["Usually updated", `every ${span(one.updateInterval)}`], ["Changed", html`<${When} at=${one.updatedAt} />`], ["Created", html`<${When} at=${one.createdAt} />`],
        ]} />
        ${one.inputs.length > 0 && html`<p>Derived from ${one.inputs.map((each) => html`<a href=${`#/search/${part(each)}`}><${Id} of=${each} /></a> `)}</p>`}
      </section>
      <div>
        <section aria-labelledby="claims"><h2 id="claims">What its publisher says</h2>
          <p class="quiet">Nothing checks it.</p>
          <${Facts} of=${[
            ["Name of the dataset", html`<${Text} of=${one.name} most=${128} />`],
            one.words.title && ["Title", html`<${Text} of=${one.words.title} most=${128} />`],
            one.words.place && ["Place", html`<${Text} of=${one.words.place} most=${128} />`],
            one.words.area && ["Area", box(one.words.area)],
            one.words.frequency && ["Rows are added", html`<${Text} of=${one.words.frequency} most=${32} />`],
            ["Calls itself", one.publisher ? html`<${Text} of=${one.publisher} most=${128} />` : "nothing"],
          ]} />
        </section>
        <section aria-labelledby="here"><h2 id="here">What this node knows</h2>
          <${Facts} of=${[
            ["Who serves it", html`<${Served} one=${one} />`],
            ["Look-alikes", count(one.namesakes)],
            ["Card signed", html`<${When} at=${one.signedAt} />`],
            ["Good until", html`<${When} at=${one.expiresAt} />`],
            ["Signed by", html`<code>${shown(one.author, 200)}</code>`],
            ["Id", html`<code>${shown(one.id, 200)}</code>`],
          ]} />
        </section>
      </div>
    </div>
    <section aria-labelledby="columns"><h2 id="columns">Columns</h2>
      <${Table} label="Columns" rows=${one.columns} keyed=${(each) => each.name} empty="The card names none." columns=${[
        { name: "Column", of: (each) => html`<code><${Text} of=${each.name} most=${80} /></code>` },
        { name: "Type", of: (each) => html`<span class="quiet"><${Text} of=${each.type} most=${80} /></span>` },
      ]} />
      ${one.moreColumns > 0 && html`<p class="quiet">And ${plural(one.moreColumns, "more column")}.</p>`}
    </section>
    ${one.sample && html`<${Sample} of=${one.sample} />`}`}<//>`;
}
