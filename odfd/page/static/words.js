// Says in words what figures of the API mean.

import { count, plural, shown } from "/text.js";

/** How far a dataset may be relied on, and by which fact. */
export function reliance(dataset) {
  const on = dataset.relyOn;
  if (!on) return "–";
  const how = on.blocks >= dataset.blocks ? "all" : on.blocks ? `${count(on.blocks)} of ${plural(dataset.blocks, "block")}` : "nothing";
  return on.fact ? `${how} · ${shown(on.fact, 80)}` : how;
}

/** What a trust view says of its reach, in a sentence. */
export function reachSentence({ reach, blocks }) {
  if (!blocks) return "None of it is here yet.";
  if (reach.use <= 0) return "You may rely on none of it.";
  if (reach.use >= blocks) return `You may rely on all of it, blocks 0 to ${count(blocks - 1)}.`;
  return `You may rely on blocks 0 to ${count(reach.use - 1)} of ${count(blocks)}, and on none after.`;
}

export const LOOKED_INTO = {
  confirmed: "Run again here: it is wrong.",
  refuted: "Run again here: it is right, and the accusation is not.",
  incomplete: "The evidence lacks what the step reads.",
  unable: "This machine cannot tell.",
  unfit: "What was named as evidence is none.",
};

/** As a sentence of its own. */
export const sentence = (text) => (text ? `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}` : "");

const SCRIPTS = ["Latin", "Cyrillic", "Greek", "Armenian", "Hebrew", "Arabic", "Cherokee", "Georgian", "Thai", "Han", "Hiragana", "Katakana", "Hangul"];
const LETTERS = SCRIPTS.map((script) => [script, new RegExp(`\\p{Script=${script}}`, "u")]);

/** Whose letters are in a name: two scripts in one are how a name is made to look like another's. */
export function scripts(name) {
  const found = LETTERS.filter(([, letter]) => letter.test(name)).map(([script]) => script);
  const others = [...name].some((one) => /\p{L}/u.test(one) && !LETTERS.some(([, letter]) => letter.test(one)));
  return others ? [...found, "another script"] : found;
}
