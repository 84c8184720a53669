// Says in words what figures of the API mean.

import { count, plural, shown } from "/text.js";

/** How far a dataset may be relied on, and by which fact. */
export function reliance(dataset) {
  const on = dataset.relyOn;
  if (!on) return "–";
  const how = on.blocks >= dataset.blocks ? "all" : on.blocks ? `${count(on.blocks)} of ${plural(dataset.blocks, "block")}` : "nothing";
  return on.fact ? `${how} · ${fact(on.fact)}` : how;
}

/** Why no verdict on blocks is possible here, as their engine is not available; as odfctl says it. */
export function unheld({ first, last, digest }) {
  const blocks = first === last ? `#${first}` : `#${first}-#${last}`;
  if (!digest) return `${blocks} pinned to no engine: no verdict is possible`;
  return `${blocks} pinned to ${shown(digest, 19)}: this engine is not available`;
}

const FACTS = {
  refuted: "validators computed another result",
  accused: "one validator computed another result",
  "own-mismatch": "this node computed another result",
  split: "validators contradict each other",
  nondeterministic: "it gives another result each time",
  disputed: "a validator computed another result",
  pending: "not run again yet",
  "too-costly": "too costly to run again",
  fork: "two histories were signed",
  witnessed: "too few witnesses",
  fresh: "its head is too old",
  abandoned: "abandoned here",
  observed: "too few observers",
  inputs: "it reads beyond the reach of an input",
  data: "data checked",
  reproduced: "run again here",
};

/** By what a dataset may be relied on, or why no further: `RULE`, or `RULE at #BLOCK`. */
export function fact(text) {
  const [, rule, block] = /^([a-z-]+)(?: at #(\d+))?$/.exec(text) || [];
  if (!Object.hasOwn(FACTS, rule || "")) return shown(text, 80);
  return block ? `${FACTS[rule]} at block #${block}` : FACTS[rule];
}

/** What a trust view says of its reach, in a sentence. */
export function reachSentence({ reach, blocks }) {
  if (!blocks) return "None of it is here yet.";
  if (reach.use <= 0) return "Reach for use: none.";
  if (reach.use >= blocks) return `Reach for use: all blocks, 0 to ${count(blocks - 1)}.`;
  return `Reach for use: blocks 0 to ${count(reach.use - 1)} of ${count(blocks)}.`;
}

export const LOOKED_INTO = {
  confirmed: "Run again here: it is wrong.",
  refuted: "Run again here: it is right, and the accusation is not.",
  incomplete: "The evidence lacks what the step reads.",
  unable: "This machine cannot decide.",
  unfit: "The named file is not evidence.",
};

const MATTERS = {
  branch: "to follow the history that holds block",
  verdict: "to use this step, whatever verdicts contradict it:",
  version: "to follow this version of its authority:",
  epoch: "to follow the rewritten history with the head",
  abandoned: "to accept nothing beyond what is settled:",
};

/** What a decision was about, before the hash that it names. */
export const decided = (matter) => MATTERS[matter] || shown(matter, 60);

const TURNS = {
  "verdict.mismatch": "run again: another result",
  "verdict.not-reproducible-here": "could not be run again here",
  "evidence.rechecked": "evidence was checked",
  "dataset.forked": "two histories were signed",
  "dataset.resolved": "the operator decided",
  "dataset.rewritten": "its history was rewritten",
  "head.refused": "a head was refused",
  "head.withheld": "heads were withheld",
  "authority.forked": "two authorities were signed",
  "damage.found": "damage was found",
};

/** What an event of the past of a dataset was, in words. */
export const turn = (kind) => TURNS[kind] || shown(kind, 60);

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
