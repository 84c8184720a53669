"""The pure parts of the host: the doorway, the seal, and the check of the library."""

from __future__ import annotations

import itertools
import sys
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.errors import UnsupportedLibrary, Violation
from p2p.host import library
from p2p.host.door import Door
from p2p.host.noise import MAX_SEALED, RECEIVE, Cipher, Scratch, Unsealer

KEY = bytes(range(32))


class Scope:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


def test_the_oldest_of_the_most_numerous_address_leaves() -> None:
    door = Door(4)
    crowd, lone, new = [Scope() for _ in range(3)], Scope(), Scope()
    with ExitStack() as inside:
        for address, scope in [("lone", lone), *(("crowd", one) for one in crowd), ("new", new)]:
            inside.enter_context(door.pending(address, scope))
        assert [one.cancelled for one in (lone, *crowd, new)] == [False, True, False, False, False]
        assert len(door) == 4
    assert len(door) == 0


def unsealed(*pieces: bytes) -> bytes:
    """The plaintext, however the pieces came."""
    unsealer, plain = Unsealer(Cipher(KEY, 0), Scratch()), b""
    for piece in pieces:
        unsealer.room()[: len(piece)] = piece
        plain += unsealer.take(len(piece))
    return plain


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 90)), max_size=60), st.binary(min_size=1, max_size=200))
def test_connections_that_share_a_scratch_do_not_hear_each_other(turns: list[tuple[bool, int]], said: bytes) -> None:
    keys, scratch = {False: KEY, True: KEY[::-1]}, Scratch()
    wires = {who: bytes(Cipher(key, 0).seal([bytes([who]) + said] * 9)) for who, key in keys.items()}
    unsealers = {who: Unsealer(Cipher(key, 0), scratch) for who, key in keys.items()}
    heard = {False: b"", True: b""}
    for who, count in turns:
        piece, wires[who] = wires[who][:count], wires[who][count:]
        unsealers[who].room()[: len(piece)] = piece
        heard[who] += unsealers[who].take(len(piece))
    for who in keys:
        assert ((bytes([who]) + said) * 9).startswith(heard[who])


@given(st.lists(st.binary(max_size=300), max_size=10), st.lists(st.integers(0, 5000), max_size=8))
def test_sealed_messages_open_however_they_are_split(messages: list[bytes], cuts: list[int]) -> None:
    wire = bytes(Cipher(KEY, 0).seal(messages[:5]))
    cipher = Cipher(KEY, len(messages[:5]))
    wire += bytes(cipher.seal(messages[5:]))
    edges = [0, *sorted(cut % (len(wire) + 1) for cut in cuts), len(wire)]
    assert unsealed(*(wire[start:end] for start, end in itertools.pairwise(edges))) == b"".join(messages)


def test_as_much_as_is_received_at_once_is_opened_beside_an_unfinished_message() -> None:
    messages = [bytes([number]) * 65_519 for number in range(5)]
    wire = bytes(Cipher(KEY, 0).seal(messages))
    begun = MAX_SEALED - 1
    assert unsealed(wire[:begun], wire[begun : begun + RECEIVE], wire[begun + RECEIVE :]) == b"".join(messages)


@pytest.mark.parametrize("size", range(16))
def test_a_message_without_a_tag_is_a_violation(size: int) -> None:
    with pytest.raises(Violation, match="does not open"):
        unsealed(size.to_bytes(2, "big") + bytes(size))


@given(st.integers(0, 10_000))
def test_a_flipped_bit_is_a_violation(position: int) -> None:
    wire = Cipher(KEY, 0).seal([b"hello", b"world"])
    at = 2 + position % 21
    wire[at] ^= 1
    with pytest.raises(Violation, match="does not open"):
        unsealed(bytes(wire))


def test_messages_in_another_order_do_not_open() -> None:
    first, second = (bytes(one) for one in (Cipher(KEY, 0).seal([b"1"]), Cipher(KEY, 1).seal([b"2"])))
    with pytest.raises(Violation):
        unsealed(second + first)


def test_another_version_of_the_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "version", lambda _: "0.9.0")
    with pytest.raises(UnsupportedLibrary, match=r"0\.9\.0") as caught:
        library.check_version()
    assert "libp2p==0.8.1" in caught.value.hint


@pytest.mark.skipif(not hasattr(sys.modules.get("fastecdsa"), "curve"), reason="the real fastecdsa is installed")
def test_ecdsa_is_refused_by_name() -> None:
    from fastecdsa.encoding.sec1 import SEC1Encoder  # type: ignore[import-not-found]

    with pytest.raises(UnsupportedLibrary, match="ECDSA keys"):
        SEC1Encoder.decode_public_key(b"", None)
