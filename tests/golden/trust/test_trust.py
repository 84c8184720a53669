"""Bytes of statements, proofs and bundles, pinned: what was signed once must be readable for ever.

``make()`` wrote these files once. Tests read them, and never write: one that fails means that others' statements would
no longer be understood. ``PYTHONPATH=tests python -m golden.trust.test_trust`` writes the files of new statements.
"""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from securesystemslib.dsse import Envelope
from securesystemslib.signer import CryptoSigner, Signature, SSlibKey

from chain.errors import Invalid
from chain.ids import KeyDid
from chain.multihash import Multihash
from chain.statements import checkpoint, cosignature, envelope, proof, statement, submission
from chain.statements.card import Card, CardColumn, CardSample, CardShards, ChainFacts, PublisherClaims, vouch
from chain.statements.checkpoint import COSIGNATURE_KEY, NOTE_KEY, TreeCheckpoint
from chain.statements.keys import SigningKey
from chain.statements.node_card import NodeCard, NodeClaims
from chain.statements.submission import Submission
from chain.statements.tree import Frontier, Tree
from odfd.trust.evidence.bundle import AccusedStep, unpacked
from odfd.trust.validation.recheck import recheck
from odfd.trust.witness.witness import NOTHING, ConsistencyResult, KnownTree, rule, shown_by
from worlds import accused_world

HERE = Path(__file__).parent
OWNER, VALIDATOR = SigningKey(b"o" * 32), SigningKey(b"v" * 32)


def head(
    size: int = 8, root: bytes = b"\7" * 32, node: KeyDid | None = None, upper: int | None = None
) -> statement.HeadStatement:
    return statement.HeadStatement(
        dataset=OWNER.dataset_id,
        epoch=0,
        size=size,
        root_hash=root,
        authority=0,
        issued_at="2026-11-20T08:00:00Z",
        expires_at="2026-11-27T08:00:00Z",
        node=node,
        upper=upper,
        head=Multihash.sha3_256(b"last block"),
    )


def attestation() -> statement.Attestation:
    actual = statement.Actual(
        logical_hash=Multihash.sha3_256(b"rows"),
        offset_interval=statement.Interval(start=120, end=131),
        records=12,
        watermark="2026-11-20T07:00:00Z",
    )
    engine = statement.EngineUsed(
        name="spark", digest="sha256:" + "0" * 64, pinned=True, sandbox="bubblewrap", platform="linux/amd64"
    )
    return statement.Attestation(
        validator=VALIDATOR.did,
        dataset=OWNER.dataset_id,
        epoch=0,
        size=8,
        root_hash=b"\7" * 32,
        serial=4,
        previous=Multihash.sha3_256(b"serial 3"),
        determinism="strict",
        finished_at="2026-11-20T09:31:02Z",
        engines=(engine,),
        inputs=(statement.InputTree(dataset=VALIDATOR.dataset_id, epoch=0, size=41, root_hash=b"\1" * 32),),
        spans=(
            statement.Span(first=0, last=6, verdict="reproduced", state="genesis", engine=0),
            statement.Span(first=7, last=7, verdict="mismatch", state="genesis", engine=0),
        ),
        mismatch=(statement.Mismatch(sequence_number=7, runs=3, bundle=Multihash.sha3_256(b"bundle"), actual=actual),),
        head=Multihash.sha3_256(b"last block"),
    )


def authority() -> statement.Authority:
    tree = statement.TreeHead(size=4, root_hash=b"\7" * 32)
    return statement.Authority(
        dataset=OWNER.dataset_id,
        version=2,
        previous=Multihash.sha3_256(b"version 1"),
        issued_at="2026-11-20T09:31:02Z",
        roots=statement.Roots(threshold=1, keys=(OWNER.did, VALIDATOR.did)),
        writers=(statement.Writer(key=VALIDATOR.did, expires_at="2027-06-01T00:00:00Z"),),
        epochs=(statement.Epoch(number=1, reason="recovery", base=tree, last=tree),),
        head=Multihash.sha3_256(b"seed"),
    )


def observation() -> statement.Observation:
    return statement.Observation(
        observer=VALIDATOR.did,
        dataset=OWNER.dataset_id,
        epoch=0,
        sequence_number=7,
        result="same-bytes",
        response=statement.Response(sha256="5e" * 32, size=4711, etag='"v1"', last_modified="2026-11-20T07:59:00Z"),
        at="2026-11-20T09:31:02Z",
        head=Multihash.sha3_256(b"last block"),
    )


def card() -> Card:
    return Card(
        dataset=OWNER.dataset_id,
        author=OWNER.did,
        authority=0,
        epoch=0,
        size=8,
        issued_at="2026-11-20T09:31:02Z",
        expires_at="2027-02-18T09:31:02Z",
        chain=ChainFacts(
            kind="derivative",
            records=1234,
            created_at="2026-01-01T00:00:00Z",
            updated_at="2026-11-20T09:30:00Z",
            watermark="2026-11-19T00:00:00Z",
            description="Delays by airport and day",
            keywords=("flights", "delays"),
            license="CC-BY-4.0",
            license_url="https://creativecommons.org/licenses/by/4.0/",
            columns=(CardColumn(name="offset", type="Int64"), CardColumn(name="airport", type="String")),
            more_columns=3,
            inputs=(VALIDATOR.dataset_id,),
        ),
        claims=PublisherClaims(name="nyc.delays", publisher="Graz"),
        head=Multihash.sha3_256(b"last block"),
    )


def network_policy() -> statement.PolicyStatement:
    rules = statement.Rules(
        use="data & attested:2",
        groups=(statement.RuleGroup(name="uni-graz", keys=(OWNER.did,)),),
        f=0,
        min_engines=1,
        min_sandbox="host",
        max_stale="7d",
    )
    return statement.PolicyStatement(
        key=VALIDATOR.did,
        network="flights",
        version=2,
        previous=Multihash.sha3_256(b"version 1"),
        issued_at="2026-11-20T09:31:02Z",
        policy=rules,
        head=rules.digest,
    )


def node_card() -> NodeCard:
    claims = NodeClaims(name="Graz", contact="mail@example.org", about="Air over Graz, by the hour")
    return NodeCard(
        node=VALIDATOR.did,
        issued_at="2026-11-20T09:31:02Z",
        expires_at="2027-02-18T09:31:02Z",
        claims=claims,
        head=claims.digest,
    )


def vouched() -> Card:
    """A card that names the publisher's node, which signed so."""
    claims = PublisherClaims(
        name="nyc.delays",
        publisher="Graz",
        node=VALIDATOR.did,
        node_signature=vouch(VALIDATOR, OWNER.dataset_id, OWNER.did),
    )
    return msgspec.structs.replace(card(), claims=claims)


def of_shards() -> Card:
    return msgspec.structs.replace(
        card(), shards=CardShards(function="xxhash64", by=("airport",), keys=VALIDATOR.public + OWNER.public)
    )


def with_a_sample() -> Card:
    sample = CardSample(columns=(0, 1), rows=(("6", "JFK"), ("7", False)), left_out=3)
    return msgspec.structs.replace(card(), sample=sample)


def with_words() -> Card:
    """A card with what its publisher says on purpose, and the times of its rows."""
    plain = card()
    assert plain.chain is not None
    assert plain.claims is not None
    facts = msgspec.structs.replace(
        plain.chain,
        first_event="2013-01-01T05:00:00Z",
        last_event="2013-12-31T23:00:00Z",
        update_interval=86400,
        bytes=4711,
    )
    claims = msgspec.structs.replace(
        plain.claims,
        title="Delays of flights from New York",
        place="New York, USA",
        area="-74.3,40.4,-73.6,41",
        frequency="daily",
    )
    return msgspec.structs.replace(plain, chain=facts, claims=claims)


SEALED = {
    "head.json": (head(), OWNER),
    "head-of-a-node.json": (head(node=VALIDATOR.did), OWNER),
    "head-with-upper.json": (head(upper=1795161600000), OWNER),
    "head-of-a-shard.json": (msgspec.structs.replace(head(), collection=VALIDATOR.dataset_id), OWNER),
    "authority.json": (authority(), OWNER),
    "attestation.json": (attestation(), VALIDATOR),
    "observation.json": (observation(), VALIDATOR),
    "policy.json": (network_policy(), VALIDATOR),
    "card.json": (card(), OWNER),
    "card-of-a-node.json": (vouched(), OWNER),
    "card-of-shards.json": (of_shards(), OWNER),
    "card-with-a-sample.json": (with_a_sample(), OWNER),
    "card-with-words.json": (with_words(), OWNER),
    "node-card.json": (node_card(), VALIDATOR),
}


def test_each_kind_is_pinned() -> None:
    assert {said.KIND for said, _ in SEALED.values()} == set(statement.KINDS)


@pytest.mark.parametrize("name", sorted(SEALED))
def test_statements_keep_their_bytes(name: str) -> None:
    said, key = SEALED[name]
    raw = (HERE / name).read_bytes()
    assert envelope.seal(statement.encode(said), key) == raw
    signed = envelope.unseal(raw, said.MAX_ENVELOPE)
    assert (statement.decode_any(signed.payload), signed.signers) == (said, (key.did,))


@pytest.mark.parametrize("name", sorted(SEALED))
def test_the_reference_reader_of_dsse_takes_our_envelopes(name: str) -> None:
    _, key = SEALED[name]
    read = Envelope.from_dict(json.loads((HERE / name).read_bytes()))
    assert read.pae() == envelope.preauth(read.payload)
    accepted = read.verify([public(key)], 1)
    assert list(accepted) == [str(key.did)]
    framed = json.loads(read.payload)
    assert framed["_type"] == "https://in-toto.io/Statement/v1"
    assert set(framed) == {"_type", "subject", "predicateType", "predicate"}
    assert [set(subject) for subject in framed["subject"]] == [{"name", "digest"}]


@pytest.mark.parametrize("name", sorted(SEALED))
def test_we_take_envelopes_of_the_reference_writer(name: str) -> None:
    said, key = SEALED[name]
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    seed = {OWNER.public: b"o", VALIDATOR.public: b"v"}[key.public] * 32
    signer = CryptoSigner(Ed25519PrivateKey.from_private_bytes(seed), public(key))
    made = Envelope(statement.encode(said), envelope.PAYLOAD_TYPE, {})
    made.sign(signer)
    signed = envelope.unseal(json.dumps(made.to_dict(), indent=1).encode(), said.MAX_ENVELOPE)
    assert (statement.decode_any(signed.payload), signed.signers) == (said, (key.did,))
    made.signatures[str(key.did)] = Signature(str(key.did), "00" * 64)
    with pytest.raises(Invalid):
        envelope.unseal(json.dumps(made.to_dict()).encode(), said.MAX_ENVELOPE)


def public(key: SigningKey) -> SSlibKey:
    return SSlibKey(str(key.did), "ed25519", "ed25519", {"public": key.public.hex()})


@pytest.mark.parametrize(
    ("name", "kind", "index", "accused"),
    [("fork.json", "fork", 2, OWNER), ("double-vote.json", "double-vote", None, VALIDATOR)],
)
def test_proofs_are_still_proofs(name: str, kind: str, index: int | None, accused: SigningKey) -> None:
    found = proof.decode((HERE / name).read_bytes())
    assert (found.kind, found.index, found.accused) == (kind, index, (accused.did,))
    assert found.dataset == OWNER.dataset_id


@pytest.mark.slow
async def test_a_bundle_is_still_evidence(tmp_path: Path) -> None:
    raw = (HERE / "lie.odfe").read_bytes()
    (tmp_path / "staging").mkdir()
    with unpacked(io.BytesIO(raw), "lie.odfe", tmp_path) as case:
        assert isinstance(case, AccusedStep)
        assert Multihash.sha3_256(case.manifest.encode()) == case.manifest.id
        found = await recheck(case, accused_world.LyingEngine(), tmp_path / "staging")
    assert (found.result, KeyDid(found.dataset)) == ("confirmed", accused_world.PUBLISHER.did)
    assert found.finding is not None
    assert [(cell.row, cell.column) for cell in found.finding.cells] == [(0, "k")]


def write_new(folder: Path) -> None:
    """Writes the statements that have no file."""
    for name, (said, key) in SEALED.items():
        if not (folder / name).exists():
            (folder / name).write_bytes(envelope.seal(statement.encode(said), key))


async def make(folder: Path) -> None:
    """Write the files; done once."""
    from chain.statements.tree import Frontier

    write_new(folder)
    leaves = [[Multihash.sha3_256(bytes([each])).digest for each in row] for row in ([0, 1, 2, 3], [0, 1, 9])]
    heads = [envelope.seal(statement.encode(head(len(row), Frontier().extend(row).root)), OWNER) for row in leaves]
    forked = proof.fork(*heads, *(lambda start, stop, row=row: row[start:stop] for row in leaves))
    (folder / "fork.json").write_bytes(forked.raw)
    import msgspec

    other = msgspec.structs.replace(attestation(), determinism="no")
    votes = [envelope.seal(statement.encode(said), VALIDATOR) for said in (attestation(), other)]
    (folder / "double-vote.json").write_bytes(proof.double_vote(*votes).raw)
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        accused = accused_world.Accused(Path(place) / "world")
        await accused.publish(2)
        (folder / "lie.odfe").write_bytes(await accused.bundle())


# Notes, requests and cosignatures that torchwood made of our tree: read, and made alike but for what is dated.

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "witness" / "vectors.json").read_text())
CASES = {f"{case['old']} to {case['size']}": case for case in VECTORS["cases"]}
LOG, WITNESS = SigningKey(b"o" * 32), SigningKey(b"w" * 32)
DATASET = SigningKey(b"d" * 32).dataset_id
LEAVES = [bytes([number]) * 32 for number in range(13)]


def tree_of(size: int) -> TreeCheckpoint:
    return TreeCheckpoint(DATASET, 2, size, Frontier().extend(LEAVES[:size]).root)


def test_keys_are_written_alike() -> None:
    log = submission.log_key(tree_of(1), LOG.public)
    assert (log.name, log.encode()) == (VECTORS["origin"], VECTORS["logKey"])
    witness = checkpoint.decode_verifier_key(VECTORS["witnessKey"])
    assert (witness.name, witness.kind, witness.public_key) == ("witness.example/w1", COSIGNATURE_KEY, WITNESS.public)
    assert checkpoint.decode_verifier_key(VECTORS["logKey"]).kind == NOTE_KEY


@pytest.mark.parametrize("name", CASES)
def test_requests_are_made_and_read_alike(name: str) -> None:
    case = CASES[name]
    old, size, tree = case["old"], case["size"], tree_of(case["size"])
    nodes = Tree(lambda start, stop: LEAVES[start:stop]).consistency(old, size) if old else []
    assert [base64.b64encode(node).decode() for node in nodes] == case["proof"]
    made = Submission(old=old, proof=tuple(nodes), tree=tree, lines=(submission.sign_note(LOG, tree),))
    assert made.encode().decode() == case["request"]
    assert submission.decode(case["request"].encode()) == made
    assert case["request"].endswith("\n\n" + case["note"])
    assert submission.is_signed_by(tree, made.lines[0], checkpoint.decode_verifier_key(VECTORS["logKey"]))


@pytest.mark.parametrize("name", CASES)
def test_proofs_of_others_are_followed(name: str) -> None:
    case = CASES[name]
    read = submission.decode(case["request"].encode())
    new, old = KnownTree(read.tree.size, read.tree.root_hash), case["old"]
    known = (KnownTree(old, tree_of(old).root_hash),) if old else ()
    assert rule(known, read.old, new, shown_by(read.proof, read.old, new)) is ConsistencyResult.COSIGN
    if old:
        other = (KnownTree(old, b"?" * 32),)
        assert rule(other, read.old, new, shown_by(read.proof, read.old, new)) is ConsistencyResult.UNPROVEN
    else:
        assert read.old == NOTHING.size


@pytest.mark.parametrize("name", CASES)
def test_cosignatures_of_others_travel(name: str) -> None:
    """Attack T-HEAD-06: a cosignature under another name.

    Defence: names are not signed: the key counts, and nodes derive the name from it.
    """
    case = CASES[name]
    (line,) = submission.decode_answer(case["cosignature"].encode())
    key = checkpoint.decode_verifier_key(VECTORS["witnessKey"])
    made = cosignature.verify(tree_of(case["size"]), line, key)
    assert (made.witness, cosignature.decode(made.encode())) == (WITNESS.did, made), "as of any witness among nodes"
    assert cosignature.cosign(WITNESS, made.checkpoint, made.at) == made, "what is signed does not hold the name"
    assert cosignature.line_of(key, checkpoint.decode_line(made.line).data) == line, "and its line can be had again"


if __name__ == "__main__":
    write_new(HERE)
