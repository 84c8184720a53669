"""Every decoder of bytes that a peer, or an IPFS daemon, gives us; with valid messages to begin from.

A ``Target`` is a decoder as the code names it. Its ``open`` gives a function that does with bytes what a node does:
it returns what they mean, or raises one of ``FAULTS``; whatever else it raises a stranger can provoke.
``tests/fuzz/test_decoders.py`` feeds them, ``tests/meta/test_sources.py`` says that none is missing.
"""

from __future__ import annotations

import base64
import io
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import trio

from chain import instant, multibase
from chain.codec import protobuf
from chain.errors import Invalid, Remote
from chain.ids import DatasetId, KeyDid, parse_name
from chain.multihash import Multihash
from chain.statements import answer, canonical, checkpoint, cosignature, envelope, keys, proof, statement, submission
from chain.statements.area import Area
from chain.statements.keys import SigningKey
from odfd.ipfs.delegation import check_delegation
from odfd.ipfs.transport import IpfsTransport
from odfd.ipfs.transport import place_of as ipfs_place_of
from odfd.network import invitation
from odfd.network.statement_store import LedgerStatementStore, subject_of
from odfd.published import packs as site_packs
from odfd.published.signed import check_card, collection_in, head_in
from odfd.published.source import PublishedSource
from odfd.store.directory import open_state_directory
from odfd.trust.evidence.bundle import BundleReader, decode_manifest, unpacked
from p2p.address import parse_address
from p2p.errors import Misbehaviour
from p2p.host.hardening import ParseError, _read_delimited, bound_negotiation  # type: ignore[attr-defined]
from p2p.host.noise import AES, Cipher, Scratch, Unsealer
from p2p.host.pubsub import IOException  # type: ignore[attr-defined]
from p2p.identity import did_of_peer, parse_peer, peer_of_did
from p2p.ip import is_global
from p2p.ipfs import record
from p2p.kubo.rpc import Kubo
from p2p.lookup.records import ProviderRecords
from p2p.machines import reconcile
from p2p.peers.book import PeerBook
from p2p.peers.directory import Directory
from p2p.ports import Judgement, PeerId, PiecesAsk, StatementRef, Topic
from p2p.web.folder_url import place_of
from p2p.web.site import Web
from p2p.wire import chains, circuit, frames, invite, limits, lookup, objects, presence, reach, refusal, swarm, trust
from p2p.wire.frames import DelimitedReader
from p2p.wire.layout import MessageKinds, MessageLayout
from p2p.yamux import frames as yamux_frames
from p2p.yamux.frames import YamuxLimits
from p2p.yamux.session import YamuxSession
from worlds.collection_bytes import KEYS, card_of, written
from worlds.site_bytes import ANSWERS, KUBO_ANSWERS, archives, folder_of, kubo, unpacking, website

GOLDEN = Path(__file__).parents[1] / "golden"
FAULTS = (Invalid, Misbehaviour, Remote)
"""What a decoder may raise; the rule is named in each."""
Decode: TypeAlias = Callable[[bytes], object]

KEY = SigningKey(bytes(range(32)))
OWNER, VALIDATOR = SigningKey(b"o" * 32), SigningKey(b"v" * 32)
DATASET = DatasetId.from_public_key(bytes(range(32)))
SID = Multihash.sha3_256(b"object")
WIRE = {name: bytes.fromhex(text) for name, text in json.loads((GOLDEN / "wire" / "messages.json").read_text()).items()}
NOW = instant.parse("2026-11-20T08:00:00Z")
PROOFS = [(GOLDEN / "trust" / name).read_bytes() for name in ("fork.json", "double-vote.json")]
SEALED = [raw for path in sorted((GOLDEN / "trust").glob("*.json")) if (raw := path.read_bytes()) not in PROOFS]
BUNDLE = (GOLDEN / "trust" / "lie.odfe").read_bytes()
PAYLOADS = [envelope.unseal(raw, statement.MAX_ANY).payload for raw in SEALED]
BLOCK = next((GOLDEN / "kamu").glob("*/blocks/*")).read_bytes()
TREE = checkpoint.TreeCheckpoint(dataset=DATASET, epoch=2, size=912, root_hash=b"r" * 32)
COSIGNED = cosignature.cosign(VALIDATOR, TREE, NOW)
LOG_KEY = submission.log_key(TREE, OWNER.public).encode()
SUBMITTED = submission.Submission(
    old=7, proof=(b"n" * 32, b"m" * 32), tree=TREE, lines=(submission.sign_note(OWNER, TREE), COSIGNED.line)
)
ANSWER = answer.seal(
    answer.AnswerStatement(
        query="select 1", dialect="duckdb", engine="duckdb 1", columns=(answer.AnswerColumn(name="n", type="int32"),),
        pins=(answer.AnswerPin(name="a", id=str(DATASET), block=str(SID), sequence_number=3),), rows=1,
        logical_hash=str(SID), standing="data", time="2026-11-20T08:00:00Z",
    ),
    KEY,
)  # fmt: skip
POINTER = record.Pointer(value="/ipfs/bafkreiem4twkqzsq2aj4shbycd4yvoj2cx72vezi", sequence=3, expires=NOW, ttl=3600)
RECORD = record.seal(POINTER, KEY)
DELEGATION = record.seal(record.Pointer(value="/ipns/k51", sequence=1, expires=NOW, ttl=60), KEY)
IPFS_PLACES = [
    b"ipfs://bafybeigdyrzt5sfp7udm7hu76uh7y26nf3efuylqabf3oclgtqy55fbzdi",
    b"/ipfs/QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWKPbdG",
    b"ipns://k51qzi5uqu5dlmrv00ck5c5vkhe8blzfi58chjpu2u93xfpyqsf33iegtu7bd6/",
    b"/ipns/12D3KooWGC6TvWhfapngX6wvJHMYvKpDMXPb3ZnCZ6dMoaMtimQ5",
]
RELAY, PEER = peer_of_did(OWNER.did), peer_of_did(KEY.did)
VOUCHER = circuit.seal_voucher(OWNER, RELAY, PEER, 1_800_000_000)
RESERVATION = circuit.Reservation(
    expires=1_800_000_000, addresses=(b"\x04\x01\x02\x03\x04\x06\x10\x36",), voucher=VOUCHER
)
HOPS = [
    circuit.HopMessage(
        kind=circuit.HopKind.STATUS, reservation=RESERVATION, limit=circuit.Limit(60, 1 << 40), status=100
    ),
    circuit.HopMessage(kind=circuit.HopKind.CONNECT, peer=PEER, limit=circuit.Limit(60, 1 << 40), status=100),
]
STOPS = [
    circuit.StopMessage(kind=circuit.StopKind.CONNECT, peer=PEER, limit=circuit.Limit(60, 1 << 40)),
    circuit.StopMessage(kind=circuit.StopKind.STATUS, status=203),
]
NATS: list[Any] = [
    reach.DialRequest((b"\x04\x01\x02\x03\x04\x06\x10\x36", bytes([0x29, *range(16), 6, 16, 54])), 1 << 63),
    reach.DialResponse(200, 1, 101),
    reach.DialDataRequest(1, 40_000),
    reach.DialData(b"data"),
]
PUNCHES = [
    reach.PunchMessage(reach.PunchKind.CONNECT, (b"\x04\x01\x02\x03\x04\x06\x10\x36",)),
    reach.PunchMessage(reach.PunchKind.SYNC),
]
INVITATIONS = [
    b'{"bootstrap":["/ip4/10.0.0.1/tcp/4001/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"],"by":"%b",'
    b'"expiresAt":"2026-11-27T08:00:00Z","network":"demo","policyKey":"%b","rules":{"f":0,"groups":[{"keys":["%b"],'
    b'"name":"graz"}],"use":"data & attested:1","witness":{"quorum":1}}}'
    % (str(KEY.did).encode(), str(OWNER.did).encode(), str(VALIDATOR.did).encode())
]
ADDRESSES = (
    b"/ip4/203.0.113.7/tcp/4150", b"/dns4/node.example/tcp/4150", b"/ip6/2001:db8::7/tcp/1",
    b"/ip4/10.0.0.1/tcp/4001/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN",
)  # fmt: skip


LAYOUTS: dict[Callable[..., Any], str] = {
    reads: f"{module.__name__}.{name}"
    for module in (chains, invite, lookup, objects, presence, refusal, swarm)
    for name, reads in vars(module).items()
    if isinstance(getattr(reads, "__self__", None), MessageLayout | MessageKinds)
}
"""Methods of layouts, by the names under which modules give them."""


@dataclass(frozen=True)
class Target:
    """A decoder, with messages to mutate. One that costs more is shown one in ``dear`` of the mutants."""

    reads: Callable[..., Any]
    parents: Sequence[bytes]
    open: Callable[[Path], AbstractContextManager[Decode]]
    dear: int = 1

    @property
    def name(self) -> str:
        return LAYOUTS.get(self.reads, f"{self.reads.__module__}.{self.reads.__qualname__}")


def simple(reads: Callable[..., Any], parents: Sequence[bytes], decode: Decode | None = None) -> Target:
    return Target(reads, parents, lambda _: nullcontext(decode or reads))


def again(decode: Callable[[bytes], Any], encode: Callable[[Any], bytes]) -> Decode:
    """What was decoded is written and read as the same value."""

    def both(raw: bytes) -> object:
        value = decode(raw)
        assert decode(encode(value)) == value
        return value

    return both


def text_of(reads: Callable[[str], Any], spelled: bool = True) -> Decode:
    """For decoders of text. With ``spelled``, what came out is spelled as text that means the same."""

    def read(raw: bytes) -> object:
        value = reads(raw.decode("utf-8", "replace"))
        assert not spelled or reads(str(value)) == value
        return value

    return read


def invited(payload: bytes) -> object:
    """A payload that whoever made it signed as well."""
    raw = b"\x01" + KEY.sign(envelope.preauth(payload, invitation.TYPE)) + payload
    text = invitation.SCHEME + base64.urlsafe_b64encode(raw).decode()
    said = invitation.read_invitation(text, instant.Instant(-(1 << 62)))
    assert invitation.read_invitation(invitation.write_invitation(said, KEY), instant.Instant(-(1 << 62))) == said
    return said


# Streams of our own protocols, and those of libp2p's relays


def undelimited(raw: bytes) -> bytes:
    (body,) = DelimitedReader(circuit.MAX_MESSAGE + 8).feed(raw)
    return body


def hop(raw: bytes) -> object:
    message = circuit.decode_hop(raw)
    assert circuit.decode_hop(undelimited(circuit.encode_hop(message))) == message
    return message


def stop(raw: bytes) -> object:
    message = circuit.decode_stop(raw)
    assert circuit.decode_stop(undelimited(circuit.encode_stop(message))) == message
    return message


def check_first_card(raw: bytes) -> object:
    check_card(raw, KEYS[0].dataset_id, "x")
    return True


def nat(raw: bytes) -> object:
    message = reach.decode(raw)
    (body,) = DelimitedReader(reach.MAX_DIAL_MESSAGE * 2).feed(reach.encode(message))
    if len(body) <= reach.MAX_DIAL_MESSAGE:
        assert reach.decode(body) == message
    return message


def punch(raw: bytes) -> object:
    message = reach.decode_punch(raw)
    assert reach.decode_punch(undelimited(reach.encode_punch(message))) == message
    return message


def place_of_node(raw: bytes) -> object:
    address = reach.decode_multiaddr(raw)
    if address is None:
        raise Invalid("another kind of address, which is passed over", rule="multiaddr")
    assert reach.decode_multiaddr(reach.encode_multiaddr(address)) == address
    return address


def reply_of_chain(raw: bytes) -> object:
    answer = chains.decode_chain_reply(raw)
    if isinstance(answer, refusal.PeerRefusal):
        return answer
    assert chains.decode_chain_reply(chains.encode_blocks(answer)) == answer
    chains.check_answer(chains.BlockRange(request=7, dataset=DATASET, start=256), answer)
    return answer


def reply_of_object(raw: bytes) -> object:
    answer = objects.decode_object_reply(raw)
    if isinstance(answer, refusal.PeerRefusal):
        return answer
    if isinstance(answer, objects.ObjectPack):
        assert objects.encode_pack(answer) == raw
        objects.check_pack(objects.ObjectsAsk(request=11, names=(SID, SID)), answer)
        return answer
    assert objects.encode_bytes(answer) == raw
    objects.check_answer(objects.ObjectRange(request=10, name=SID, offset=1 << 20, length=1 << 19), answer)
    return answer


def asked(raw: bytes) -> object:
    """The question is answered too, within the limits of the wire."""
    ask = trust.decode_ask(raw)
    held = [StatementRef(SID, DATASET)] * 3
    told = reconcile.answer(ask, lambda _: held, lambda _: (Topic.HEADS, b"{}" * 40_000), lambda _: [bytes(32)])
    assert len(trust.encode(told)) <= limits.MAX_TRUST_REPLY
    return ask


def told(raw: bytes) -> object:
    """A round of anti-entropy takes the answer as that to its first question, whatever it asked."""
    tell = trust.decode_tell(raw)
    assert trust.decode_tell(trust.encode(tell)) == tell
    turn = reconcile.Reconcile([], None)
    turn.start()
    turn.handle(tell)
    return tell


def framed(raw: bytes) -> object:
    reader = frames.FrameSplitter(200)
    bodies = reader.feed(raw)
    assert all(0 < len(body) <= 200 for body in bodies)
    pieces = frames.FrameSplitter(200)
    assert [body for at in range(len(raw)) for body in pieces.feed(raw[at : at + 1])] == bodies
    reader.end()
    return bodies


def delimited(raw: bytes) -> object:
    bodies = DelimitedReader(200).feed(raw)
    assert all(len(body) <= 200 for body in bodies)
    pieces = DelimitedReader(200)
    assert [body for at in range(len(raw)) for body in pieces.feed(raw[at : at + 1])] == bodies
    return bodies


def present(raw: bytes) -> object:
    said = presence.decode(raw)
    assert presence.encode(said) == raw[:-64]
    presence.is_signed(raw, said, "demo")
    for address in said.addresses:
        ip = parse_address(address).ip
        assert ip is None or is_global(ip) in (True, False)
    return said, said.peer, said.expires


def looked_up(raw: bytes) -> object:
    ask = lookup.decode_lookup(raw)
    assert (lookup.encode_store(ask) if isinstance(ask, lookup.Store) else lookup.encode_find(ask)) == raw
    return ask


def told_in_swarm(raw: bytes) -> object:
    """As an answer about the nine blocks of the question."""
    told = swarm.decode_told(raw, 9)
    assert swarm.encode_told(told, 9) == raw
    return told


NAME, LARGE = Multihash.sha3_256(b"object"), 9 << 20
LIST_ASK = swarm.PieceListAsk(DATASET, NAME, LARGE)
PIECES_ASK = PiecesAsk(dataset=DATASET, name=NAME, size=LARGE, root=bytes(32), have=0b1_0000_0001)
LISTED = swarm.sign_list(NAME, LARGE, bytes(range(32)) * 9, KEY)


def pieced(raw: bytes) -> object:
    """As it came, of either kind."""
    ask = swarm.decode_question(raw)
    again = swarm.encode_list_ask(ask) if isinstance(ask, swarm.PieceListAsk) else swarm.encode_pieces_ask(ask)
    assert again == raw
    return ask


def listed(raw: bytes) -> object:
    """As an answer about an object of nine pieces."""
    made = swarm.decode_listed(raw, LIST_ASK)
    assert (swarm.NONE if made is None else swarm.encode_listed(made)) == raw
    return made


def provided(raw: bytes) -> object:
    """As it came, and brought by whoever signed it."""
    said = lookup.decode_record(raw)
    assert presence.encode(said) == raw[:-64]
    for each in (raw, raw[:-64] + KEY.sign(b"odf provider 1\0demo\0" + bytes(32) + raw[:-64])):
        records = ProviderRecords("demo", b"")
        outcome = records.keep(bytes(32), each, said.key, b"", 1_700_000_000_500, Random(1))
        assert len(records) == (outcome is lookup.StoreOutcome.KEPT)
    return said


def answered(raw: bytes) -> object:
    told = presence.decode_answer(raw, presence.PeersAsk(wanted=32))
    assert presence.encode_answer(told) == raw
    return told


def admitted(raw: bytes) -> object:
    """As it came, and sealed by its own peer: then the signature keeps nothing out."""
    directory = Directory("demo", PeerId("me"), capacity=4)
    now = 1_700_000_000_500
    for each in (raw, raw[:-64] + KEY.sign(b"odf-presence-1\0demo\0" + raw[:-64])):
        assert isinstance(directory.admit(each, PeerId("peer"), now), Judgement)
    directory.tell(presence.PeersAsk(wanted=2, tags=(1,)), PeerId("peer"), now, Random(1))
    assert len(directory) <= 4
    present(raw)
    return raw


def booked(raw: bytes) -> object:
    book = PeerBook(Random(1))
    book.restore(raw, 5.0)
    book.views(6.0), book.acquaintances(6.0)
    other = PeerBook(Random(1))
    other.restore(book.snapshot(6.0), 6.0)
    return len(other)


# Below them: the muxer, the seal, the names of protocols


def unsealed(raw: bytes) -> object:
    unsealer = Unsealer(Cipher(AES, KEY.public), Scratch())
    room = unsealer.room()[: len(raw)]
    room[:] = raw[: len(room)]
    return bytes(unsealer.take(len(room)))


def muxed(raw: bytes) -> object:
    bounds = YamuxLimits(max_inbound=4, max_outbound=4, backlog=3, max_buffered=1 << 18)
    session = YamuxSession(initiator=False, limits=bounds, now=0.0)
    events = session.receive(raw, 0.0)
    assert session.open_streams <= 4
    assert session.buffered <= 1 << 18
    session.outgoing(1 << 20, 0.0)
    return events


def multiplexed() -> list[bytes]:
    pack = yamux_frames.pack
    opening = pack(yamux_frames.WINDOW_UPDATE, yamux_frames.SYN, 1, 0)
    return [
        opening + pack(yamux_frames.DATA, 0, 1, 5) + b"hello" + pack(yamux_frames.DATA, yamux_frames.FIN, 1, 0),
        opening + pack(yamux_frames.WINDOW_UPDATE, yamux_frames.SYN, 3, 1 << 16) + pack(1, yamux_frames.RST, 1, 0),
        pack(yamux_frames.PING, yamux_frames.SYN, 0, 77) + pack(yamux_frames.GO_AWAY, 0, 0, 0),
    ]


class OneMessage:
    """A reader over bytes that are all there."""

    def __init__(self, raw: bytes) -> None:
        self._rest = io.BytesIO(raw)

    async def read(self, count: int) -> bytes:
        return self._rest.read(count)


def negotiated(raw: bytes) -> object:
    """As multistream-select reads it: what is no message is one of the two faults that end a negotiation."""
    try:
        return trio.run(_read_delimited, OneMessage(raw))
    except (ParseError, IOException) as error:
        raise Invalid(str(error), rule="negotiation") from error


# Statements


@contextmanager
def noticeboard(folder: Path) -> Iterator[Decode]:
    with open_state_directory(folder) as home:
        board = LedgerStatementStore(home.database, home.chains, lambda: NOW, lambda *_: frozenset())

        def judge(raw: bytes) -> object:
            """As it came, and as what somebody signs: then the signature keeps nothing out."""
            verdicts = [board.judge(topic, raw, PeerId("peer")) for topic in Topic]
            if len(raw) < statement.MAX_ANY // 2:
                sealed = envelope.seal(raw, OWNER, VALIDATOR)
                verdicts += [board.judge(topic, sealed, PeerId("peer")) for topic in Topic]
            assert all(isinstance(verdict, Judgement) for verdict in verdicts)
            statement.decode_any(raw)
            return verdicts

        yield judge


@contextmanager
def bundles(folder: Path) -> Iterator[Decode]:
    def unpack(raw: bytes) -> object:
        with tempfile.TemporaryDirectory(dir=folder) as place, unpacked(io.BytesIO(raw), "x.odfe", Path(place)) as case:
            return case

    yield unpack


def manifest_of(raw: bytes) -> object:
    manifest = decode_manifest(raw)
    assert decode_manifest(manifest.encode()) == manifest
    manifest.accused()
    return manifest


def signed_anew(raw: bytes) -> bytes:
    """An IPNS record whose second signature is right, whatever it signs."""
    try:
        data = dict(protobuf.read_fields(raw, "ipns-record")).get(9)
    except Invalid:
        return raw
    if not isinstance(data, bytes):
        return raw
    return raw + protobuf.field(8, KEY.sign(record.SIGNED + data))


TARGETS: Sequence[Target] = (
    simple(chains.decode_range, [WIRE["chain.range"]], again(chains.decode_range, chains.encode_range)),
    simple(chains.decode_chain_reply, [WIRE[name] for name in ("chain.blocks", "refusal.busy")], reply_of_chain),
    simple(
        objects.decode_object_reply,
        [WIRE[name] for name in ("object.bytes", "object.pack", "refusal.busy")],
        reply_of_object,
    ),
    simple(objects.decode_request, [WIRE[name] for name in ("object.read", "object.some")]),
    simple(refusal.decode_refusal, [WIRE["refusal.busy"]], again(refusal.decode_refusal, refusal.encode_refusal)),
    simple(trust.decode_ask, [WIRE[f"trust.{name}"] for name in ("sum", "list", "get", "prove")], asked),
    simple(
        trust.decode_tell,
        [WIRE[f"trust.{name}"] for name in ("sums", "listing", "statements", "refused", "proof")],
        told,
    ),
    simple(frames.FrameSplitter.feed, [WIRE["frame"], frames.frame(b"x" * 150) + frames.frame(b"y")], framed),
    simple(DelimitedReader.feed, [b"\x05hello\x00", b"\xc8\x01" + bytes(200)], delimited),
    simple(presence.decode, [WIRE["peers.presence"]], present),
    simple(invite.decode_redeem, [WIRE["invite.redeem"]], again(invite.decode_redeem, invite.encode_redeem)),
    simple(
        invite.decode_redemption, [WIRE["invite.answer"]], again(invite.decode_redemption, invite.encode_redemption)
    ),
    simple(presence.decode_ask, [WIRE["peers.ask"]], again(presence.decode_ask, presence.encode_ask)),
    simple(presence.decode_answer, [WIRE["peers.answer"]], answered),
    simple(lookup.decode_lookup, [WIRE["lookup.find"], WIRE["lookup.store"]], looked_up),
    simple(lookup.decode_nodes, [WIRE["lookup.nodes"]], again(lookup.decode_nodes, lookup.encode_nodes)),
    simple(lookup.decode_stored, [WIRE["lookup.stored"]], again(lookup.decode_stored, lookup.encode_stored)),
    simple(lookup.decode_record, [WIRE["lookup.record"]], provided),
    simple(swarm.decode_parts, [WIRE["swarm.parts"]], again(swarm.decode_parts, swarm.encode_parts)),
    simple(swarm.decode_told, [WIRE["swarm.told"], WIRE["swarm.none"]], told_in_swarm),
    simple(swarm.decode_question, [swarm.encode_pieces_ask(PIECES_ASK), swarm.encode_list_ask(LIST_ASK)], pieced),
    simple(swarm.decode_listed, [swarm.encode_listed(LISTED), swarm.NONE], listed),
    simple(circuit.decode_hop, [circuit.encode_hop(each)[2:] for each in HOPS], hop),
    simple(circuit.decode_stop, [circuit.encode_stop(each)[1:] for each in STOPS], stop),
    simple(reach.decode, [reach.encode(each)[1:] for each in NATS], nat),
    simple(reach.decode_back, [reach.encode_back(1 << 62)[1:]], reach.decode_back),
    simple(reach.decode_observed, [b"\x22\x08\x04\x01\x02\x03\x04\x06\x10\x36"], reach.decode_observed),
    simple(reach.decode_punch, [reach.encode_punch(each)[1:] for each in PUNCHES], punch),
    simple(reach.decode_multiaddr, list(NATS[0].addresses), place_of_node),
    simple(circuit.check_voucher, [VOUCHER], lambda raw: circuit.check_voucher(raw, RELAY, PEER)),
    simple(protobuf.read_fields, [RECORD, VOUCHER], lambda raw: dict(protobuf.read_fields(raw, "x"))),
    simple(Directory.admit, [WIRE["peers.presence"]], admitted),
    simple(
        PeerBook.restore,
        [
            b'[{"peer":"12D3KooW","addresses":["/ip4/1.2.3.4/tcp/1"],"last_seen":5,"score":-3.5},{"peer":"b"}]',
            b"[" * 3000,
        ],
        booked,
    ),
    simple(parse_address, ADDRESSES, text_of(parse_address)),
    simple(invitation.read_invitation, INVITATIONS, invited),
    simple(parse_peer, [address.split(b"/")[-1] for address in ADDRESSES[-1:]], text_of(parse_peer)),
    simple(yamux_frames.parse, [multiplexed()[0][:12]], lambda raw: yamux_frames.parse(raw.ljust(12, b"\0"))),
    simple(YamuxSession.receive, multiplexed(), muxed),
    simple(
        Unsealer.take,
        [bytes(Cipher(AES, KEY.public).seal([b"hello", b"world" * 50]))],
        unsealed,
    ),
    simple(
        Cipher.open,
        [bytes(Cipher(AES, KEY.public).seal([b"hello"]))[2:]],
        lambda raw: Cipher(AES, KEY.public).open(memoryview(raw), memoryview(bytearray(raw))),
    ),
    simple(bound_negotiation, [b"\x12/odf/1/chain_1234\n", b"\x13/multistream/1.0.0\n"], negotiated),
    simple(canonical.decode, PAYLOADS, again(canonical.decode, canonical.encode)),
    simple(envelope.unseal, SEALED, lambda raw: envelope.unseal(raw, statement.MAX_ANY)),
    simple(envelope.payload_of, SEALED),
    simple(subject_of, SEALED, lambda raw: subject_of(Topic.HEADS, raw, lambda *_: None)),
    simple(statement.decode, PAYLOADS, again(statement.decode, statement.encode)),
    simple(statement.decode_any, PAYLOADS, again(statement.decode_any, statement.encode)),
    simple(answer.unseal, [ANSWER]),
    simple(proof.decode, PROOFS, lambda raw: proof.statements_of(proof.decode(raw))),
    simple(checkpoint.decode, [TREE.encode()], again(checkpoint.decode, checkpoint.TreeCheckpoint.encode)),
    simple(
        checkpoint.checkpoint_of,
        [TREE.encode()],
        lambda raw: checkpoint.checkpoint_of(*[*raw.decode("utf-8", "replace").split("\n"), "", ""][:3]),
    ),
    simple(checkpoint.decode_line, [COSIGNED.line.encode()], text_of(checkpoint.decode_line, spelled=False)),
    simple(
        cosignature.verify,
        [COSIGNED.line.encode()],
        lambda raw: cosignature.verify(TREE, raw.decode("utf-8", "replace")),
    ),
    simple(
        checkpoint.decode_verifier_key,
        [LOG_KEY.encode(), checkpoint.verifier_key("witness.example/w1", 4, KEY.public).encode()],
        text_of(lambda text: checkpoint.decode_verifier_key(text).encode()),
    ),
    simple(submission.decode, [SUBMITTED.encode()], again(submission.decode, submission.Submission.encode)),
    simple(submission.decode_answer, [COSIGNED.line.encode() * 2], submission.decode_answer),
    simple(submission.decode_size, [b"912\n", b"0\n"], submission.decode_size),
    simple(
        cosignature.decode,
        [COSIGNED.encode()],
        again(cosignature.decode, cosignature.Cosignature.encode),
    ),
    simple(keys.check_public_key, [KEY.public], keys.check_public_key),
    Target(LedgerStatementStore.judge, [*PAYLOADS, *SEALED, *PROOFS, COSIGNED.encode()], noticeboard, dear=5),
    simple(decode_manifest, [BundleReader(io.BytesIO(BUNDLE), "x").manifest.encode()], manifest_of),
    Target(unpacked, [BUNDLE], bundles, dear=40),
    simple(record.unseal, [RECORD], lambda raw: record.unseal(signed_anew(raw), KEY.dataset_id)),
    simple(check_delegation, [DELEGATION], lambda raw: check_delegation(signed_anew(raw), KEY.dataset_id, "k51")),
    simple(record.dataset_of, [record.name_of(DATASET).encode()], text_of(record.dataset_of, spelled=False)),
    simple(did_of_peer, [ADDRESSES[-1].split(b"/")[-1]], text_of(did_of_peer, spelled=False)),
    simple(parse_name, [b"net.example.flights", b"alice/flights"], text_of(parse_name, spelled=False)),
    simple(Multihash.from_bytes, [bytes(SID)], Multihash.from_bytes),
    simple(DatasetId.from_bytes, [bytes(DATASET)], DatasetId.from_bytes),
    simple(Multihash.parse, [str(SID).encode()], text_of(Multihash.parse)),
    simple(DatasetId.parse, [str(DATASET).encode()], text_of(DatasetId.parse)),
    simple(KeyDid.parse, [str(KEY.did).encode()], text_of(KeyDid.parse)),
    simple(multibase.decode, [str(SID).encode()], text_of(multibase.decode, spelled=False)),
    simple(Area.parse, [b"-15.35,47,15.54,47.14"], text_of(Area.parse, spelled=False)),
    simple(instant.parse, [b"2026-11-20T08:00:00Z"], text_of(instant.parse, spelled=False)),
    Target(Kubo.record, KUBO_ANSWERS, kubo, dear=20),
    Target(IpfsTransport.bring_blocks, archives(), unpacking, dear=10),
    Target(Web.open, ANSWERS, website, dear=10),
    simple(
        site_packs.read_pack,
        [site_packs.pack([BLOCK, b"another"])],
        lambda raw: site_packs.pack(site_packs.read_pack(raw)) == raw,
    ),
    simple(head_in, SEALED, lambda raw: head_in(raw, "x")),
    simple(
        collection_in,
        [written(KEYS[:2], [(1, None), (2, 3)]), written(KEYS[:3], [(9, 9), (1, 1), (1, None)])],
        lambda raw: collection_in(raw, "x").content == raw,
    ),
    simple(check_card, [card_of(KEYS[:2]), card_of(KEYS[:3])], check_first_card),
    Target(PublishedSource.edition, [*SEALED, str(SID).encode(), BLOCK], folder_of, dear=5),
    simple(
        record.check_cid,
        [place.strip(b"/").split(b"/")[-1] for place in IPFS_PLACES],
        text_of(record.check_cid, spelled=False),
    ),
    simple(
        record.check_key_name,
        [
            b"k51qzi5uqu5dlmrv00ck5c5vkhe8blzfi58chjpu2u93xfpyqsf33iegtu7bd6",
            b"12D3KooWGC6TvWhfapngX6wvJHMYvKpDMXPb3ZnCZ6dMoaMtimQ5",
        ],
        text_of(record.check_key_name, spelled=False),
    ),
    simple(ipfs_place_of, IPFS_PLACES, text_of(ipfs_place_of, spelled=False)),
    simple(place_of, [b"https://data.example:8080/nyc.flights/", b"http://[::1]/x"], text_of(place_of, spelled=False)),
)
"""Blocks have a fuzzer of their own, ``tests/fuzz/test_decoders.py``."""

OURS = {
    "p2p.wire.layout.MessageLayout.decode": "each layout is a target by its own name",
    "p2p.wire.layout.MessageKinds.decode": "each layout is a target by its own name",
    "chain.ids.parse_local_alias": "a name that the owner writes",
    "chain.ids.parse_own_name": "a name that the owner writes",
    "p2p.identity.did_of_seed": "a seed of ours",
    "odfd.trust.evidence.bundle.write": "a bundle of ours",
    "chain.statements.proof.fork": "statements that were decoded before",
    "chain.statements.proof.double_vote": "statements that were decoded before",
    "chain.statements.proof.authority_fork": "statements that were decoded before",
    "chain.statements.tree.Frontier.from_bytes": "our own database",
}
"""What reads bytes or text and is no decoder of a peer's, with the reason."""
