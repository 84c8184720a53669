// Shows a dataset to others, after saying to whom and what its card says, or to nobody any more.

import { useState } from "/vendor/hooks.js";
import { ask } from "/api.js";
import { Act, Failed, flats, html, Text, useAsk } from "/parts.js";
import { plural, shown, word } from "/text.js";

const FREQUENCIES = ["", "continuous", "hourly", "daily", "weekly", "monthly", "quarterly", "annual", "irregular", "never"];
const ON_CARD = ["title", "sample", "frequency", "place", "area"];

/** What a form says of a card, without spaces around it. */
const trimmed = (card) => Object.fromEntries(ON_CARD.map((name) => [name, String(card[name] || "").trim()]));
const options = (said) => Object.entries(said).map(([name, value]) => ` --${name}${value.startsWith("-") ? "=" : " "}${word(value)}`).join("");
const request = (said) => ({ ...said, ...("sample" in said && { sample: Number(said.sample) || 0 }) });
const told = (again, words) => (answers) => {
  again();
  return [words, ...answers.flatMap((each) => each.notes)].join(" ");
};

export function Publish({ one, detail, again }) {
  const [asked, open] = useState(false);
  const [chosen, choose] = useState([]);
  const [card, write] = useState({});
  const networks = useAsk(asked ? "/net/v1alpha1/networks" : "", 0, flats);
  const names = (networks.value || []).map((each) => each.name);
  const flip = (name) => (event) => choose(event.target.checked ? [...chosen, name] : chosen.filter((each) => each !== name));
  if (one.published)
    return html`<${Act} label="Unpublish" title=${`Make ${shown(one.name, 80)} private?`} command=${`odfctl unpublish ${word(one.name)}`}
      says="The node no longer announces or serves it. Copies of other nodes stay."
      act=${() => ask("POST", "/node/v1alpha1/unpublish", { refs: [one.name] })} then=${told(again, "It is private.")} />
      ${one.owner && html`<${OnCard} one=${one} detail=${detail} again=${again} />`}`;
  const limits = chosen.length ? ` --to ${chosen.map(word).join(" ")}` : "";
  const said = Object.fromEntries(Object.entries(trimmed(card)).filter(([, value]) => value));
  const rows = Number(said.sample) || 0;
  return html`<${Act} label="Publish" title=${`Publish ${shown(one.name, 80)}?`} command=${`odfctl publish ${word(one.name)}${limits}${options(said)}`} on=${open}
    says=${[chosen.length ? `Members of ${chosen.map((each) => shown(each, 80)).join(", ")} may see it and take all of its rows; in other networks, over HTTP and on IPFS there is nothing of it. Anybody who knows a network's name may join it.`
        : "Others may see it and take all of its rows: peers of the network, and over HTTP and IPFS where the settings say so.",
      rows > 0 && `Whoever finds it sees its ${rows === 1 ? "newest row" : `${rows} newest rows`} before taking it.`,
      "This cannot be undone for those who took it."]}
    act=${() => ask("POST", "/node/v1alpha1/publish", { refs: [one.name], to: chosen, ...request(said) })} then=${told(again, "It is public.")}>
    ${one.owner && html`<${Fields} name=${one.name} card=${card} write=${write} />`}
    ${networks.problem && html`<${Failed} problem=${networks.problem} />`}
    ${names.length > 0 && html`<p>To everybody, or only to members of:</p>
      ${names.map((name) => html`<label class="pick"><input type="checkbox" checked=${chosen.includes(name)} onChange=${flip(name)} /> <${Text} of=${name} most=${80} /></label>`)}`}
  <//>`;
}

/** Changes what the card of a published dataset says; who may see it stays as it is. */
function OnCard({ one, detail, again }) {
  const { title, place, area, frequency } = detail.words;
  const before = trimmed({ title, place, frequency, sample: detail.sample || "", area: area ? [area.west, area.south, area.east, area.north].join(",") : "" });
  const [written, write] = useState(null);
  const said = trimmed(written || before);
  const changed = Object.fromEntries(Object.entries(said).filter(([name, value]) => value !== before[name]));
  const asked = "sample" in changed && !changed.sample ? { ...changed, sample: "0" } : changed;
  return html`<${Act} label="Card" title=${`What does the card of ${shown(one.name, 80)} say?`} command=${`odfctl publish ${word(one.name)}${options(asked)}`}
    says=${["Whoever searches the network reads it, within a minute. Who may see the dataset stays as it is.",
      said.sample > 0 && `The ${plural(Number(said.sample), "newest row")} of it ${Number(said.sample) === 1 ? "is" : "are"} shown.`]}
    act=${() => ask("POST", "/node/v1alpha1/publish", { refs: [one.name], ...request(Object.keys(asked).length ? asked : { title: said.title }) })}
    then=${told(again, "Its next card says so.")}>
    <${Fields} name=${one.name} card=${written || before} write=${write} />
  <//>`;
}

function Fields({ name, card, write }) {
  const set = (field) => (event) => write({ ...card, [field]: event.target.value });
  return html`<p>On its card, which those who search see:</p>
    <div class="fields">
      <label class="wide">Title<input name="title" maxlength="128" placeholder=${shown(name, 80)} value=${card.title || ""} onInput=${set("title")} /></label>
      <label>Newest rows to show<input type="number" name="sample" min="0" max="20" step="1" placeholder="0" value=${card.sample || ""} onInput=${set("sample")} /></label>
      <label>Rows are added<select name="frequency" value=${card.frequency || ""} onChange=${set("frequency")}>${FREQUENCIES.map((each) => html`<option value=${each} selected=${each === (card.frequency || "")}>${each || "not said"}</option>`)}</select></label>
      <label>Place<input name="place" maxlength="128" placeholder="none" value=${card.place || ""} onInput=${set("place")} /></label>
      <label>Area: west,south,east,north<input name="area" maxlength="64" placeholder="none" value=${card.area || ""} onInput=${set("area")} /></label>
    </div>`;
}
