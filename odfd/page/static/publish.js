// Shows a dataset to others, after saying to whom, or to nobody any more.

import { useState } from "/vendor/hooks.js";
import { ask } from "/api.js";
import { Act, Failed, html, Text, useAsk } from "/parts.js";
import { shown, word } from "/text.js";

export function Publish({ one, again }) {
  const [asked, open] = useState(false);
  const [chosen, choose] = useState([]);
  const networks = useAsk(asked ? "/node/v1alpha1/networks" : "");
  const names = (networks.value || []).map((each) => each.name);
  const told = (words) => (answers) => {
    again();
    return [words, ...answers.flatMap((each) => each.notes)].join(" ");
  };
  const flip = (name) => (event) => choose(event.target.checked ? [...chosen, name] : chosen.filter((each) => each !== name));
  if (one.published)
    return html`<${Act} label="Unpublish" title=${`Make ${shown(one.name, 80)} private?`} command=${`odfctl unpublish ${word(one.name)}`}
      says="The node says and gives no more of it. What others took of it stays theirs."
      act=${() => ask("POST", "/node/v1alpha1/unpublish", { refs: [one.name] })} then=${told("It is private.")} />`;
  const limits = chosen.length ? ` --to ${chosen.map(word).join(" ")}` : "";
  return html`<${Act} label="Publish" title=${`Publish ${shown(one.name, 80)}?`} command=${`odfctl publish ${word(one.name)}${limits}`} on=${open}
    says=${[chosen.length ? `Members of ${chosen.map((each) => shown(each, 80)).join(", ")} may see it and take all of its rows; in other networks, over HTTP and on IPFS there is nothing of it. Anybody who knows a network's name may join it.`
        : "Others may see it and take all of its rows: peers of the network, and over HTTP and IPFS where the settings say so.",
      "This cannot be undone for those who took it."]}
    act=${() => ask("POST", "/node/v1alpha1/publish", { refs: [one.name], to: chosen })} then=${told("It is public.")}>
    ${networks.problem && html`<${Failed} problem=${networks.problem} />`}
    ${names.length > 0 && html`<p>To everybody, or only to members of:</p>
      ${names.map((name) => html`<label class="pick"><input type="checkbox" checked=${chosen.includes(name)} onChange=${flip(name)} /> <${Text} of=${name} most=${80} /></label>`)}`}
  <//>`;
}
