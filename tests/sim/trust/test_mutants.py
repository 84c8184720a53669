"""The simulator can fail: each rule taken away in turn is noticed, and by the promise that rests on it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from odfd.policy import policy as policies
from odfd.policy import witness_quorum
from odfd.policy.policy import KeyGroup
from odfd.trust.admission import rules
from odfd.trust.admission.rules import AdmissionOutcome, Admitted
from odfd.trust.judgement import suspension_rules, verdicts
from odfd.trust.judgement.trust_evaluator import own_verdict
from odfd.trust.judgement.verdicts import GroupVerdict

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


def found(trustnet: Any, monkeypatch: pytest.MonkeyPatch, first: int = 0, **plan: Any) -> str:
    """The promise broken by the first seed that notices; empty when none does. With all rules that seed keeps it.
    ``first`` is a seed that is known to notice: trying it before the others saves up to 23 simulations."""
    for seed in (first, *range(SEEDS)):
        try:
            trustnet.network.World(seed, trustnet.network.Plan(**plan)).run()
        except trustnet.promises.Broken as broken:
            monkeypatch.undo()
            trustnet.network.World(seed, trustnet.network.Plan(**plan)).run()
            return str(broken.promise)
    return ""


ROWS: dict[int, tuple[str, dict[str, Any]]] = {
    1: ("R S1 L", {"kinds": ("lie", "honest")}),
    2: ("R L", {"recipe": "50"}),
    3: ("T", {"faulty": 1}),
    4: ("S1 L", {"kinds": ("lie", "honest")}),
    5: ("L", {"first": 4}),
    6: ("L", {}),
    7: ("D", {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_every_row_of_the_table_is_missed(trustnet: Any, monkeypatch: pytest.MonkeyPatch, row: int) -> None:
    promises, plan = ROWS[row]
    monkeypatch.setattr(verdicts, "count_votes", without_row(row))
    assert found(trustnet, monkeypatch, **plan) in promises.split()


def test_the_table_has_no_other_rows() -> None:
    with pytest.raises(IndexError):
        without_row(len(ROWS) + 1)


@pytest.mark.slow
def test_k_of_f_is_noticed(trustnet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a policy would load whatever its K, and asks for as many as may lie."""
    monkeypatch.setattr(policies, "quorum_mistakes", lambda *_: ())
    monkeypatch.setattr(trustnet.network, "quorum_between", lambda rng, least, most: max(least - 1, 1))
    assert found(trustnet, monkeypatch, plot="affirm", kinds=("lie", "honest")) == "S1"


@pytest.mark.slow
def test_opaque_states_that_count_are_noticed(trustnet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "_result", replaced(verdicts, "_result", "span.state == 'opaque'", "False"))
    assert found(trustnet, monkeypatch, first=2, kinds=("forged-state", "honest"), plot="affirm") in ("S1", "L")


@pytest.mark.slow
def test_keys_that_vote_in_place_of_groups_are_noticed(trustnet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_key(policy: Any, heard: Any, step: int, suspended: Any = ()) -> dict[str, GroupVerdict]:
        split = tuple(
            KeyGroup(f"{group.name}/{key}", frozenset({key})) for group in policy.groups for key in group.keys
        )
        return honest(policies.Policy(groups=split), heard, step, suspended)

    honest = verdicts.group_verdicts
    monkeypatch.setattr(verdicts, "group_verdicts", by_key)
    assert found(trustnet, monkeypatch, plot="deny") in ("S2", "U")


@pytest.mark.slow
def test_unlike_mismatches_added_up_are_noticed(trustnet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = replaced(verdicts, "count_votes", "max(values.values(), default=0)", "sum(values.values())")
    monkeypatch.setattr(verdicts, "count_votes", changed)
    assert found(trustnet, monkeypatch, recipe="machine") == "U"


@pytest.mark.slow
def test_dissent_that_vetoes_is_noticed(trustnet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = replaced(verdicts, "count_votes", "agree >= quorum", "agree >= quorum and not values")
    monkeypatch.setattr(verdicts, "count_votes", changed)
    assert found(trustnet, monkeypatch, plot="deny") == "L"


@pytest.mark.slow
def test_reach_past_a_fork_is_noticed(trustnet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "reach", replaced(verdicts, "reach", "extent.forked_at is not None", "False"))
    assert found(trustnet, monkeypatch, kinds=("fork", "honest")) == "F"


@pytest.mark.slow
def test_reach_past_what_stops_is_noticed(trustnet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "reach", replaced(verdicts, "reach", "sequence_number >= stop", "True"))
    assert found(trustnet, monkeypatch, kinds=("lie", "honest")) in ("S1", "L")


@pytest.mark.slow
def test_verdicts_on_another_branch_that_count_are_noticed(trustnet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    all_of_them = lambda book: {key: said for key, (said, _) in book.said.items() if said.size <= book.size}  # noqa: E731
    monkeypatch.setattr(trustnet.node.Book, "heard", all_of_them)
    assert found(trustnet, monkeypatch, first=22, kinds=("fork", "honest")) in ("S1", "S2")


@pytest.mark.slow
def test_forks_overlooked_are_noticed(trustnet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = rules._against_mine

    def blind(*given: Any) -> Admitted:
        verdict = honest(*given)
        return Admitted(AdmissionOutcome.OLDER) if verdict.outcome is AdmissionOutcome.FORK else verdict

    monkeypatch.setattr(rules, "_against_mine", blind)
    assert found(trustnet, monkeypatch, kinds=("fork", "honest")) == "L"


@pytest.mark.slow
def test_double_votes_let_pass_are_noticed(trustnet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspension_rules, "double_voters", lambda *_: frozenset())
    assert found(trustnet, monkeypatch, plot="double") in ("L", "S5", "S7")


@pytest.mark.slow
def test_signing_without_the_journal_is_noticed(trustnet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trustnet.sealing.RememberedJournal, "check", lambda *_: None)
    assert found(trustnet, monkeypatch, kinds=("restored", "honest")) == "S6"


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["alone", "grace", "platform", "again"])
def test_suspending_too_lightly_is_noticed(trustnet: Any, monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    """Strikes by one group, no time to look again, any machine, no second look."""
    plan: dict[str, Any] = {"first": 22, "recipe": "2", "kinds": trustnet.network.UNREPEATABLE}
    if rule == "alone":
        plan = {"plot": "deny"}
        old = "len(many) == 1 and many[0] != verdicts[group]"
        new = "any(verdict != verdicts[group] for verdict in alike)"
        changed = replaced(suspension_rules, "_stands_alone", old, new)
        monkeypatch.setattr(suspension_rules, "_stands_alone", changed)
    elif rule == "grace":
        monkeypatch.setattr(suspension_rules, "GRACE", -1)
    elif rule == "platform":
        plan = {"first": 2, "recipe": "platform"}
        changed = replaced(suspension_rules, "_stands_alone", "machines[other] & machines[group]", "True")
        monkeypatch.setattr(suspension_rules, "_stands_alone", changed)
    else:
        plan["first"] = 12
        monkeypatch.setattr(suspension_rules, "look_again", lambda *_: frozenset())
    assert found(trustnet, monkeypatch, **plan) == "S3"


@pytest.mark.slow
def test_quorums_of_a_half_are_noticed(trustnet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness_quorum.Witnesses, "preventing", property(lambda self: max(len(self.groups) // 2, 1)))
    assert found(trustnet, monkeypatch, kinds=("fork",)) == "S4"


@pytest.mark.slow
def test_two_keys_of_a_witness_group_are_noticed(trustnet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trustnet.network, "witnesses_of", lambda keys: keys)
    monkeypatch.setattr(witness_quorum.Witnesses, "preventing", property(lambda self: _of_groups(self)))
    assert found(trustnet, monkeypatch, first=14, kinds=("fork",)) == "S4"


def _of_groups(witnesses: Any) -> int:
    return (len(set(witnesses.groups.values())) + witnesses.faulty) // 2 + 1


@pytest.mark.slow
def test_gossip_alone_is_not_enough(trustnet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trustnet.network.World, "meet", lambda *_: None)
    assert found(trustnet, monkeypatch) == "L"


@pytest.mark.slow
def test_my_own_opaque_runs_that_count_are_noticed(trustnet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a forged state every later lie reproduces, for whoever begins there."""

    def credulous(node: Any, book: Any) -> dict[int, GroupVerdict]:
        return {step: voice for step, run in book.runs.items() if (voice := own_verdict(run)) is not None}

    monkeypatch.setattr(trustnet.node.Node, "own", credulous)
    assert found(trustnet, monkeypatch, first=23, kinds=("forged-state", "honest")) in ("S1", "L", "T")
