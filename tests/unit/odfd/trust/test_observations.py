"""Observations of root data: what is kept of them, and how far they let one rely."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain import instant
from chain.errors import Invalid
from chain.instant import Instant
from chain.model.block import Block
from chain.model.events import AddData, DatasetKind, DataSlice, OffsetInterval, Seed, SetInfo
from chain.multihash import Multihash
from chain.statements import canonical, envelope, statement
from chain.statements.authority import Rights, follow, implicit
from chain.statements.envelope import Signed
from chain.statements.keys import SigningKey
from chain.statements.statement import (
    ATTESTATION,
    Attestation,
    Authority,
    Epoch,
    HeadStatement,
    Observation,
    Response,
    Roots,
    Span,
    TreeHead,
    Writer,
)
from chain.store.base import Head
from chain.store.database import Database, open_database
from odfd.policy.policy import KeyGroup, Policy, load_policy, parse_expression
from odfd.store.ledger import observations
from odfd.store.ledger.log import STEPS
from odfd.store.ledger.observations import Observations, Sighting
from odfd.trust.admission.rules import (
    EARLY_LIMIT,
    AdmissionContext,
    AdmissionOutcome,
    admit_attestation,
    admit_authority,
    admit_head,
    admit_word,
    turn_to,
)
from odfd.trust.judgement.observation_reach import WINDOW, ObservationReach, behind, electorate
from odfd.trust.judgement.verdicts import ChainExtent, DatasetStatus, Decision, ReachAssessment, ReachBound, reach
from worlds.chains import following
from worlds.statements import attestation_statement, head_statement

# Observations of root data: what they must be, what is kept of them, whose count, and how far they let one rely.

OWNER = SigningKey(b"d" * 32)
KEYS = [SigningKey(bytes([number]) * 32) for number in range(1, 6)]
NOW = instant.parse("2026-11-20T08:00:00Z")
BLOCK, OTHER = Multihash.sha3_256(b"block"), Multihash.sha3_256(b"other")
BODY = Response(sha256="00" * 32, size=3)
RESULTS = ("same-bytes", "same-rows", "differs", "unreachable")


def said(key: SigningKey = KEYS[0], result: Any = "same-rows", seconds: int = 0, **more: Any) -> Observation:
    made = Observation(
        observer=key.did,
        dataset=OWNER.dataset_id,
        epoch=0,
        sequence_number=4,
        result=result,
        response=None if result == "unreachable" else BODY,
        at=statement.when(Instant(NOW + seconds * instant.SECOND)),
        head=BLOCK,
    )
    return msgspec.structs.replace(made, **more)


def signed(made: Observation, key: SigningKey | None = None) -> Signed:
    key = key or next(each for each in KEYS if each.did == made.observer)
    return envelope.unseal(envelope.seal(statement.encode(made), key), made.MAX_ENVELOPE)


@pytest.mark.parametrize("result", RESULTS)
def test_what_is_written_is_read(result: str) -> None:
    made = said(result=result)
    assert statement.decode_any(statement.encode(made)) == made
    with pytest.raises(Invalid, match="neither a head nor an attestation"):
        statement.decode(statement.encode(made))


BAD = {
    "result": "fine",
    "at": "2026-11-20T08:00:00.5Z",
    "sequenceNumber": -1,
    "observer": "did:key:z6Mk",
    "epoch": True,
    "response": {"sha256": "00", "size": 1},
}


@pytest.mark.parametrize("field", [*BAD, "dataset"])
def test_each_field_wrong_in_turn(field: str) -> None:
    frame: Any = canonical.decode(statement.encode(said()))
    frame["predicate"][field] = BAD.get(field, str(KEYS[1].dataset_id))
    with pytest.raises(Invalid):
        statement.decode_any(canonical.encode(frame))
    del frame["predicate"][field]
    if field != "response":
        with pytest.raises(Invalid):
            statement.decode_any(canonical.encode(frame))


@pytest.mark.parametrize(("result", "response"), [("unreachable", BODY), ("differs", None)])
def test_a_response_is_there_unless_there_was_none(result: str, response: Response | None) -> None:
    with pytest.raises(Invalid, match="unless the source gave none"):
        statement.decode_any(statement.encode(said(result=result, response=response)))


def test_admission() -> None:
    made = said()
    assert admit_word(made, signed(made), NOW, is_news=True).outcome is AdmissionOutcome.NEW
    assert admit_word(made, signed(made), NOW, is_news=False).outcome is AdmissionOutcome.OLDER
    stolen = signed(made, KEYS[1])
    assert admit_word(made, stolen, NOW, is_news=True).outcome is AdmissionOutcome.REJECTED
    ahead = said(seconds=601)
    assert admit_word(ahead, signed(ahead), NOW, is_news=True).outcome is AdmissionOutcome.EARLY


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(open_database(tmp_path / "odfd.sqlite")) as made:
        made.migrate("trust", STEPS)
        yield made


def kept(database: Database, heard: list[Observation]) -> list[Sighting]:
    with database.write() as connection:
        connection.execute("DELETE FROM trust_observed")
        store = Observations(connection)
        for made in heard:
            if store.is_news(made, signed(made).sid):
                store.keep(made, signed(made), "new", "", NOW)
        return store.at(OWNER.dataset_id, 4)


@pytest.mark.slow
def test_order_and_repetition_change_nothing(database: Database) -> None:
    heard = [said(result="differs"), said(), said(seconds=5, result="unreachable"), said(KEYS[1]), said(head=OTHER)]
    first = kept(database, heard)
    assert sorted((each.observer == KEYS[0].did, each.result) for each in first) == [
        (False, "same-rows"),
        (True, "same-rows"),
        (True, "unreachable"),
    ]
    for order in itertools.permutations(heard):
        assert kept(database, [*order, order[0]]) == first


def test_room_is_bounded(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-VERDICT-04: observations without end.

    Defence: limits of observers of a dataset, and of blocks of each observer.
    """
    monkeypatch.setattr(observations, "MAX_UNLISTED_BLOCKS", 2)
    with database.write() as connection:
        store = Observations(connection)
        for number in range(2):
            made = said(head=Multihash.sha3_256(bytes([number])), sequence_number=number)
            assert store.has_room(made, listed=False, most=2)
            store.keep(made, signed(made), "new", "", NOW)
        more = said(head=OTHER)
        assert not store.has_room(more, listed=False, most=2)
        assert store.has_room(more, listed=True, most=2)
        assert store.has_room(made, listed=False, most=2), "the same block again"
        assert store.has_room(said(KEYS[1]), listed=False, most=2)
        assert not store.has_room(said(KEYS[1]), listed=False, most=1)
        assert store.observers(OWNER.dataset_id, 9) == [KEYS[0].did]


POLICY = Policy(
    groups=(KeyGroup("one", frozenset({KEYS[0].did, KEYS[1].did})), KeyGroup("two", frozenset({KEYS[2].did}))),
    tolerated=0,
)


def seen(key: SigningKey, result: str = "same-rows", block: Multihash = BLOCK, late: int = 0) -> Sighting:
    return Sighting(observer=key.did, block=block, sequence_number=4, at=Instant(NOW + late), result=result)


@pytest.mark.parametrize(
    ("heard", "count"),
    [
        ([seen(KEYS[0])], 1),
        ([seen(KEYS[0]), seen(KEYS[1], "same-bytes")], 1),
        ([seen(KEYS[0]), seen(KEYS[1], "differs")], 0),
        ([seen(KEYS[0]), seen(KEYS[1], "unreachable")], 1),
        ([seen(KEYS[0]), seen(KEYS[2], "same-bytes")], 2),
        ([seen(KEYS[0]), seen(KEYS[2], "differs")], 1),
        ([seen(KEYS[3])], 0),
        ([seen(KEYS[4])], 1),
        ([seen(KEYS[4]), seen(KEYS[0])], 2),
        ([seen(KEYS[0], block=OTHER)], 0),
        ([seen(KEYS[0], late=WINDOW)], 1),
        ([seen(KEYS[0], late=WINDOW + instant.SECOND)], 0),
        ([seen(KEYS[0], late=-3600 * instant.SECOND)], 0),
    ],
)
def test_whose_word_counts(heard: list[Sighting], count: int) -> None:
    """Listed groups, one vote each, and me (the fifth key), on this very block, within a day of it."""
    who = electorate(POLICY, KEYS[4].did, lambda _: False, ())
    assert behind(who, heard, BLOCK, NOW) == count


def test_who_is_near_or_suspended_does_not_count() -> None:
    heard = [seen(KEYS[0]), seen(KEYS[2])]
    near = electorate(POLICY, KEYS[4].did, lambda key: key == KEYS[0].did, ())
    out = electorate(POLICY, KEYS[4].did, lambda _: False, ("two",))
    assert (behind(near, heard, BLOCK, NOW), behind(out, heard, BLOCK, NOW)) == (1, 1)
    mine = electorate(POLICY, KEYS[0].did, lambda _: False, ())
    assert behind(mine, [seen(KEYS[0]), seen(KEYS[1])], BLOCK, NOW) == 1, "I am of that group: one vote"
    assert behind(mine, [seen(KEYS[0]), seen(KEYS[1], "differs")], BLOCK, NOW) == 1, "my own eyes"


@pytest.mark.parametrize(
    ("text", "observed", "found"),
    [
        ("data & observed:2", {2: 5}, ReachAssessment(5, ReachBound("observed", 5))),
        ("data & observed:2", {2: 9}, ReachAssessment(9, ReachBound("head"))),
        ("data & (observed:2 | fresh)", {2: 5}, ReachAssessment(9, ReachBound("head"))),
        ("observed:1 & observed:2", {1: 7, 2: 3}, ReachAssessment(3, ReachBound("observed", 3))),
        ("data & observed:2", None, ReachAssessment(9, ReachBound("head"))),
    ],
)
def test_reach_ends_where_too_few_observed(text: str, observed: dict[int, int] | None, found: ReachAssessment) -> None:
    extent = ChainExtent(linked=9, chain=9, data=9, observed=observed)
    assert reach(parse_expression(text), extent, (), lambda _: Decision(DatasetStatus.PENDING)) == found


@given(st.dictionaries(st.integers(1, 3), st.integers(1, 9)), st.integers(1, 3), st.integers(1, 9))
def test_more_observations_never_lower_reach(observed: dict[int, int], count: int, size: int) -> None:
    asked = parse_expression(f"chain & observed:{count}")

    def found(extents: dict[int, int]) -> int:
        extent = ChainExtent(linked=9, chain=9, data=9, observed=extents)
        return reach(asked, extent, (), lambda _: Decision(DatasetStatus.PENDING)).blocks

    more = observed | {count: max(size, observed.get(count, 0))}
    assert found(more) >= found(observed)


def test_a_policy_asks_for_as_many_as_there_can_be() -> None:
    groups = [(str(number), [str(key.did)]) for number, key in enumerate(KEYS[:3])]
    assert load_policy(use="observed:2", serve="data", groups=groups, tolerated=1).tolerated == 1
    for count in (1, 3):
        with pytest.raises(Invalid, match="must lie in 2…2"):
            load_policy(use=f"observed:{count}", serve="data", groups=groups, tolerated=1)


def test_the_two_kinds_share_no_type() -> None:
    assert said().KIND not in (ATTESTATION, statement.HEAD)


# How far a root is observed does not depend on when that was asked: what is remembered is what would be found anew.

OBSERVERS = [SigningKey(bytes([number]) * 32) for number in (1, 2, 3)]
BLOCKS = 8
REACH_POLICY = Policy(
    groups=tuple(KeyGroup(f"g{number}", frozenset({key.did})) for number, key in enumerate(OBSERVERS))
)
WHO = electorate(REACH_POLICY, SigningKey(b"m" * 32).did, lambda _: False, ())


class Chain:
    """The first blocks of one of two histories."""

    def __init__(self, blocks: list[Block]) -> None:
        self.blocks = blocks

    def head(self) -> Head | None:
        return Head(self.blocks[-1].hash, len(self.blocks) - 1) if self.blocks else None

    def block_at(self, number: int) -> Block:
        return self.blocks[number]

    def last_of(self, kinds: Any, before: int | None = None) -> Block | None:
        return next((block for block in reversed(self.blocks[:before]) if type(block.event).__name__ in kinds), None)


@cache
def history(mark: str) -> list[Block]:
    """Seed, two blocks of data, an event of another kind, and so on; ``mark`` makes another one from block 4 on."""
    name = Multihash.sha3_256(b"slice")
    blocks: list[Block] = []
    for number in range(BLOCKS):
        data = AddData(
            new_data=DataSlice(
                logical_hash=name,
                physical_hash=name,
                offset_interval=OffsetInterval(start=number, end=number),
                size=1,
            )
        )
        other = SetInfo(description=f"note {number} {mark if number >= 4 else ''}")
        event = Seed(dataset_id=OWNER.dataset_id, dataset_kind=DatasetKind.ROOT) if number == 0 else data
        said = other if number and number % 3 == 1 else event
        blocks.append(following(blocks[-1] if blocks else None, said, NOW))
    return blocks


@cache
def said_at(who: int, mark: str, number: int, result: Any, minute: int) -> tuple[Observation, envelope.Signed]:
    made = Observation(
        observer=OBSERVERS[who].did,
        dataset=OWNER.dataset_id,
        epoch=0,
        sequence_number=number,
        result=result,
        response=Response(sha256="00" * 32, size=1),
        at=statement.when(Instant(NOW + minute * 60 * instant.SECOND)),
        head=history(mark)[number].hash,
    )
    return made, envelope.unseal(envelope.seal(statement.encode(made), OBSERVERS[who]), made.MAX_ENVELOPE)


HEARD = st.tuples(
    st.sampled_from([0, 1, 2]),
    st.sampled_from(["", "other"]),
    st.integers(1, BLOCKS - 1),
    st.sampled_from(["same-rows", "same-rows", "same-bytes", "differs"]),
    st.integers(0, 3),
)
ASKED = st.tuples(st.sampled_from(["", "other"]), st.integers(0, BLOCKS), st.integers(1, 3))


@pytest.mark.slow
@settings(max_examples=30)
@given(st.lists(HEARD | ASKED, max_size=30))
def test_what_is_remembered_is_what_would_be_found_anew(deeds: list[Any]) -> None:
    """Statements and histories come in any order, and between them it is asked; a chain may shrink and turn."""
    with TemporaryDirectory() as folder, closing(open_database(Path(folder) / "odfd.sqlite")) as database:
        database.migrate("trust", STEPS)
        remembers = ObservationReach()
        with database.write() as connection:
            for deed in deeds:
                if len(deed) == 5:
                    hear(connection, *said_at(*deed))
                    continue
                mark, size, count = deed
                chain: Any = Chain(history(mark)[:size])
                found = remembers.reach(connection, chain, OWNER.dataset_id, count, WHO)
                assert found == ObservationReach().reach(connection, chain, OWNER.dataset_id, count, WHO)


def hear(connection: sqlite3.Connection, made: Observation, signed: envelope.Signed) -> None:
    kept = Observations(connection)
    if kept.is_news(made, signed.sid):
        kept.keep(made, signed, "new", "", NOW)


def test_it_ends_at_the_first_block_of_data_that_too_few_observed(tmp_path: Path) -> None:
    with closing(open_database(tmp_path / "odfd.sqlite")) as database:
        database.migrate("trust", STEPS)
        chain: Any = Chain(history(""))
        ask = ObservationReach().reach
        with database.write() as connection:
            assert ask(connection, chain, OWNER.dataset_id, 1, WHO) == 2
            for number in (2, 3, 5, 6):
                hear(connection, *said_at(0, "", number, "same-rows", 0))
            assert ask(connection, chain, OWNER.dataset_id, 1, WHO) == BLOCKS
            assert ask(connection, chain, OWNER.dataset_id, 2, WHO) == 2
            hear(connection, *said_at(0, "", 3, "differs", 1))
            assert ask(connection, chain, OWNER.dataset_id, 1, WHO) == 3


# Admission by the authority's walk: who may write, which epoch holds, what becomes of blocks that are here.


PUBLISHER, NODE, NEW, STRANGER = (SigningKey(letter * 32) for letter in (b"d", b"n", b"m", b"s"))
SEED = Multihash.sha3_256(b"seed")
DAY = 86400 * instant.SECOND
ROOT = b"r" * 32


def sign_by(said: statement.AnyPredicate, *keys: SigningKey) -> Signed:
    return envelope.unseal(envelope.seal(statement.encode(said), *keys), statement.MAX_ANY)


def tree(size: int, root: bytes = ROOT) -> TreeHead:
    return TreeHead(size=size, root_hash=root)


def version(before: Rights, writers: list[SigningKey], *epochs: Epoch, at: Instant = NOW) -> Authority:
    return Authority(
        dataset=PUBLISHER.dataset_id,
        version=before.version + 1,
        previous=before.sid,
        issued_at=statement.when(at),
        roots=Roots(threshold=1, keys=(PUBLISHER.did,)),
        writers=tuple(Writer(key=key.did, expires_at=statement.when(Instant(NOW + 90 * DAY))) for key in writers),
        epochs=(*before.epochs, *epochs),
        head=SEED,
    )


def opened(number: int, base: int, last: int | None = None, root: bytes = ROOT) -> Epoch:
    reason = "rotation" if last in (None, base) else "reset"
    return Epoch(number=number, reason=reason, base=tree(base, root), last=tree(last or base, root))


def grown(before: Rights, writers: list[SigningKey], *epochs: Epoch) -> Rights:
    said = version(before, writers, *epochs)
    return follow(before, said, sign_by(said, PUBLISHER))


ZERO = implicit(PUBLISHER.dataset_id)
ONE = grown(ZERO, [PUBLISHER, NODE])
TWO = grown(ONE, [NEW], opened(1, 8))
"""The node's key was stolen: it is out, and epoch 1 begins at 8 blocks."""
RESET = grown(TWO, [NEW], opened(2, 5, 12))


def head(size: int, epoch: int = 0, authority: int = 0, root: bytes = ROOT, at: Instant = NOW) -> HeadStatement:
    return head_statement(PUBLISHER.dataset_id, size, root, at=at, epoch=epoch, authority=authority, head=SEED)


def admitted(
    said: HeadStatement, by: SigningKey, newest: HeadStatement | None = None, **context: Any
) -> AdmissionOutcome:
    mine = context.pop("mine", {})
    walk = context.pop("walk", (ZERO, ONE, TWO))
    now = context.pop("now", NOW)
    terms = AdmissionContext(walk, **context)
    return admit_head(said, sign_by(said, by), newest, mine.get, now, context=terms).outcome


@pytest.mark.parametrize(
    ("said", "by", "outcome"),
    [
        (head(9, epoch=1, authority=2), NEW, AdmissionOutcome.ADVANCE),
        (head(9, epoch=1, authority=2), STRANGER, AdmissionOutcome.UNKNOWN_AUTHORITY),
        (head(9, epoch=1, authority=2), NODE, AdmissionOutcome.UNKNOWN_AUTHORITY),
        (head(9, epoch=0, authority=1), NODE, AdmissionOutcome.OLD_EPOCH),
        (head(10**9, epoch=0, authority=1), NODE, AdmissionOutcome.OLD_EPOCH),
        (head(9, epoch=0, authority=0), NODE, AdmissionOutcome.REJECTED),
        (head(9, epoch=1, authority=0), PUBLISHER, AdmissionOutcome.REJECTED),
        (head(9, epoch=0, authority=0), PUBLISHER, AdmissionOutcome.OLD_EPOCH),
        (head(9, epoch=1, authority=1), NODE, AdmissionOutcome.UNKNOWN_AUTHORITY),
        (head(9, epoch=2, authority=2), NEW, AdmissionOutcome.UNKNOWN_AUTHORITY),
        (head(9, epoch=2, authority=3), NEW, AdmissionOutcome.UNKNOWN_AUTHORITY),
        (head(7, epoch=1, authority=2), NEW, AdmissionOutcome.UNKNOWN_AUTHORITY),
        (head(8, epoch=1, authority=2), NEW, AdmissionOutcome.ADVANCE),
        (head(8, epoch=1, authority=2, root=b"x" * 32), NEW, AdmissionOutcome.UNKNOWN_AUTHORITY),
    ],
)
def test_who_may_write_and_in_which_epoch(said: HeadStatement, by: SigningKey, outcome: AdmissionOutcome) -> None:
    assert admitted(said, by) is outcome


def test_an_epoch_before_that_of_the_newest_head_is_over() -> None:
    """Also where the version that opened the later one is not known again yet."""
    newest = head(8, epoch=1, authority=2)
    assert admitted(head(9), PUBLISHER, newest, walk=(ZERO, ONE)) is AdmissionOutcome.OLD_EPOCH


def test_a_writer_added_since_may_name_the_version_it_knew() -> None:
    assert admitted(head(9), PUBLISHER, walk=(ZERO, ONE)) is AdmissionOutcome.ADVANCE
    assert admitted(head(9), NODE, walk=(ZERO, ONE)) is AdmissionOutcome.ADVANCE


def test_a_right_that_has_ended_writes_no_more() -> None:
    late = Instant(NOW + 90 * DAY)
    said = head(9, authority=1, at=late)
    verdict = admit_head(said, sign_by(said, NODE), None, {}.get, late, context=AdmissionContext((ZERO, ONE)))
    assert verdict.outcome is AdmissionOutcome.UNKNOWN_AUTHORITY


def test_a_right_that_a_later_version_shortens_ends_then() -> None:
    """Whatever the version says that the head names; who signed in good faith is not blamed."""
    said = version(ONE, [PUBLISHER, NODE])
    until = statement.when(Instant(NOW + DAY))
    said = msgspec.structs.replace(said, writers=tuple(Writer(key=each.key, expires_at=until) for each in said.writers))
    walk = (ZERO, ONE, follow(ONE, said, sign_by(said, PUBLISHER)))
    for at, outcome in ((NOW, AdmissionOutcome.ADVANCE), (Instant(NOW + DAY), AdmissionOutcome.OLDER)):
        assert admitted(head(9, authority=1, at=at), NODE, walk=walk, now=at) is outcome


def test_who_knows_another_form_of_a_version_is_not_blamed() -> None:
    """Roots signed two; whoever knows one of them hears the heads of the other from honest relays."""
    other = grown(ONE, [STRANGER], opened(1, 5, 12))
    for said, by, walk in (
        (head(13, epoch=1, authority=2), STRANGER, (ZERO, ONE, TWO)),
        (head(9, epoch=1, authority=2), NEW, (ZERO, ONE, other)),
    ):
        assert admitted(said, by, walk=walk) is AdmissionOutcome.UNKNOWN_AUTHORITY
        assert admitted(said, by, walk=(ZERO, ONE, other if walk[-1] is TWO else TWO)) is AdmissionOutcome.ADVANCE


def test_a_disputed_authority_stops_its_heads() -> None:
    assert admitted(head(9, epoch=1, authority=2), NEW, conflict=True) is AdmissionOutcome.OLDER


def test_fast_forward_is_undone_by_an_epoch() -> None:
    """The thief's head of a billion blocks is the newest known: the first head of the next epoch comes after it."""
    thief = head(10**9, authority=1)
    assert admitted(head(9, epoch=1, authority=2), NEW, thief) is AdmissionOutcome.ADVANCE
    assert admitted(thief, NODE, head(9, epoch=1, authority=2)) is AdmissionOutcome.OLD_EPOCH


@pytest.mark.parametrize(
    ("size", "root", "outcome"),
    [
        (3, ROOT, AdmissionOutcome.ADVANCE),
        (8, ROOT, AdmissionOutcome.ADVANCE),
        (8, b"x" * 32, AdmissionOutcome.REWRITE),
        (11, ROOT, AdmissionOutcome.REWRITE),
    ],
)
def test_blocks_that_an_epoch_gives_up_are_seen(size: int, root: bytes, outcome: AdmissionOutcome) -> None:
    said = head(12, epoch=1, authority=2)
    assert admitted(said, NEW, head(size), size=size, mine={size: root}) is outcome


def test_heads_of_different_epochs_never_form_a_fork() -> None:
    said = head(11, epoch=1, authority=2, root=b"x" * 32)
    assert admitted(said, NEW, head(11), size=11, mine={11: ROOT}) is AdmissionOutcome.REWRITE
    in_epoch = head(11, epoch=1, authority=2)
    assert admitted(said, NEW, in_epoch, size=11, epoch=1, mine={11: ROOT}) is AdmissionOutcome.FORK
    assert admitted(said, NEW, in_epoch) is AdmissionOutcome.FORK


def test_a_turn_tells_what_is_kept_over_several_epochs() -> None:
    walk = (ZERO, ONE, TWO, RESET)
    assert turn_to(1, 0, walk) is not None
    both = turn_to(2, 0, walk)
    assert both is not None
    assert (both.base.size, both.reasons, both.replaces) == (5, ("rotation", "reset"), True)
    rotation = turn_to(1, 0, walk)
    assert rotation is not None
    assert not rotation.replaces
    assert turn_to(3, 0, walk) is None
    assert turn_to(2, 2, walk) is None


def test_authorities_are_admitted_in_order() -> None:
    walk = [ZERO, ONE]
    new = version(ONE, [PUBLISHER, NODE, NEW])
    verdict, rights = admit_authority(new, sign_by(new, PUBLISHER), walk, NOW)
    assert (verdict.outcome, rights.version) == (AdmissionOutcome.NEW, 2)
    after = version(rights, [PUBLISHER, NODE, NEW])
    assert admit_authority(after, sign_by(after, PUBLISHER), walk, NOW)[0].outcome is AdmissionOutcome.UNKNOWN_AUTHORITY
    again = admit_authority(new, sign_by(new, PUBLISHER), [*walk, rights], NOW)
    assert (again[0].outcome, again[1]) == (AdmissionOutcome.OLDER, rights)
    other = version(ONE, [PUBLISHER, NODE])
    disputed = admit_authority(other, sign_by(other, PUBLISHER), [*walk, rights], NOW)
    assert (disputed[0].outcome, disputed[1]) == (AdmissionOutcome.FORK, rights)


def test_an_authority_of_another_chain_is_not_taken() -> None:
    """One key may have signed two Seeds; what is said of one chain is not grafted onto the other."""
    said, other = version(ZERO, [PUBLISHER, NODE]), Multihash.sha3_256(b"another seed").digest
    sealed = sign_by(said, PUBLISHER)
    verdict, rights = admit_authority(said, sealed, [ZERO], NOW, other)
    assert (verdict.outcome, verdict.lasts, rights) == (AdmissionOutcome.OLDER, False, ZERO)
    assert admit_authority(said, sealed, [ZERO], NOW, SEED.digest)[0].outcome is AdmissionOutcome.NEW
    again = version(ZERO, [PUBLISHER, NEW])
    assert (
        admit_authority(again, sign_by(again, PUBLISHER), [ZERO, ONE], NOW, other)[0].outcome is AdmissionOutcome.FORK
    ), "two of one version accuse the roots all the same"


def test_retired_root_cannot_rotate() -> None:
    """Attack T-HEAD-05: a retired dataset key that is found.

    Defence: it is not a root any more and signs no version; an older version by it changes nothing.

    The dataset key, once out of the roots, signs no version, and its old ones change nothing.
    """
    handed = Authority(
        dataset=PUBLISHER.dataset_id, version=2, previous=ONE.sid, issued_at=statement.when(NOW),
        roots=Roots(threshold=1, keys=(NEW.did,)), writers=tuple(
            Writer(key=key.did, expires_at=statement.when(Instant(NOW + DAY))) for key in (PUBLISHER, NODE)
        ), head=SEED,
    )  # fmt: skip
    two = follow(ONE, handed, sign_by(handed, PUBLISHER, NEW))
    third = version(two, [STRANGER, PUBLISHER, NODE])
    assert (
        admit_authority(third, sign_by(third, PUBLISHER), [ZERO, ONE, two], NOW)[0].outcome is AdmissionOutcome.REJECTED
    )
    stolen = version(ONE, [PUBLISHER, NODE, STRANGER])
    verdict, rights = admit_authority(stolen, sign_by(stolen, PUBLISHER), [ZERO, ONE, two], NOW)
    assert (verdict.outcome, rights) == (AdmissionOutcome.FORK, two)


def test_forged_and_early_authorities_are_not_taken() -> None:
    new = version(ONE, [PUBLISHER, NODE, STRANGER])
    assert admit_authority(new, sign_by(new, STRANGER), [ZERO, ONE], NOW)[0].outcome is AdmissionOutcome.REJECTED
    early = version(ONE, [PUBLISHER, NODE], at=Instant(NOW + 3600 * instant.SECOND))
    assert admit_authority(early, sign_by(early, PUBLISHER), [ZERO, ONE], NOW)[0].outcome is AdmissionOutcome.EARLY


def attestation(at: Instant) -> Attestation:
    return attestation_statement(
        NODE.did,
        PUBLISHER.dataset_id,
        3,
        ROOT,
        finished_at=statement.when(at),
        engines=(),
        spans=(Span(first=0, last=2, verdict="not-attempted"),),
        head=SEED,
    )


def test_an_attestation_from_the_future_waits_and_one_without_its_validator_or_with_gaps_is_none() -> None:
    """Else the serial of a clock that was ahead would outrank what the validator says afterwards."""
    for ahead, outcome in ((EARLY_LIMIT, AdmissionOutcome.NEW), (EARLY_LIMIT + instant.SECOND, AdmissionOutcome.EARLY)):
        said = attestation(Instant(NOW + ahead))
        assert admit_attestation(said, sign_by(said, NODE), None, NOW).outcome is outcome
    said = attestation(NOW)
    assert admit_attestation(said, sign_by(said, NEW), None, NOW).outcome is AdmissionOutcome.REJECTED
    for first, last in ((1, 2), (0, 1), (0, 3)):
        gap = msgspec.structs.replace(said, spans=(Span(first=first, last=last, verdict="not-attempted"),))
        assert admit_attestation(gap, sign_by(gap, NODE), None, NOW).outcome is AdmissionOutcome.REJECTED


def test_an_envelope_that_is_larger_than_its_kind_is_refused_whatever_it_says() -> None:
    """The bytes around a statement are a stranger's: they are stored with it, and passed on."""

    def padded(said: Any, by: SigningKey) -> Signed:
        whole = sign_by(said, by)
        return Signed(whole.payload, whole.signers, whole.envelope + bytes(said.MAX_ENVELOPE))

    def outcomes(made: Any) -> list[AdmissionOutcome]:
        said, next_version, judged = head(9), version(ZERO, [PUBLISHER, NODE]), attestation(NOW)
        rules = statement.PolicyStatement(
            network="village",
            version=1,
            issued_at=statement.when(NOW),
            policy=statement.Rules(use="data"),
            key=PUBLISHER.did,
            head=SEED,
        )
        return [
            admit_head(said, made(said, PUBLISHER), None, {}.get, NOW).outcome,
            admit_authority(next_version, made(next_version, PUBLISHER), (ZERO,), NOW)[0].outcome,
            admit_attestation(judged, made(judged, NODE), None, NOW).outcome,
            admit_word(rules, made(rules, PUBLISHER), NOW, is_news=True).outcome,
        ]

    assert AdmissionOutcome.REJECTED not in outcomes(sign_by)
    assert outcomes(padded) == [AdmissionOutcome.REJECTED] * 4
