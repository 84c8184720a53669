"""Nodes publish, re-run, lie, count and rotate on a network that loses, cuts and eclipses: its invariants hold.

Spec: docs/spec/trust.md#invariants.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import pytest

from chain.ids import KeyDid
from chain.statements.statement import HEAD, Attestation
from chain.store.database import open_database
from odfd.policy import policy as policies
from odfd.policy.policy import KeyGroup
from odfd.policy.witness_quorum import Witnesses
from odfd.store.ledger import retention
from odfd.store.ledger.log import Ledger
from odfd.trust.admission import rules, statement_processor
from odfd.trust.admission.rules import AdmissionOutcome, Admitted, admit_authority
from odfd.trust.judgement import suspension_rules, verdicts
from odfd.trust.judgement.trust_evaluator import own_verdict
from odfd.trust.judgement.verdicts import GroupVerdict
from sim.kernel import batches, hold, share
from sim.trust import network
from sim.trust.fabric import RememberedJournal
from sim.trust.liars import PLOTS
from sim.trust.network import KINDS, Plan, World
from sim.trust.node import Book, Node
from sim.trust.promises import Broken
from sim.trust.realm import Peer, Realm


@pytest.mark.slow
@pytest.mark.parametrize("batch", batches(25), ids=str)
def test_promises_hold(batch: range) -> None:
    hold(batch, World)


def keep(seeds: range, plan: Plan) -> None:
    hold(seeds, partial(World, plan=plan))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lie", "forged-state", "fork", "restored", "stray-epoch"])
def test_each_deed_among_honest_ones(kind: str) -> None:
    """Scenarios 1, 2, 3, 5 and 6, each with partitions and eclipses by the seed (4)."""
    keep(share(10, 1 / 10), Plan(kinds=(kind, "honest")))


@pytest.mark.slow
@pytest.mark.parametrize("plot", PLOTS)
def test_each_plot_of_f_groups(plot: str) -> None:
    """Scenario 8 within what a policy tolerates."""
    keep(share(5, 1 / 40), Plan(plot=plot))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["50", "machine", "platform"])
def test_queries_wrongly_taken_for_repeatable(recipe: str) -> None:
    """Scenario 7: nobody honest is suspended, and what never repeats is called so by everybody."""
    keep(share(10, 1 / 10), Plan(recipe=recipe))


@pytest.mark.nightly
def test_one_faulty_group_too_many() -> None:
    """Scenario 8 beyond the bound: promises end exactly there; own runs are still right, a split is called so."""
    seen: Counter[str] = Counter()
    for seed in range(30):
        seen += World(seed, Plan(faulty=1)).converge().seen
    assert seen["lie believed"]
    assert seen["truth refused"]
    assert seen["split"]


@pytest.mark.slow
def test_a_seed_tells_all() -> None:
    """The same seed is the same world, to the last message."""
    one, other = (World(11).converge() for _ in range(2))
    assert (one.end, one.promises.answers) == (other.end, other.promises.answers)


@pytest.mark.nightly
def test_worlds_hold_what_they_should() -> None:
    """A storm that never blows proves nothing."""
    kinds: set[str] = set()
    plots: set[str] = set()
    seen: Counter[str] = Counter()
    for seed in range(50):
        world = World(seed)
        kinds |= {source.kind for source in world.sources}
        plots |= {liar.plot for liar in world.liars.values()}
        seen += (world.converge() if seed < 20 else world).seen
    assert kinds == set(KINDS)
    assert plots >= set(PLOTS) - {"mixed"}
    assert {"eclipsed", "cosigned on both sides", "a quorum"} <= set(seen)
    assert {"pending", "disputed", "attested", "reproduced", "refuted", "own-mismatch", "fork", "double-vote"} <= set(
        seen
    )


# Owners rotate, writers are robbed, roots contradict themselves, persons decide: all agree who may write.

NODES = 3
Make: TypeAlias = Callable[..., Realm]


@pytest.fixture
def realm(tmp_path: Path) -> Iterator[Make]:
    """Realms are of different datasets, so that nodes are the same for all."""
    with ExitStack() as open_ones:
        databases = [
            open_ones.enter_context(closing(open_database(tmp_path / f"{number}.sqlite"))) for number in range(NODES)
        ]
        yield partial(Realm, peers=[Peer(f"n{number}", each, tmp_path) for number, each in enumerate(databases)])


@pytest.mark.slow
@pytest.mark.parametrize("disputed", [False, True])
def test_who_may_write_is_agreed(realm: Make, disputed: bool) -> None:
    hold(share(20, 1 / 10), partial(realm, disputed=disputed))


@pytest.mark.slow
def test_nodes_that_prune_know_what_others_know(realm: Make) -> None:
    hold(share(20, 1 / 10)[:5], partial(realm, disputed=True, pruning=True))


def of_heads_all(_page: Any, row: Any) -> bool:
    return bool(row.type == HEAD)


def forgetful(head: Any, signed: Any, newest: Any, context: Any) -> Admitted | None:
    found = RIGHTS_DOUBTED(head, signed, newest, context)
    old = found is not None and found.outcome in (AdmissionOutcome.OLD_EPOCH, AdmissionOutcome.OLDER)
    return None if old else found


def blind(*given: Any) -> Any:
    verdict, rights = admit_authority(*given)
    return (Admitted(AdmissionOutcome.OLDER) if verdict.outcome is AdmissionOutcome.FORK else verdict), rights


def anybody(_head: Any, signed: Any, _rights: Any) -> Any:
    return min(signed.signers, default=None)


def strict(_head: Any, mistake: Any) -> Admitted:
    return Admitted(AdmissionOutcome.REJECTED, mistake)


RIGHTS_DOUBTED = rules._rights_doubted
DISPUTED = {"disputed": True}
BROKEN: dict[str, tuple[tuple[ModuleType | type, ...], str, Callable[..., Any], dict[str, bool], str]] = {
    "the last word of a signer goes": ((retention._Page,), "_may_go", of_heads_all, {"pruning": True}, "S5"),
    "heads of closed epochs count": ((rules,), "_rights_doubted", forgetful, {}, "W S7"),
    "heads stay when their epoch closes": ((Ledger,), "close_epochs", lambda *_: None, {}, "W S7"),
    "contradictions of a root pass": ((statement_processor,), "admit_authority", blind, DISPUTED, "A"),
    "heads are followed in dispute": ((statement_processor,), "is_disputed", lambda *_: False, DISPUTED, "A"),
    "anybody's signature will do": ((rules, statement_processor), "writer_of", anybody, {}, "W S7"),
    "who knows another form of a version is blamed": ((rules,), "_not_of_my_version", strict, DISPUTED, "J"),
}
"""Where what is changed, of what it is replaced by, the plan in which it is noticed, and the promises that break."""


@pytest.mark.nightly
@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_noticed(realm: Make, monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    places, name, broken, plan, promises = BROKEN[rule]
    for where in places:
        monkeypatch.setattr(where, name, broken)
    with pytest.raises(Broken) as found:
        hold(range(60), partial(realm, **plan))
    assert found.value.promise in promises.split()


# The simulator can fail: each rule taken away in turn is noticed, and by the promise that rests on it.

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


def blind_to_forks(*given: Any) -> Admitted:
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
    "forks are overlooked": ("L", FORKING, put(rules, "_against_mine", blind_to_forks)),
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
    (seed,) = (int(note.partition("=")[2]) for note in found.value.__notes__ if note.startswith("ODF_SIM_SEED"))
    hold([seed], world)


def test_the_table_has_no_other_rows() -> None:
    with pytest.raises(IndexError):
        without_row(ROWS + 1)
