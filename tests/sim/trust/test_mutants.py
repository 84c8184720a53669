"""The simulator can fail: each rule taken away in turn is noticed, and by the promise that rests on it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, TypeAlias

import pytest

from chain.ids import KeyDid
from chain.statements.statement import Attestation
from odfd.policy import policy as policies
from odfd.policy.policy import KeyGroup
from odfd.policy.witness_quorum import Witnesses
from odfd.trust.admission import rules
from odfd.trust.admission.rules import AdmissionOutcome, Admitted
from odfd.trust.judgement import suspension_rules, verdicts
from odfd.trust.judgement.trust_evaluator import own_verdict
from odfd.trust.judgement.verdicts import GroupVerdict
from sim.kernel import hold
from sim.trust import network
from sim.trust.fabric import RememberedJournal
from sim.trust.node import Book, Node
from sim.trust.promises import Broken

SEEDS = 60
"""Within which a mutant must be found."""


def rewritten(module: ModuleType, name: str, change: Callable[[ast.FunctionDef], None]) -> Any:
    """The function as it would be if its source were changed."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(getattr(module, name))))
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    function.decorator_list = []
    change(function)
    scope = dict(vars(module))
    exec(compile(ast.fix_missing_locations(tree), f"<{name} changed>", "exec"), scope)
    return scope[name]


def without_row(row: int) -> Any:
    """``count_votes`` without one row of its table: of the if-statements that return a decision, from the first."""

    def change(function: ast.FunctionDef) -> None:
        rows = [node for node in function.body if isinstance(node, ast.If) and isinstance(node.body[0], ast.Return)]
        function.body.remove(rows[row - 1])

    return rewritten(verdicts, "count_votes", change)


def replaced(module: ModuleType, name: str, old: str, new: str) -> Any:
    """The function with one expression in place of another."""

    class Change(ast.NodeTransformer):
        done = 0

        def visit(self, node: ast.AST) -> ast.AST:
            if isinstance(node, ast.expr) and ast.unparse(node) == old:
                Change.done += 1
                return ast.parse(new, mode="eval").body
            return self.generic_visit(node)

    def change(function: ast.FunctionDef) -> None:
        Change().visit(function)
        assert Change.done, f"{name} no longer says {old}"

    return rewritten(module, name, change)


Patch: TypeAlias = Callable[[pytest.MonkeyPatch], None]


def put(where: object, name: str, broken: object) -> Patch:
    return lambda patch: patch.setattr(where, name, broken)


def change(module: ModuleType, name: str, old: str, new: str) -> Patch:
    return lambda patch: patch.setattr(module, name, replaced(module, name, old, new))


def miss(row: int) -> Patch:
    return lambda patch: patch.setattr(verdicts, "count_votes", without_row(row))


def by_key(policy: Any, heard: Any, step: int, suspended: Any = ()) -> dict[str, GroupVerdict]:
    groups = tuple(KeyGroup(f"{group.name}/{key}", frozenset({key})) for group in policy.groups for key in group.keys)
    return VERDICTS(policies.Policy(groups=groups), heard, step, suspended)


def blind(*given: Any) -> Admitted:
    verdict = AGAINST_MINE(*given)
    return Admitted(AdmissionOutcome.OLDER) if verdict.outcome is AdmissionOutcome.FORK else verdict


def all_of_them(book: Book) -> dict[KeyDid, Attestation]:
    return {key: said for key, (said, _) in book.said.items() if said.size <= book.size}


def credulous(_node: Node, book: Book) -> dict[int, GroupVerdict]:
    """Behind a forged state every later lie reproduces, for whoever begins there."""
    return {step: voice for step, run in book.runs.items() if (voice := own_verdict(run)) is not None}


def of_keys(witnesses: Witnesses) -> int:
    return (len(set(witnesses.groups.values())) + witnesses.faulty) // 2 + 1


VERDICTS, AGAINST_MINE = verdicts.group_verdicts, rules._against_mine
LYING, FORKING, FORGING = ({"kinds": (kind, "honest")} for kind in ("lie", "fork", "forged-state"))
NONE: Callable[..., frozenset[Any]] = lambda *_: frozenset()  # noqa: E731
ROWS = 7
MUTANTS: dict[str, tuple[str, dict[str, Any], *tuple[Patch, ...]]] = {
    "row 1": ("R S1 L", LYING, miss(1)),
    "row 2": ("R L", {"recipe": "50"}, miss(2)),
    "row 3": ("T", {"faulty": 1}, miss(3)),
    "row 4": ("S1 L", LYING, miss(4)),
    "row 5": ("L", {}, miss(5)),
    "row 6": ("L", {}, miss(6)),
    "row 7": ("D", {}, miss(7)),
    "a policy loads whatever its K, and asks for as many as may lie": (
        "S1",
        {"plot": "affirm", **LYING},
        put(policies, "quorum_mistakes", lambda *_: ()),
        put(network, "quorum_between", lambda rng, least, most: max(least - 1, 1)),
    ),
    "opaque states count": (
        "S1 L",
        {"plot": "affirm", **FORGING},
        change(verdicts, "_result", "span.state == 'opaque'", "False"),
    ),
    "my own opaque runs count": ("S1 L T", FORGING, put(Node, "own", credulous)),
    "keys vote in place of groups": ("S2 U", {"plot": "deny"}, put(verdicts, "group_verdicts", by_key)),
    "unlike mismatches are added up": (
        "U",
        {"recipe": "machine"},
        change(verdicts, "count_votes", "max(values.values(), default=0)", "sum(values.values())"),
    ),
    "dissent vetoes": (
        "L",
        {"plot": "deny"},
        change(verdicts, "count_votes", "agree >= quorum", "agree >= quorum and not values"),
    ),
    "reach passes a fork": ("F", FORKING, change(verdicts, "reach", "extent.forked_at is not None", "False")),
    "reach passes what stops": ("S1 L", LYING, change(verdicts, "reach", "sequence_number >= stop", "True")),
    "verdicts on another branch count": ("S1 S2", FORKING, put(Book, "heard", all_of_them)),
    "forks are overlooked": ("L", FORKING, put(rules, "_against_mine", blind)),
    "double votes pass": ("L S5 S7", {"plot": "double"}, put(suspension_rules, "double_voters", NONE)),
    "the journal is not asked": (
        "S6",
        {"kinds": ("restored", "honest")},
        put(RememberedJournal, "check", lambda *_: None),
    ),
    "one group strikes": (
        "S3",
        {"plot": "deny"},
        change(
            suspension_rules,
            "_stands_alone",
            "len(many) == 1 and many[0] != verdicts[group]",
            "any(verdict != verdicts[group] for verdict in alike)",
        ),
    ),
    "there is no time to look again": (
        "S3",
        {"recipe": "2", "kinds": network.UNREPEATABLE},
        put(suspension_rules, "GRACE", -1),
    ),
    "any machine strikes": (
        "S3",
        {"recipe": "platform"},
        change(suspension_rules, "_stands_alone", "machines[other] & machines[group]", "True"),
    ),
    "nobody looks again": (
        "S3",
        {"recipe": "2", "kinds": network.UNREPEATABLE},
        put(suspension_rules, "look_again", NONE),
    ),
    "half of the witnesses are a quorum": (
        "S4",
        {"kinds": ("fork",)},
        put(Witnesses, "preventing", property(lambda self: max(len(self.groups) // 2, 1))),
    ),
    "two keys of a group witness": (
        "S4",
        {"kinds": ("fork",)},
        put(network, "witnesses_of", lambda keys: keys),
        put(Witnesses, "preventing", property(of_keys)),
    ),
    "there is gossip alone": ("L", {}, put(network.World, "meet", lambda *_: None)),
}
"""The promises that rest on a rule, the plan in which it is missed, and what takes it away."""


@pytest.mark.nightly
@pytest.mark.parametrize("rule", MUTANTS)
def test_each_rule_is_missed(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    """By the promise that rests on it; with all rules the world keeps it."""
    promises, plan, *patches = MUTANTS[rule]
    for patch in patches:
        patch(monkeypatch)
    world = partial(network.World, plan=network.Plan(**plan))
    with pytest.raises(Broken) as found:
        hold(range(SEEDS), world)
    assert found.value.promise in promises.split()
    monkeypatch.undo()
    (seed,) = (int(note.partition("=")[2]) for note in found.value.__notes__ if note.startswith("ODFD_SIM_SEED"))
    hold([seed], world)


def test_the_table_has_no_other_rows() -> None:
    with pytest.raises(IndexError):
        without_row(ROWS + 1)
