"""Peers: their cards, their names, and the book of those met before."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st

from chain import instant
from chain.errors import Invalid, NotFound
from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements.card import Card, ChainFacts, PublisherClaims, vouch
from chain.statements.envelope import Signed
from chain.statements.keys import SigningKey
from chain.statements.node_card import (
    MAX_ABOUT,
    MAX_CONTACT,
    MAX_NODE_NAME,
    NODE_CARD_LIFETIME,
    NOTHING_SAID,
    NodeCard,
    NodeClaims,
)
from chain.store.database import Database, open_database
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from config import check
from odfd.mirrors.holders import PROBE_AGAIN_SECONDS
from odfd.network import peer_book_file
from odfd.network.card_index import likeness
from odfd.network.node_names import NodeNames, node_names, peer_named
from odfd.network.peer_cards import PeerCards
from odfd.network.statement_quota import NEW_NODES, StatementQuota
from odfd.network.statement_store import LedgerStatementStore
from odfd.network.unheld_statements import UnheldStatements
from odfd.services.publishing.card_drafts import NODE_CARD_RENEWED, next_node_card
from odfd.store.ledger import log as ledger_room
from odfd.store.ledger.cards import NodeCards
from odfd.trust.admission.statement_kinds import CARD_PACE
from odfd.trust.signing.owner_commit import LIFETIME as HEAD_LIFETIME
from p2p.driver.discovery import ASKED, PASSED_RATE, SAMPLE_OF_LARGE
from p2p.driver.forwarding import AROUND, UNWANTED
from p2p.driver.settings import ReplicationSettings
from p2p.driver.statements import GOSSIP_RATE, WIDE
from p2p.host.pubsub import DEGREE, WINDOW, rpc_pb2
from p2p.identity import peer_of_did, peer_of_seed
from p2p.machines.holder_connections import NEXT
from p2p.peers.book import PeerBook
from p2p.ports import Judgement, PeerId, StatementRef, Topic
from p2p.wire import presence, trust
from p2p.wire.limits import MAX_LISTED
from worlds.statements import NOW, PEER, attestation, head, key

# Cards of nodes: which are refused, which one of several is kept, how many are, and when one is signed anew.

OWNER, OTHER = key(1), key(2)


def made(seconds: int = 0, owner: SigningKey = OWNER, days: int = 90, name: str | None = "Graz") -> NodeCard:
    at = Instant(NOW + seconds * instant.SECOND)
    claims = None if name is None else NodeClaims(name=name)
    return NodeCard(
        node=owner.did,
        issued_at=statement.when(at),
        expires_at=statement.when(Instant(at + days * 86400 * instant.SECOND)),
        claims=claims,
        head=NOTHING_SAID if claims is None else claims.digest,
    )


def sealed(card: NodeCard, owner: SigningKey = OWNER) -> bytes:
    return envelope.seal(statement.encode(card), owner)


def signed(card: NodeCard, owner: SigningKey = OWNER) -> Signed:
    return envelope.unseal(sealed(card, owner), NodeCard.MAX_ENVELOPE)


def read_again(claims: NodeClaims) -> None:
    statement.decode_any(statement.encode(msgspec.structs.replace(made(), claims=claims, head=claims.digest)))


class Node:
    """A statement store as a node with default settings has it; a peer is ``block/name``."""

    def __init__(self, database: Database, folder: Path, most: int = 4096) -> None:
        self.now = NOW
        self.database = database
        self.quota = StatementQuota(is_listed=lambda _: False, share_of=lambda peer: peer.split("/")[0])
        chains = SqliteChains(database, DiskObjects(folder / "objects", database))
        self.board = LedgerStatementStore(database, chains, lambda: self.now, frozenset, room=self.quota)
        self.cards = self.board.peer_cards = PeerCards(self.quota, lambda: self.now, most)

    def hear(self, card: NodeCard, owner: SigningKey = OWNER, sender: str = PEER) -> Judgement:
        return self.board.judge(Topic.HEADS, sealed(card, owner), PeerId(sender))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with closing(open_database(tmp_path / "odfd.sqlite")) as opened:
        opened.migrate(ledger_room.ROOM, ledger_room.STEPS)
        yield Node(opened, tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        *("a\x1b[2Jb", "a\nb", "a\tb", "a\u202eb", "\u2066a", "a\u200bb", "a\ufeff", "a\x00", "\ud800"),
        *(" a", "a ", "a  b", "a\u00a0b", "a\u2003b", "", "a" * (MAX_NODE_NAME + 1)),
        *("12D3KooWEyop", "did:key:z6Mk", "DID:odf:fed01", "z6Mkabc", "odf:abc"),
    ],
)
def test_a_name_that_steers_its_display_or_looks_like_an_id_is_refused(name: str) -> None:
    """Attack T-CARD-03: a name with control characters, direction marks, unseen characters or runs of spaces, to
    imitate another line or column; a name that looks like an id.

    Defence: such a node card is invalid.
    """
    with pytest.raises((Invalid, UnicodeEncodeError)):
        read_again(NodeClaims(name=name))


@pytest.mark.parametrize("field", ["contact", "about"])
def test_so_are_other_texts_of_that_kind(field: str) -> None:
    for text in ("a\u202eb", "a\nb", "a  b", "x" * 257):
        with pytest.raises(Invalid):
            read_again(NodeClaims(name="Graz", **{field: text}))


@pytest.mark.parametrize("name", ["Graz", "Universität Graz", "گراز\u200cها", "👩\u200d🔬 lab", "O'Neill & Co (EU)"])
def test_names_of_many_scripts_are_taken(node: Node, name: str) -> None:
    assert node.hear(made(name=name)) is Judgement.ACCEPT


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"head": NOTHING_SAID}, "statement-subject"),
        ({"claims": None}, "statement-subject"),
        ({"claims": NodeClaims(name="Wien")}, "statement-subject"),
        ({"expires_at": "2036-01-01T00:00:00Z"}, "node-card-lifetime"),
        ({"expires_at": "2016-01-01T00:00:00Z"}, "node-card-lifetime"),
    ],
)
def test_what_does_not_fit_together_is_invalid(wrong: dict[str, Any], rule: str) -> None:
    with pytest.raises(Invalid) as caught:
        statement.decode_any(statement.encode(msgspec.structs.replace(made(), **wrong)))
    assert caught.value.rule == rule


def test_a_card_in_the_name_of_another_node_is_refused(node: Node) -> None:
    """Attack T-CARD-01: a card, or a withdrawal, in the name of another node.

    Defence: only the node's own key signs its card; the peer that passes on another is penalised.
    """
    for forged in (made(), made(9, name=None)):
        assert node.hear(forged, OTHER) is Judgement.REJECT
    assert len(node.cards) == 0
    assert node.hear(made()) is Judgement.ACCEPT
    assert node.hear(made(9, name=None), OTHER) is Judgement.REJECT, "nobody else takes it back"
    assert node.cards.claims() == {OWNER.did: NodeClaims(name="Graz")}


def test_a_card_from_the_future_waits_and_an_expired_one_is_not_kept(node: Node) -> None:
    assert node.hear(made(601)) is Judgement.IGNORE
    node.now = Instant(NOW + 10 * instant.SECOND)
    assert node.hear(made(601)) is Judgement.ACCEPT, "what was too early is judged again"
    node.now = Instant(NOW + 10 * NODE_CARD_LIFETIME)
    assert node.hear(made(700)) is Judgement.IGNORE
    assert node.cards.claims() == {}
    assert node.board.refs() == []


HEARD = [made(), made(name="Wien"), made(5), made(5, name=None), made(9, name="Linz"), made(20, name=None)]


@pytest.mark.slow
@given(order=st.permutations([*HEARD, HEARD[0]]), last=st.integers(1, len(HEARD)))
def test_any_order_and_repetition_leaves_the_newest(order: list[NodeCard], last: int) -> None:
    """Attack T-CARD-01: an old card, after its node changed its name or took it back.

    Defence: the latest is kept, and a withdrawal too.
    """
    quota = StatementQuota()
    first, second = (PeerCards(quota, lambda: Instant(NOW + 30 * instant.SECOND)) for _ in range(2))
    PACE = CARD_PACE.burst
    heard = order[:last]
    assert len(heard) <= PACE
    for card in heard:
        first.judge(card, signed(card), PEER)
    best = max(heard, key=lambda card: (card.issued, signed(card).sid))
    second.judge(best, signed(best), PEER)
    assert first.refs() == second.refs()
    assert first.claims() == second.claims()


def test_a_card_is_found_by_its_key_and_replaced_and_taken_back(node: Node) -> None:
    node.hear(made())
    (ref,) = node.board.refs([made().dataset])
    assert node.board.envelope(ref.sid) == (Topic.HEADS, sealed(made()))
    assert node.board.refs([OTHER.dataset_id]) == []
    assert node.hear(made()) is Judgement.IGNORE
    node.hear(made(5, name=None))
    (gone,) = node.board.refs([made().dataset])
    assert gone.sid != ref.sid, "the withdrawal stays, so that the former card does not return"
    assert node.board.envelope(ref.sid) is None
    assert node.hear(made()) is Judgement.IGNORE
    assert node.cards.claims() == {}


@pytest.mark.slow
def test_cards_of_nodes_without_end_stay_in_memory_and_within_bounds(node: Node) -> None:
    """Attack T-CARD-01: cards of invented nodes, or ever new cards of one node.

    Defence: 100 new nodes an hour of a peer, beside its datasets; 8 cards of a node at once and one in ten minutes; no
    row and no transaction.

    Of invented nodes, by free keys; ever new ones of one node; and neither takes room of datasets.
    """
    before = node.database.writes
    heard = [node.hear(made(owner=key(number)), key(number)) for number in range(1, 200)]
    assert heard.count(Judgement.ACCEPT) == NEW_NODES.burst, "so many new ones of one peer at once"
    again = [node.hear(made(number, name=f"n{number}")) for number in range(1, 60)]
    assert again.count(Judgement.ACCEPT) <= CARD_PACE.burst
    assert node.database.writes == before
    assert isinstance(node.board.unheld, UnheldStatements)
    assert node.board.unheld.size == 0
    assert node.board.judge(Topic.HEADS, head(key(300), 1), PEER) is Judgement.ACCEPT, "datasets have their own"


@pytest.mark.slow
def test_invented_nodes_displace_no_others(node: Node) -> None:
    """Attack T-CARD-01: more invented nodes than there is capacity for, to displace others.

    Defence: the subnet that brought most entries loses its oldest ones.

    Sybils of one block of addresses bring more cards than are kept.
    """
    node.cards = node.board.peer_cards = PeerCards(node.quota, lambda: node.now, most=50)
    for number in range(1, 11):
        assert node.hear(made(owner=key(number)), key(number), f"block{number}/honest") is Judgement.ACCEPT
    for number in range(100, 300):
        node.hear(made(owner=key(number)), key(number), f"sybils/{number % 7}")
    assert len(node.cards) == 50
    assert {key(number).did for number in range(1, 11)} <= node.cards.claims().keys()


def test_expired_cards_make_room_first(node: Node) -> None:
    node.cards = node.board.peer_cards = PeerCards(node.quota, lambda: node.now, most=3)
    node.hear(made(days=1), sender="a/1")
    node.now = Instant(NOW + 2 * 86400 * instant.SECOND)
    for number in (2, 3, 4):
        node.hear(made(2 * 86400, owner=key(number)), key(number), f"b/{number}")
    assert node.cards.claims().keys() == {key(number).did for number in (2, 3, 4)}


def test_nodes_of_one_name_or_of_names_that_look_the_same_are_told_apart_by_id(node: Node) -> None:
    for number, name in enumerate(["Graz", "Gr\u0430z", "GRAZ", "Wien", "!!", "??"], start=1):
        node.hear(made(owner=key(number), name=name), key(number))
    names = node_names(node.cards, lambda: made(owner=key(9), name="graz"))()
    found = [names.of(key(number).did) for number in range(1, 7)]
    assert [each and each.alike for each in found] == [3, 3, 3, 0, 0, 0], "this node's own name counts too"
    assert names.of_peer(peer_of_did(key(4).did)) == found[3]
    assert names.of(key(50).did) is None
    assert NodeNames({}).of_peer("no id") is None


def test_a_nodes_own_card_that_comes_back_is_kept_on_disk(tmp_path: Path) -> None:
    """As after a restored backup."""
    with closing(open_database(tmp_path / "odfd.sqlite")) as opened:
        opened.migrate(ledger_room.ROOM, ledger_room.STEPS)
        quota = StatementQuota(is_mine=lambda each: each == OWNER.did)
        chains = SqliteChains(opened, DiskObjects(tmp_path / "objects", opened))
        board = LedgerStatementStore(opened, chains, lambda: NOW, frozenset, room=quota)
        assert board.judge(Topic.HEADS, sealed(made()), PEER) is Judgement.ACCEPT
        assert board.judge(Topic.HEADS, sealed(made(5, name="Wien")), PEER) is Judgement.ACCEPT
        assert len(board.peer_cards) == 0
        with opened.read() as connection:
            assert NodeCards(connection).of(OWNER.did) == made(5, name="Wien")
        (ref,) = board.refs()
        assert board.envelope(ref.sid) == (Topic.HEADS, sealed(made(5, name="Wien")))
        with opened.write() as connection:
            connection.execute("UPDATE trust_node_cards SET issued = 0")
        with opened.read() as connection:
            assert NodeCards(connection).is_damaged(OWNER.did)
            assert not NodeCards(connection).is_damaged(OTHER.did)


STEPS = st.lists(st.tuples(st.integers(0, 100), st.sampled_from([None, "Graz", "Wien"])), max_size=12)


@given(STEPS)
@example([(0, "Graz"), (0, None), (0, "Graz")])
def test_what_is_signed_follows_what_a_person_wrote(steps: list[tuple[int, str | None]]) -> None:
    """After each step the last card says what is to be told, is valid, and follows the one before it."""
    before: NodeCard | None = None
    now = NOW
    for days, name in steps:
        now = Instant(now + days * 86400 * instant.SECOND)
        claims = None if name is None else NodeClaims(name=name)
        card, again = next_node_card(before, claims, OWNER.did, now)
        if card is not None:
            assert before is None or card.issued > before.issued
            statement.decode_any(statement.encode(card))
            before = card
        shown = before.claims if before is not None and before.expires > now else None
        assert shown == claims
        assert (again is None) == (claims is None)
        assert again is None or now < again <= now + NODE_CARD_RENEWED + len(steps) * instant.SECOND
        assert next_node_card(before, claims, OWNER.did, now).card is None, "once is enough"


def test_settings_and_cards_have_the_same_limits() -> None:
    assert check.MAX_CARD_TEXTS == {"name": MAX_NODE_NAME, "contact": MAX_CONTACT, "about": MAX_ABOUT}


def dataset_card(**claims: Any) -> Card:
    at = statement.when(NOW)
    return Card(
        dataset=key(7).dataset_id, author=key(7).did, authority=0, epoch=0, size=1, issued_at=at,
        expires_at=statement.when(Instant(NOW + 86400 * instant.SECOND)),
        chain=ChainFacts(kind="root", records=1, created_at=at, updated_at=at),
        claims=PublisherClaims(name="air", **claims), head=NOTHING_SAID,
    )  # fmt: skip


@pytest.mark.parametrize(
    "claims",
    [
        {"node": OWNER.did},
        {"node_signature": vouch(OWNER, key(7).dataset_id, key(7).did)},
        {"node": OTHER.did, "node_signature": vouch(OWNER, key(7).dataset_id, key(7).did)},
        {"node": OWNER.did, "node_signature": vouch(OWNER, key(8).dataset_id, key(7).did)},
        {"node": OWNER.did, "node_signature": vouch(OWNER, key(7).dataset_id, key(8).did)},
        {"node": OWNER.did, "node_signature": "00" * 64},
    ],
)
def test_a_dataset_that_names_anothers_node_as_its_publisher_is_refused(claims: dict[str, Any]) -> None:
    """Attack T-CARD-01: a dataset that names another's node as its publisher.

    Defence: the node must have signed that, for this dataset and this writer; a card without that is invalid.
    """
    with pytest.raises(Invalid):
        statement.decode_any(statement.encode(dataset_card(**claims)))
    good = dataset_card(node=OWNER.did, node_signature=vouch(OWNER, key(7).dataset_id, key(7).did))
    assert statement.decode_any(statement.encode(good)) == good


# What people write for a peer.


def test_a_peer_is_named_by_its_id() -> None:
    peer = peer_of_seed(bytes(32))
    assert peer_named([], peer) == peer


def test_an_address_is_no_name_and_leads_to_one() -> None:
    with pytest.raises(Invalid, match="is an address") as refused:
        peer_named([], f"/ip4/127.0.0.1/tcp/4001/p2p/{peer_of_seed(bytes(32))}")
    assert refused.value.hint is not None
    assert "odfctl peer connect" in refused.value.hint


def test_a_beginning_that_nobody_has_is_not_found() -> None:
    with pytest.raises(NotFound, match="no peer"):
        peer_named([], "12D3KooW")


# Peers met before are met again; a damaged file costs a line in the log and nothing else.

MET = PeerId("12D3KooWpeer")
ADDRESS = "/ip4/203.0.113.7/tcp/4150/p2p/12D3KooWpeer"


class Lines:
    def __init__(self) -> None:
        self.said: list[str] = []

    def info(self, event: str, **fields: Any) -> None:
        self.said.append(event)

    error = warning = info


def met() -> PeerBook:
    book = PeerBook(Random(0))
    book.learn(MET, [ADDRESS])
    book.note_connected(MET, 5)
    book.note_disconnected(MET, 7)
    return book


async def test_who_was_met_is_met_again(tmp_path: Path, autojump_clock: Any) -> None:
    path, lines = tmp_path / "demo.json", Lines()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer_book_file.keep_saved, met(), path, lines)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    again = PeerBook(Random(0))
    peer_book_file.recall(again, path, 0.0, lines)
    assert [entry.peer for entry in again.acquaintances(0.0)] == [MET]
    assert again.get(MET).addresses == (ADDRESS,)
    assert not lines.said
    assert [each.name for each in tmp_path.iterdir()] == ["demo.json"]  # noqa: ASYNC240


async def test_a_new_peer_is_saved_soon_and_a_crash_does_not_forget_it(
    tmp_path: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(work: Any, *args: Any) -> Any:
        return work(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)  # virtual time does not wait for threads
    path, book, again = tmp_path / "demo.json", PeerBook(Random(0)), PeerBook(Random(0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer_book_file.keep_saved, book, path, Lines())
        await trio.sleep(3.5 * peer_book_file.FOUND_SECONDS)
        book.note_connected(MET, 5)
        book.learn(MET, [ADDRESS])
        await trio.sleep(peer_book_file.FOUND_SECONDS)
        peer_book_file.recall(again, path, 0.0, Lines())  # while the other still runs
        nursery.cancel_scope.cancel()
    assert again.get(MET).addresses == (ADDRESS,)


@pytest.mark.parametrize("content", [b"", b"{", b'[{"peer":5}]', b"\xff" * 9, b" " * (peer_book_file.MAX_FILE + 1)])
def test_a_damaged_book_is_told_of(tmp_path: Path, content: bytes) -> None:
    """Attack T-DISK-01: a damaged peer book.

    Defence: it is reported and discarded.
    """
    path, lines = tmp_path / "demo.json", Lines()
    path.write_bytes(content)
    book = PeerBook(Random(0))
    peer_book_file.recall(book, path, 0.0, lines)
    assert len(book) == 0
    assert lines.said == ["the peers met before are forgotten"]


async def test_a_full_disk_is_told_of_once_a_try(tmp_path: Path, autojump_clock: Any) -> None:
    lines = Lines()
    with trio.move_on_after(peer_book_file.SAVE_SECONDS * 1.5):
        await peer_book_file.keep_saved(met(), tmp_path / "absent" / "demo.json", lines)
    assert lines.said == ["the peers we know cannot be saved"] * 2


# Names that readers take for one another fold into one; other names do not.


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("paypal", "\u0440\u0430\u0443\u0440\u0430l"),  # Cyrillic
        ("paypal", "paypaI"),
        ("PAYPAL", "paypal"),
        ("OPEN", "0pen"),
        ("nyc.flights", "nyc-f1ights"),
        ("model", "rnodel"),
        ("cafe", "café"),
        ("data", "\uff44\uff41\uff54\uff41"),  # fullwidth
        ("data", "\U0001d41d\U0001d41a\U0001d42d\U0001d41a"),  # mathematical bold
    ],
)
def test_confusable_names_are_one(one: str, other: str) -> None:
    """Attack T-CARD-02: a name that looks like another's by letters of another script or by digits.

    Defence: characters that Unicode calls confusable (UTS 39) count as equal.
    """
    assert likeness(one) == likeness(other)


@pytest.mark.parametrize(("one", "other"), [("sales-2023", "sales-2024"), ("dust", "dusk"), ("weather", "whether")])
def test_names_that_differ_stay_apart(one: str, other: str) -> None:
    assert likeness(one) != likeness(other)


@given(st.text(max_size=40))
def test_whatever_is_written_folds_without_regard_to_case_and_form(name: str) -> None:
    folded = likeness(name)
    assert likeness(unicodedata.normalize("NFD", name)) == folded
    assert likeness(name.casefold()) == likeness(name.casefold().casefold())
    assert all(each.isalnum() for each in folded)


# The table of docs/explanation/scale.md is computed from the constants of the protocol.


NODES, DATASETS, VALIDATORS = 10_000, 100_000, 2
OWN = DATASETS // NODES
"""Datasets that a node serves or wants."""
LINKS = 16
"""Connections of a node: eight that it dials, and as many that others do."""
DAY = 86_400
LOOKUP = 600.0
"""Bytes a second of the lookup at most, measured by ``tests/sim/lookup/figures.py``; more is a change here."""
TOLD = Path(__file__).parents[4] / "docs" / "explanation" / "scale.md"


class Flow(NamedTuple):
    """What reaches one node: the same leaves it, for what one receives another sends."""

    name: str
    per_second: float
    size: int
    """Bytes of one, as it comes."""
    copies: float = 1.0

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.per_second * self.size * self.copies

    def __str__(self) -> str:
        return f"| {self.name} | {self.per_second:.2f} | {self.size:,} | {self.copies:g} | {self.rate / 1024:.1f} |"


def gossiped(payload: bytes, topic: str) -> int:
    message = rpc_pb2.Message(
        data=payload, from_id=bytes(38), seqno=bytes(8), topicIDs=[f"/odf/1/public/{topic}"], signature=bytes(64)
    )
    return int(rpc_pb2.RPC(publish=[message]).ByteSize())


def a_presence() -> bytes:
    """Of a node at two addresses that serves its share of the datasets."""
    told = presence.Presence(
        key=key(1).public,
        issued=1,
        lifetime=3600,
        addresses=("/ip4/203.0.113.7/tcp/4150", "/ip6/2001:db8::7/tcp/4150"),
        tags=tuple(range(OWN)),
    )
    return presence.seal(told, "public", key(1))


NAME_BYTES = 48
"""Of a message's name, as ``IHAVE`` tells it: author, number and two of protobuf's."""
ASK_BYTES, SIZE_BYTES = 4 + 55, 4 + 25
"""How far does a peer serve a chain, and so far."""


def asked(datasets: int) -> int:
    """Bytes of the question for as many datasets and of the ids that answer it: a head of each, and verdicts."""
    ids = [DatasetId.from_public_key(at.to_bytes(32, "big")) for at in range(datasets)]
    refs = [
        StatementRef(Multihash.sha3_256(b"%d" % at), ids[at % datasets]) for at in range(datasets * (1 + VALIDATORS))
    ]
    refs.sort(key=lambda ref: ref.sid)
    pages = (refs[at : at + MAX_LISTED] for at in range(0, len(refs), MAX_LISTED))
    told = sum(len(trust.encode(trust.page(page, more=page[-1] is not refs[-1]))) for page in pages)
    return len(trust.encode(trust.ListAsk(datasets=tuple(ids)))) + told


def flows() -> Iterator[Flow]:
    said = ReplicationSettings(network="public")
    changes = min(NODES / DAY, PASSED_RATE.within_limit().per_second)
    yield Flow("presences that changed, gossiped", changes, gossiped(a_presence(), "peers"), DEGREE)
    sample = len(presence.encode_answer([a_presence()] * SAMPLE_OF_LARGE))
    yield Flow("presences, exchanged", 2 / said.entropy_interval, sample)
    yield from of_statements()
    rounds = 2 * said.entropy_peers / said.entropy_interval
    yield Flow("anti-entropy over ten datasets of interest", rounds, asked(OWN))
    yield Flow("anti-entropy over all else, at most", 2 * WIDE.per_second, 1)
    question = len(presence.encode_ask(presence.PeersAsk(wanted=16, tags=(1,), own=a_presence())))
    yield Flow("questions who serves what is of interest", OWN / NEXT.most, question, ASKED)
    sizes = LINKS * OWN / PROBE_AGAIN_SECONDS
    yield Flow("questions how far, and their answers", sizes, ASK_BYTES + SIZE_BYTES)


def of_statements() -> Iterator[Flow]:
    """A dataset has a head a day, and each head its verdicts."""
    heads = 1 / min(DAY, HEAD_LIFETIME / 3 / SECOND)
    sealed = (gossiped(head(key(1)), "heads"), gossiped(attestation(key(2), key(1).dataset_id), "attest"))
    for name, each, times in zip(("heads", "verdicts"), sealed, (1, VALIDATORS), strict=True):
        yield Flow(f"{name} that a neighbour signed", OWN * heads * times, each, LINKS)
        # Each neighbour that wants it passes it on, and there are no more of these than neighbours.
        yield Flow(f"{name} of interest", OWN * heads * times, each, LINKS)
    budget = UNWANTED.within_limit()
    yield Flow("heads and verdicts of no interest, at most", budget.per_second, 1, DEGREE)
    told = budget.per_second / min(sealed) + 2 * OWN * heads * (1 + VALIDATORS)
    yield Flow("names of messages", told, NAME_BYTES, DEGREE * WINDOW)


def table() -> list[str]:
    found = list(flows())
    return [*map(str, found), f"| all | | | | {sum(flow.rate for flow in found) / 1024:.1f} |"]


def caps() -> list[str]:
    """The largest networks of which all that is told passes the caps of relays, at what is assumed here."""
    presences = PASSED_RATE.within_limit().per_second * DAY
    statements = UNWANTED.within_limit().per_second / (heads_and_verdicts() / DAY)
    wanted = GOSSIP_RATE.within_limit().per_second / (1 + VALIDATORS) * DAY
    return [
        f"| presences | {presences:,.0f} nodes |",
        f"| heads and verdicts of no interest | {statements:,.0f} datasets |",
        f"| heads and verdicts of interest | {wanted:,.0f} datasets |",
    ]


def heads_and_verdicts() -> int:
    """Bytes that a relay counts for what is said of one dataset in a day."""
    verdict = len(attestation(key(2), key(1).dataset_id)) + AROUND
    return len(head(key(1))) + AROUND + VALIDATORS * verdict


def test_a_large_network_costs_a_node_less_than_two_kibibytes_a_second() -> None:
    assert sum(flow.rate for flow in flows()) + LOOKUP < 2048


@pytest.mark.slow
def test_the_document_says_what_the_constants_say() -> None:
    lines = TOLD.read_text().splitlines()
    for row in [*table(), *caps()]:
        assert row in lines, "\n".join(["docs/explanation/scale.md should say:", *table(), *caps()])
