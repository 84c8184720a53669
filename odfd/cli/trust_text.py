"""Formats the evaluation of a dataset: how far to rely on it, on whose statements, and the faults found. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from chain.instant import Instant
from odfd.cli import formatting
from odfd.cli.table import Stack, TableColumn, clean, render
from odfd.control import wire

_LOOKED_INTO: Final = {
    "confirmed": "run again here, it is wrong",
    "refuted": "run again here, it is right",
    "incomplete": "the evidence lacks what the step reads",
    "unable": "this machine cannot decide",
    "unfit": "the named file is not evidence",
}
_DECIDED: Final = {
    "branch": "to follow the history that holds block",
    "verdict": "to use this step, whatever verdicts contradict it:",
    "version": "to follow this version of its authority:",
    "epoch": "to follow the rewritten history with the head",
    "abandoned": "to accept nothing beyond what is settled:",
}
_DECODED: Final = frozenset({"decoded", "decodes-otherwise"})
"""Results of observations that tell nothing of a source."""
_PAST: Final = 5
"""Past incidents that are shown."""


def trust_text(view: wire.TrustView, now: Instant, again: str) -> str:
    """Formats the view, and that of each further shard below it.

    ``again``: the first words of an ``odfctl`` command for the same daemon.
    """
    lines = _chain_text(view, now, again)
    for shard in view.shards:
        lines += ["", *_chain_text(shard, now, again)]
    return Stack(lines)


def _chain_text(view: wire.TrustView, now: Instant, again: str) -> list[str]:
    fresh = {True: ", fresh", False: ", not fresh", None: ""}[view.facts.fresh]
    if view.facts.ahead:
        fresh += ": ahead of this clock"
    unwitnessed = ", unwitnessed" if view.facts.witnessed is False else ""
    if view.facts.met == "networks":
        unwitnessed = ", met alike in three networks"
    head = f"head #{view.blocks - 1} {formatting.digest(view.head)}" if view.blocks else "no block of it is here yet"
    signed = f", signed {formatting.ago(view.signed_at, now)}" if view.signed_at else ""
    lines = [
        f"{view.ref}   {formatting.identity(view.dataset_id)}   {head}{signed}{fresh}{unwitnessed}",
        f"  {_reach(view)}",
    ]
    if view.withdrawn_at:
        text = "no new block is expected, and the blocks here can be used: odfctl describe dataset " + view.ref
        lines.append(f"  {formatting.withdrawal(view.withdrawn_at).capitalize()}: {text}")
    lines += [f"  {each.text}" for each in view.unheld]
    for proof in view.evidence:
        lines += ["", *evidence_lines(proof)]
    rows = [*((row, "") for row in view.attestations), *((row, "dissents") for row in view.dissent)]
    if rows:
        columns: tuple[TableColumn[tuple[wire.AttestationView, str]], ...] = (
            TableColumn("VALIDATOR", lambda row: formatting.identity(row[0].validator)),
            TableColumn("GROUP", lambda row: row[0].group or formatting.NOTHING),
            TableColumn("SAYS", lambda row: ", ".join(row[0].spans)),
            TableColumn("ENGINE", _machine),
            TableColumn("AT", lambda row: formatting.ago(row[0].at, now)),
            TableColumn("", lambda row: row[1]),
        )
        lines += ["", render(columns, rows).indent_by(2)]
    for seen in view.observations:
        who = seen.group or formatting.identity(seen.observer)
        is_decoded = seen.result in _DECODED
        what = f"decoded the bytes of #{seen.block}" if is_decoded else f"found #{seen.block} at its source"
        lines.append(f"  {who} {what} {formatting.ago(seen.at, now)}: {seen.result}")
    for witness in view.witnesses:
        lines += witness_lines(witness, now)
    if (spare := view.witnesses_to_spare) is not None and spare <= 0:
        text = "One witness less would stop readers" if not spare else "Too few witnesses cosign it: readers stop"
        lines.append(f"  {text}; what is asked for says [policy.witness]")
    if view.unsigned:
        lines.append(f"  This node signs no head of it: {clean(view.unsigned, 200)}")
    if view.unlisted:
        lines.append(
            f"  {formatting.plural(view.unlisted, 'more validator')} gave verdicts and are in no group of yours"
        )
    for made in view.decisions:
        who = "Witnesses" if made.by == "witnesses" else "You"
        matter = _DECIDED.get(made.matter, made.matter)
        lines.append(f"  {who} decided {formatting.ago(made.at, now)} {matter} {formatting.digest(made.hash)}")
    for incident in view.past[:_PAST]:
        lines.append(f"  {formatting.ago(incident.at, now)}: {incident.kind}  {clean(incident.message, 200)}".rstrip())
    if len(view.past) > _PAST:
        lines.append(f"  {formatting.plural(len(view.past) - _PAST, 'older incident')}: -o json lists them")
    for choice in view.choices:
        lines.append(f"  You may follow {choice.hash}  {clean(choice.message, 100)}")
    if view.choices:
        lines.append(f"  To decide: {again} trust resolve {view.ref} --follow HASH, or --abandon")
    for proof in view.evidence:
        if proof.bundle:
            fetch = "" if proof.kept else " --fetch"
            lines.append(f"  Evidence: {again} trust evidence {proof.bundle}{fetch} -O evidence.odfe")
    return lines


def _machine(row: tuple[wire.AttestationView, str]) -> str:
    """Returns the engine and platform of a verdict, as its validator declares them; nothing measures them."""
    return " ".join(filter(None, (row[0].engine, row[0].platform))) or formatting.NOTHING


def _reach(view: wire.TrustView) -> str:
    use, blocks = view.reach.use, view.blocks
    why = view.why.message if view.why else ""
    if not blocks:
        return "None of it is here yet."
    if use <= 0:
        return f"Reach for use: none yet.  {why}".rstrip()
    if use >= blocks:
        return f"Reach for use: all blocks, 0-{blocks - 1}."
    return f"Reach for use: blocks 0-{use - 1}.  {why}".rstrip()


def witness_lines(witness: wire.WitnessView, now: Instant) -> Iterator[str]:
    """Yields how far a witness cosigned, why it does not when asked, and remarks for its operator."""
    name, size = clean(witness.name, 80), witness.size
    text = (
        "cosigned nothing"
        if size is None
        else f"cosigned {formatting.plural(size, 'block')} {formatting.ago(witness.at, now)}"
    )
    counts = "" if witness.counts else " (it does not count here)"
    why = f": {clean(witness.trouble, 200)}" if witness.trouble else ""
    yield f"  Witness {name} {text}{counts}{why}"
    if witness.log_key:
        yield f"    Its operator lists the log key {clean(witness.log_key, 300)}"


def evidence_lines(proof: wire.EvidenceView) -> list[str]:
    lines = [f"  #{proof.block}  {clean(proof.message, 200)}".rstrip()]
    if looked_into := _LOOKED_INTO.get(proof.recheck or ""):
        lines[0] += f"; {looked_into}"
    for cell in proof.cells[:10]:
        known = "  ".join(f"{name}={value}" for name, value in cell.context.items())
        lines.append(f"      row {cell.row}  {known}".rstrip())
        lines.append(f"      {cell.column}  published {cell.published}  computed {cell.computed}")
    return lines
