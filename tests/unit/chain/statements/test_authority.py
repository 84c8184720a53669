"""Who may say what of which datasets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.errors import Invalid
from chain.multihash import Multihash
from chain.statements import authority, canonical, envelope, proof, statement
from chain.statements.area import Area
from chain.statements.authority import Rights, follow, implicit, missing_signatures, walk
from chain.statements.envelope import Signed
from chain.statements.keys import SigningKey
from chain.statements.statement import Authority, Epoch, HeadStatement, Roots, TreeHead, Writer
from chain.statements.tree import Frontier
from worlds.faults import breaks

# The walk over a dataset's authority: what each version must be signed by, and every rule with a yes and a no.

DATASET = SigningKey(b"d" * 32)
ROOTS = [SigningKey(bytes([n]) * 32) for n in range(1, 10)]
NODE = SigningKey(b"n" * 32)
OTHER = SigningKey(b"o" * 32)
SEED = Multihash.sha3_256(b"seed")
NOW = instant.parse("2026-11-20T08:00:00Z")
ISSUED, UNTIL, LATER = "2026-11-20T08:00:00Z", "2027-11-20T00:00:00Z", "2027-12-01T00:00:00Z"


def tree(size: int, root: bytes = b"r" * 32) -> TreeHead:
    return TreeHead(size=size, root_hash=root)


def epoch(number: int = 1, size: int = 912, **changes: Any) -> Epoch:
    terms = {"number": number, "reason": "rotation", "base": tree(size), "last": tree(size)} | changes
    return Epoch(**terms)


def writer(key: SigningKey, until: str = UNTIL) -> Writer:
    return Writer(key=key.did, expires_at=until)


def said(**changes: Any) -> Authority:
    """Version 1 of the dataset: its key stays the root, its node writes."""
    terms = {
        "dataset": DATASET.dataset_id,
        "version": 1,
        "issued_at": ISSUED,
        "roots": Roots(threshold=1, keys=(DATASET.did,)),
        "writers": (writer(DATASET), writer(NODE)),
        "head": SEED,
    } | changes
    return Authority(**terms)


def signed(what: Authority, *keys: SigningKey) -> Signed:
    sealed = envelope.seal(statement.encode(what), *keys)
    return envelope.unseal(sealed, Authority.MAX_ENVELOPE)


def after(before: Rights, what: Authority, *keys: SigningKey) -> Rights:
    return follow(before, what, signed(what, *(keys or (DATASET,))))


ZERO = implicit(DATASET.dataset_id)
ONE = after(ZERO, said())


def second(**changes: Any) -> Authority:
    return said(**({"version": 2, "previous": ONE.sid} | changes))


def test_version_zero_is_the_dataset_key() -> None:
    assert ZERO.may_write(DATASET.did, NOW)
    assert not ZERO.may_write(NODE.did, NOW)
    assert (ZERO.version, ZERO.epoch, ZERO.roots) == (0, 0, frozenset({DATASET.did}))


def test_bytes_of_an_authority() -> None:
    what = second(epochs=(epoch(),), writers=(writer(NODE),))
    payload = statement.encode(what)
    body = canonical.decode(payload)["predicate"]  # type: ignore[index, call-overload]
    assert body == {
        "dataset": str(DATASET.dataset_id),
        "version": 2,
        "previous": str(ONE.sid),
        "issuedAt": ISSUED,
        "roots": {"threshold": 1, "keys": [str(DATASET.did)]},
        "writers": [{"key": str(NODE.did), "expiresAt": UNTIL}],
        "epochs": [
            {
                "number": 1,
                "reason": "rotation",
                "base": {"size": 912, "rootHash": "cnJycnJycnJycnJycnJycnJycnJycnJycnJycnJycnI="},
                "last": {"size": 912, "rootHash": "cnJycnJycnJycnJycnJycnJycnJycnJycnJycnJycnI="},
            }
        ],
    }
    assert hashlib.sha256(payload).hexdigest() == "bf3632d4ffd6c34242a3c8e2cfa8528d6967105b7a117fa85388a4294bca07f1"
    assert statement.decode_any(payload) == what
    with pytest.raises(Invalid, match="neither a head nor an attestation"):
        statement.decode(payload)


def test_the_largest_authority_fits_its_limit() -> None:
    writers = tuple(writer(SigningKey(bytes([99, n]) * 16)) for n in range(16))
    roots = Roots(threshold=9, keys=tuple(key.did for key in ROOTS))
    what = said(writers=writers, roots=roots, epochs=tuple(epoch(n) for n in range(1, 17)))
    sealed = envelope.seal(statement.encode(what), *ROOTS, *[SigningKey(bytes([77, n]) * 16) for n in range(9)])
    assert len(sealed) < Authority.MAX_ENVELOPE


def test_a_writer_writes_until_it_expires() -> None:
    until = instant.parse(UNTIL)
    assert ONE.may_write(NODE.did, NOW)
    assert ONE.may_write(NODE.did, instant.Instant(until - 1))
    assert not ONE.may_write(NODE.did, until)
    assert not ONE.may_write(OTHER.did, NOW)


def test_the_dataset_key_can_be_taken_out_of_use() -> None:
    """Rotation of the root: signed by the old and the new; from then on the id's own key rules nothing."""
    handed = second(roots=Roots(threshold=1, keys=(OTHER.did,)), writers=(writer(NODE),), epochs=(epoch(),))
    with pytest.raises(Invalid, match="version 2 itself"):
        after(ONE, handed, DATASET)
    with pytest.raises(Invalid, match="version 1 asks"):
        after(ONE, handed, OTHER)
    two = after(ONE, handed, DATASET, OTHER)
    assert not two.may_write(DATASET.did, NOW)
    third = said(version=3, previous=two.sid, epochs=two.epochs, roots=Roots(threshold=1, keys=(OTHER.did,)))
    with pytest.raises(Invalid, match="roots"):
        after(two, third, DATASET)
    assert after(two, third, OTHER).version == 3


REFUSED: dict[str, tuple[Callable[[], Authority], str]] = {
    "another dataset": (lambda: second(dataset=OTHER.dataset_id), "authority-dataset"),
    "a version skipped": (lambda: second(version=3), "authority-version"),
    "the same version again": (lambda: second(version=1), "authority-version"),
    "another predecessor": (lambda: second(previous=SEED), "authority-previous"),
    "no predecessor": (lambda: second(previous=None), "authority-previous"),
    "another first block": (lambda: second(head=Multihash.sha3_256(b"graft")), "authority-seed"),
    "a threshold nobody meets": (lambda: second(roots=Roots(threshold=2, keys=(DATASET.did,))), "authority-threshold"),
    "a root twice": (lambda: second(roots=Roots(threshold=2, keys=(DATASET.did, DATASET.did))), "authority-keys"),
    "a writer twice": (lambda: second(writers=(writer(NODE), writer(NODE), writer(DATASET))), "authority-keys"),
    "a writer for too long": (
        lambda: second(writers=(writer(DATASET), writer(NODE, "2027-12-25T08:00:01Z"))),
        "authority-writer-lifetime",
    ),
    "a writer that is over": (
        lambda: second(writers=(writer(DATASET), writer(NODE, ISSUED))),
        "authority-writer-lifetime",
    ),
    "a writer removed, no epoch": (lambda: second(writers=(writer(DATASET),)), "authority-removal"),
    "an epoch skipped": (lambda: second(epochs=(epoch(2),)), "authority-epochs"),
    "two epochs at once": (lambda: second(epochs=(epoch(1), epoch(2))), "authority-epochs"),
    "more kept than there was": (lambda: second(epochs=(epoch(base=tree(913)),)), "authority-epoch-base"),
    "all kept, and yet others": (lambda: second(epochs=(epoch(base=tree(912, b"s" * 32)),)), "authority-epoch-base"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_follow_is_refused(name: str) -> None:
    make, rule = REFUSED[name]
    with breaks(rule, Invalid):
        after(ONE, make(), DATASET, OTHER, NODE)


@pytest.mark.parametrize(
    "make",
    [
        lambda: second(),
        lambda: second(writers=(writer(DATASET), writer(NODE), writer(OTHER))),
        lambda: second(writers=(writer(DATASET), writer(NODE, "2027-12-25T08:00:00Z"))),
        lambda: second(writers=(writer(DATASET),), epochs=(epoch(),)),
        lambda: second(writers=(), epochs=(epoch(),)),
        lambda: second(epochs=(epoch(reason="reset", base=tree(5)),)),
        lambda: second(roots=Roots(threshold=2, keys=(DATASET.did, OTHER.did))),
    ],
)
def test_what_follows_is_taken(make: Callable[[], Authority]) -> None:
    assert after(ONE, make(), DATASET, OTHER).version == 2


def test_epochs_may_not_be_dropped_or_altered() -> None:
    two = after(ONE, second(epochs=(epoch(),)))
    third = {"version": 3, "previous": two.sid}
    for epochs in ((), (epoch(reason="fork"),), (epoch(2),), (epoch(1), epoch(3))):
        with breaks("authority-epochs", Invalid):
            after(two, said(**third, epochs=epochs))
    assert after(two, said(**third, epochs=(epoch(1), epoch(2)))).epoch == 2


def test_the_newest_sixteen_epochs_are_shown() -> None:
    rights = ZERO
    for number in range(1, 20):
        shown = tuple(epoch(n, n) for n in range(max(1, number - 15), number + 1))
        rights = after(rights, said(version=number, previous=rights.sid, epochs=shown))
    assert rights.epoch == 19
    assert rights.opened(19) == epoch(19, 19)
    assert rights.opened(3) is None
    assert rights.opened(0) is None


def test_small_order_keys_are_no_roots_and_no_writers() -> None:
    weak = authority.KeyDid.from_public_key(bytes([1]) + bytes(31))
    for changes in (
        {"roots": Roots(threshold=1, keys=(DATASET.did, weak))},
        {"writers": (writer(DATASET), writer(NODE), Writer(key=weak, expires_at=UNTIL))},
    ):
        with pytest.raises(Invalid, match="small order"):
            after(ONE, second(**changes))


def test_one_key_under_two_names_counts_once() -> None:
    """The dataset key signs as did:odf and as did:key; both are the same 32 bytes."""
    what = said(roots=Roots(threshold=2, keys=(DATASET.did, OTHER.did)))
    payload = statement.encode(what)
    both = msgspec.json.decode(envelope.seal(payload, DATASET))
    both["signatures"] += msgspec.json.decode(envelope.seal(payload, DATASET, as_dataset=True))["signatures"]
    twice = envelope.unseal(msgspec.json.encode(both), Authority.MAX_ENVELOPE)
    with pytest.raises(Invalid, match="1 of the 2 roots"):
        follow(ZERO, what, twice)


@pytest.mark.parametrize("bad", [{"version": 257}, {"version": 0}])
def test_version_has_bounds(bad: dict[str, int]) -> None:
    with pytest.raises(Invalid, match="statement"):
        statement.decode_any(statement.encode(said(**bad)))


def test_too_many_roots_or_writers_are_not_read() -> None:
    many = tuple(SigningKey(bytes([n]) * 32) for n in range(1, 18))
    for bad in (
        {"roots": Roots(threshold=1, keys=tuple(key.did for key in many[:10]))},
        {"writers": tuple(writer(key) for key in many)},
        {"epochs": tuple(epoch(n) for n in range(1, 18))},
        {"epochs": (epoch(base=tree(0)),)},
        {"epochs": (epoch(base=tree(1, b"short")),)},
    ):
        with pytest.raises(Invalid):
            statement.decode_any(statement.encode(said(**bad)))


@pytest.mark.slow
@given(st.integers(1, 9), st.data())
def test_a_version_needs_the_threshold_of_the_old_and_of_its_own(count: int, data: st.DataObject) -> None:
    """Whatever the sets: taken exactly when enough of both signed, and ``missing_signatures`` knows how many lack."""
    old = data.draw(st.lists(st.sampled_from(ROOTS), min_size=1, max_size=count, unique=True))
    new = data.draw(st.lists(st.sampled_from(ROOTS), min_size=1, max_size=count, unique=True))
    signers = data.draw(st.lists(st.sampled_from(ROOTS), min_size=1, unique=True))
    old_threshold, new_threshold = data.draw(st.integers(1, len(old))), data.draw(st.integers(1, len(new)))
    before = _handed_to(old, old_threshold)
    what = said(version=2, previous=before.sid, roots=_roots(new, new_threshold))
    enough = len({*old} & {*signers}) >= old_threshold and len({*new} & {*signers}) >= new_threshold
    assert (missing_signatures(before, what, [key.did for key in signers]) == 0) == enough
    if enough:
        assert after(before, what, *signers).roots == frozenset(key.did for key in new)
    else:
        with breaks("authority-signatures", Invalid):
            after(before, what, *signers)


def _roots(keys: Sequence[SigningKey], threshold: int) -> Roots:
    return Roots(threshold=threshold, keys=tuple(key.did for key in keys))


def _handed_to(keys: Sequence[SigningKey], threshold: int) -> Rights:
    what = said(roots=_roots(keys, threshold))
    return after(ZERO, what, DATASET, *keys)


def test_a_walk_stops_at_the_first_version_that_does_not_follow() -> None:
    one, two, three = said(), second(), said(version=3, previous=Multihash.sha3_256(b"no such"))
    versions = [(each, signed(each, DATASET)) for each in (one, two, three)]
    assert [rights.version for rights in walk(DATASET.dataset_id, versions[:2])] == [0, 1, 2]
    with pytest.raises(Invalid, match="version 2 that is known"):
        walk(DATASET.dataset_id, versions)
    with pytest.raises(Invalid, match="does not follow"):
        walk(DATASET.dataset_id, versions[1:])


def test_two_versions_of_one_number_are_a_proof_against_the_roots() -> None:
    one, other = (envelope.seal(statement.encode(each), DATASET) for each in (said(), said(writers=(writer(DATASET),))))
    made = proof.authority_fork(one, other)
    assert (made.kind, made.epoch, made.accused) == (proof.AUTHORITY_FORK, 1, (DATASET.did,))
    assert proof.decode(made.raw) == made == proof.authority_fork(other, one)
    with pytest.raises(Invalid, match="two statements of one version"):
        proof.authority_fork(one, one)
    stranger = envelope.seal(statement.encode(said(issued_at="2026-11-20T08:00:01Z")), OTHER)
    with pytest.raises(Invalid, match="roots"):
        proof.authority_fork(one, stranger)


def test_a_fork_of_a_later_version_needs_the_walk() -> None:
    later = second(issued_at=UNTIL, writers=(writer(DATASET, LATER), writer(NODE, LATER)))
    one, other = (envelope.seal(statement.encode(each), DATASET) for each in (second(), later))
    with breaks("proof-authority", Invalid):
        proof.authority_fork(one, other)
    assert proof.authority_fork(one, other, lambda _dataset, version: ONE if version == 1 else None).epoch == 2


def test_a_fork_under_a_later_authority_accuses_its_writer() -> None:
    def head(leaf: bytes) -> bytes:
        root = authority_tree([b"0" * 32, leaf])
        what = HeadStatement(
            dataset=DATASET.dataset_id, epoch=0, size=2, root_hash=root, authority=1, issued_at=ISSUED,
            expires_at="2026-11-27T08:00:00Z", head=SEED,
        )  # fmt: skip
        return envelope.seal(statement.encode(what), NODE)

    branches = [[b"0" * 32, b"1" * 32], [b"0" * 32, b"2" * 32]]
    leaves = [lambda start, stop, branch=branch: branch[start:stop] for branch in branches]
    one, other = head(b"1" * 32), head(b"2" * 32)
    with pytest.raises(Invalid, match="version 1 is not known"):
        proof.fork(one, other, *leaves)
    made = proof.fork(one, other, *leaves, rights_at=lambda _dataset, version: ONE if version == 1 else ZERO)
    assert (made.index, made.accused) == (1, (NODE.did,))


def authority_tree(leaves: Sequence[bytes]) -> bytes:
    return Frontier().extend(leaves).root


# Areas on cards: one text for each, and nothing that is not on Earth.

LONGITUDES, LATITUDES = (st.integers(-most * 1_000_000, most * 1_000_000) for most in (180, 90))
AREAS = st.tuples(LONGITUDES, LATITUDES, LONGITUDES, LATITUDES).map(
    lambda each: Area(each[0], min(each[1], each[3]), each[2], max(each[1], each[3]))
)


@given(AREAS)
def test_an_area_is_read_as_it_was_written(area: Area) -> None:
    text = str(area)
    assert Area.parse(text) == area
    assert len(text) <= 64, "the room that a card has"
    assert Area.parse(", ".join(text.split(","))) == area, "people write spaces"
    assert all(part.west <= part.east for part in area.parts)
    assert (len(area.parts) == 2) is (area.west > area.east)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("15.35,47.00,15.54,47.14", "15.35,47,15.54,47.14"),
        ("-9.230000, 38.69, -009.09, 38.8", "-9.23,38.69,-9.09,38.8"),
        ("-0,0,-0.0,0", "0,0,0,0"),
        ("178,-20,-178,-15", "178,-20,-178,-15"),
    ],
)
def test_every_spelling_has_one_text(text: str, written: str) -> None:
    assert str(Area.parse(text)) == written


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "15",
            "1,2,3",
            "1,2,3,4,5",
            "1,2,3,",
            "W,S,E,N",
            "nan,nan,nan,nan",
            "inf,0,1,1",
            "1e1,0,1,1",
            "0x1,0,1,1",
        ),
        *("181,0,1,1", "0,-91,1,1", "0,0,1,90.000001", "47.00,15.35,47.14,195", "0,2,1,1", "1.1234567,0,2,1"),
        *("+1,0,2,1", ".5,0,1,1", "1.,0,2,1", "1_0,0,20,1", "\N{ARABIC-INDIC DIGIT ONE},0,2,1", "1;0;2;1"),
        ",".join(["0" * 99] * 4),
    ],
)
def test_what_is_no_area_is_refused(text: str) -> None:
    with breaks("card-area", Invalid) as told:
        Area.parse(text)
    assert told.value.hint
