"""The pure parts of the host: the doorway, the seal, and the check of the library."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from noise.connection import Keypair, NoiseConnection

from p2p.budget import connection_slots
from p2p.budget.connection_slots import SilentConnections
from p2p.errors import Misbehaviour, UnsupportedLibrary
from p2p.host import library
from p2p.host.noise import AES, CHACHA, MAX_SEALED, RECEIVE, Cipher, Scratch, Suite, Unsealer, computes_aes

KEY = bytes(range(32))
BOTH = pytest.mark.parametrize("suite", [CHACHA, AES], ids=lambda suite: suite.noise.decode())


class Scope:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


def test_the_oldest_of_the_most_numerous_address_leaves() -> None:
    door = SilentConnections(4)
    crowd, lone, new = [Scope() for _ in range(3)], Scope(), Scope()
    with ExitStack() as inside:
        for address, scope in [("lone", lone), *(("crowd", one) for one in crowd), ("new", new)]:
            inside.enter_context(door.silent(address, scope))
        assert [one.cancelled for one in (lone, *crowd, new)] == [False, True, False, False, False]
        assert len(door) == 4
    assert len(door) == 0


def test_a_newcomer_costs_no_look_at_every_address(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    monkeypatch.setattr(connection_slots, "prefix_of", lambda address: parsed.append(address) or address[:-2])
    door = SilentConnections(64)
    for number in range(500):
        door.add(f"address {number}", Scope())
    assert len(parsed) == 500


def unsealed(*pieces: bytes, suite: Suite = CHACHA) -> bytes:
    """The plaintext, however the pieces came."""
    unsealer, plain = Unsealer(Cipher(suite, KEY), Scratch()), b""
    for piece in pieces:
        unsealer.room()[: len(piece)] = piece
        plain += unsealer.take(len(piece))
    return plain


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 90)), max_size=60), st.binary(min_size=1, max_size=200))
def test_connections_that_share_a_scratch_do_not_hear_each_other(turns: list[tuple[bool, int]], said: bytes) -> None:
    keys, scratch = {False: KEY, True: KEY[::-1]}, Scratch()
    wires = {who: bytes(Cipher(CHACHA, key).seal([bytes([who]) + said] * 9)) for who, key in keys.items()}
    unsealers = {who: Unsealer(Cipher(CHACHA, key), scratch) for who, key in keys.items()}
    heard = {False: b"", True: b""}
    for who, count in turns:
        piece, wires[who] = wires[who][:count], wires[who][count:]
        unsealers[who].room()[: len(piece)] = piece
        heard[who] += unsealers[who].take(len(piece))
    for who in keys:
        assert ((bytes([who]) + said) * 9).startswith(heard[who])


@BOTH
@given(st.lists(st.binary(max_size=300), max_size=10), st.lists(st.integers(0, 5000), max_size=8))
def test_sealed_messages_open_however_they_are_split(suite: Suite, messages: list[bytes], cuts: list[int]) -> None:
    wire = bytes(Cipher(suite, KEY).seal(messages[:5]))
    cipher = Cipher(suite, KEY, len(messages[:5]))
    wire += bytes(cipher.seal(messages[5:]))
    edges = [0, *sorted(cut % (len(wire) + 1) for cut in cuts), len(wire)]
    pieces = (wire[start:end] for start, end in itertools.pairwise(edges))
    assert unsealed(*pieces, suite=suite) == b"".join(messages)


@BOTH
def test_what_is_sealed_is_what_the_noise_library_opens(suite: Suite) -> None:
    """Two ends of a handshake by it: the keys are theirs, and its own cipher opens ours and seals for ours."""
    ends = [NoiseConnection.from_name(suite.noise) for _ in range(2)]
    ends[0].set_as_initiator()
    ends[1].set_as_responder()
    for end, key in zip(ends, (KEY, KEY[::-1]), strict=True):
        end.set_keypair_from_private_bytes(Keypair.STATIC, key)
        end.start_handshake()
    for teller, listener in ((0, 1), (1, 0), (0, 1)):
        ends[listener].read_message(ends[teller].write_message())
    initiator = ends[0].noise_protocol
    out = Cipher(suite, initiator.cipher_state_encrypt.k)
    wire = bytes(out.seal([b"hello", b"world"]))
    assert [ends[1].decrypt(wire[2:23]), ends[1].decrypt(wire[25:])] == [b"hello", b"world"]
    into, plain = Cipher(suite, initiator.cipher_state_decrypt.k), memoryview(bytearray(5))
    assert into.open(memoryview(ends[1].encrypt(b"again")), plain) == 5
    assert plain == b"again"


def test_a_key_seals_so_many_messages_and_the_next_comes_of_it() -> None:
    """REKEY of the Noise specification, section 4.2, as its library computes it; the other end does the same."""
    suite = dataclasses.replace(AES, lifetime=3)
    library = NoiseConnection.from_name(AES.noise).noise_protocol.cipher_class()
    key, wire = KEY, b""
    for count in range(8):
        library.initialize(key)
        sealed = library.encrypt(key, count, b"", b"said")
        wire += len(sealed).to_bytes(2, "big") + sealed
        key = library.rekey(key) if count % 3 == 2 else key
    assert bytes(Cipher(suite, KEY).seal([b"said"] * 8)) == wire
    assert unsealed(wire, suite=suite) == b"said" * 8


@pytest.mark.parametrize(
    ("said", "has"),
    [
        ("processor: 0\nflags\t\t: fpu aes avx pclmulqdq\n", True),
        ("processor: 0\nFeatures\t: fp asimd aes pmull sha1\n", True),
        ("flags: fpu pclmulqdq vaes\n", False),
        ("flags: fpu aes\n", False),
        ("Features: half thumb\nmodel name: aes pmull\n", False),
        ("", False),
    ],
)
def test_aes_is_offered_where_the_processor_computes_it(said: str, has: bool) -> None:
    assert computes_aes(said) is has


def test_as_much_as_is_received_at_once_is_opened_beside_an_unfinished_message() -> None:
    messages = [bytes([number]) * 65_519 for number in range(5)]
    wire = bytes(Cipher(CHACHA, KEY).seal(messages))
    begun = MAX_SEALED - 1
    assert unsealed(wire[:begun], wire[begun : begun + RECEIVE], wire[begun + RECEIVE :]) == b"".join(messages)


@pytest.mark.parametrize("size", range(16))
def test_a_message_without_a_tag_is_a_violation(size: int) -> None:
    with pytest.raises(Misbehaviour, match="does not open"):
        unsealed(size.to_bytes(2, "big") + bytes(size))


@given(st.integers(0, 10_000))
def test_a_flipped_bit_is_a_violation(position: int) -> None:
    wire = Cipher(CHACHA, KEY).seal([b"hello", b"world"])
    at = 2 + position % 21
    wire[at] ^= 1
    with pytest.raises(Misbehaviour, match="does not open"):
        unsealed(bytes(wire))


def test_messages_in_another_order_do_not_open() -> None:
    first, second = (bytes(one) for one in (Cipher(CHACHA, KEY).seal([b"1"]), Cipher(CHACHA, KEY, 1).seal([b"2"])))
    with pytest.raises(Misbehaviour):
        unsealed(second + first)


def test_another_version_of_the_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "version", lambda _: "0.9.0")
    with pytest.raises(UnsupportedLibrary, match=r"0\.9\.0") as caught:
        library.check_version()
    assert "libp2p==0.8.1" in caught.value.hint


def test_ecdsa_is_refused_by_name() -> None:
    from fastecdsa.encoding.sec1 import SEC1Encoder  # type: ignore[import-not-found]

    with pytest.raises(UnsupportedLibrary, match="ECDSA keys"):
        SEC1Encoder.decode_public_key(b"", None)


ABSENT_NAMES = [
    (part, module, name) for part in library.ABSENT for module, names in part.modules.items() for name in names
]


@pytest.mark.parametrize(
    ("part", "module", "name"), ABSENT_NAMES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_absent_names_say_why_they_are_absent(part: library.LibraryPart, module: str, name: str) -> None:
    stand_in = getattr(importlib.import_module(module), name)
    if not part.instances:
        with pytest.raises(UnsupportedLibrary, match=re.escape(part.reason)):
            stand_in()
    with pytest.raises(UnsupportedLibrary, match=re.escape(part.reason)):
        stand_in.attribute  # noqa: B018 - what is asked for is not what matters


def test_absent_names_are_names_of_the_library() -> None:
    folder = Path(next(iter(importlib.import_module("libp2p").__path__))).parent
    for part, module, name in ABSENT_NAMES:
        if part is not library.ECDSA:
            place = folder.joinpath(*module.split("."))
            source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
            assert re.search(rf"^(class|def|async def|from .*) {name}\b|, {name}\b", source.read_text(), re.MULTILINE)


@pytest.mark.slow
def test_a_host_loads_neither_quic_nor_discoveries() -> None:
    program = "import sys, p2p.host.host; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "libp2p" in done.stdout.split()
    assert not {"aioquic", "dns", "zeroconf", "requests", "httpx", "miniupnpc"} & set(done.stdout.split())


@pytest.mark.slow
def test_the_library_can_be_had_as_it_is() -> None:
    program = "from p2p.host import library; library.restore(); import libp2p; print(libp2p.new_host.__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "new_host\n"
