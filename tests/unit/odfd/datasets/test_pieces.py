"""Files that fill in any order, and the lists that say what fits them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid
from chain.multihash import Multihash
from chain.statements.keys import SigningKey
from odfd.datasets.pieces import PieceFile, PieceLists, PieceSink
from p2p.wire import swarm
from p2p.wire.swarm import PieceList, is_signed, piece_count, piece_size, sign_list

PIECE = 64
SIZE = 10 * PIECE - 7
WHOLE = bytes(number * 7 % 251 for number in range(SIZE))
NAME = Multihash.sha3_256(WHOLE)
KEY = SigningKey(bytes(32))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swarm, "LEAST_PIECE", PIECE)


def listed(data: bytes = WHOLE, name: Multihash = NAME) -> PieceList:
    hashes = b"".join(hashlib.sha3_256(data[at : at + PIECE]).digest() for at in range(0, len(data), PIECE))
    return PieceList(name, len(data), hashes)


def piece(number: int) -> bytes:
    return WHOLE[number * PIECE : (number + 1) * PIECE]


class Store:
    """Takes over what is whole."""

    def __init__(self) -> None:
        self.kept: dict[Multihash, bytes] = {}

    def adopt(self, staged: Path, name: Multihash) -> None:
        self.kept[name] = staged.read_bytes()
        staged.unlink()


def read(file: PieceFile, offset: int, length: int) -> bytes | None:
    into = bytearray(length)
    count = file.read(offset, memoryview(into))
    return None if count is None else bytes(into[:count])


def test_pieces_in_any_order_make_the_whole(tmp_path: Path) -> None:
    file, store = PieceFile(tmp_path / "one", listed()), Store()
    for number in (9, 3, 0, 1, 2, 8, 7, 4, 6, 5):
        assert not file.is_whole
        file.put(number, piece(number))
        assert read(file, number * PIECE, PIECE) == piece(number)
    assert read(file, 0, 2 * SIZE) == WHOLE
    file.finish(store)  # type: ignore[arg-type]
    assert store.kept == {NAME: WHOLE}
    assert read(file, 5, 90) == WHOLE[5:95], "who was told of a piece has it also now"
    file.close()
    assert read(file, 0, 1) is None


def test_what_does_not_fit_is_refused_and_never_told(tmp_path: Path) -> None:
    file = PieceFile(tmp_path / "one", listed())
    sink = PieceSink(file, 1)
    assert (sink.received, sink.stop) == (PIECE, 2 * PIECE)
    sink.write(bytes(PIECE))
    with pytest.raises(Invalid, match="does not fit"):
        sink.finish()
    assert sink.received == PIECE
    assert not file.have
    assert read(file, PIECE, PIECE) is None
    file.put(1, piece(1))
    assert read(file, PIECE, PIECE + 1) is None, "a part of it is not here"
    with (tmp_path / "one").open("r+b") as damaged:
        damaged.seek(PIECE + 3)
        damaged.write(b"?")
    assert read(file, PIECE, PIECE) is None
    assert not file.have, "damage on our disk is fetched again"
    file.close()


def test_what_is_closed_early_is_the_beginning_of_the_object(tmp_path: Path) -> None:
    path = tmp_path / "one"
    file = PieceFile(path, listed())
    for number in (0, 1, 4, 9):
        file.put(number, piece(number))
    file.close()
    file.close()
    assert path.read_bytes() == WHOLE[: 2 * PIECE]
    again = PieceFile(path, listed())
    assert again.have == 0b11
    again.close()


def test_after_a_crash_whatever_fits_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "one"
    file = PieceFile(path, listed())
    for number in (1, 4):
        file.put(number, piece(number))
    again = PieceFile(path, listed())
    assert again.have == 0b1_0010
    file.close()
    again.close()


def test_a_false_list_is_found_at_the_end(tmp_path: Path) -> None:
    path, false = tmp_path / "one", bytes(SIZE)
    file, store = PieceFile(path, listed(false)), Store()
    for number in range(piece_count(SIZE)):
        file.put(number, false[number * PIECE : (number + 1) * PIECE])
    with pytest.raises(Invalid, match="not what the list"):
        file.finish(store)  # type: ignore[arg-type]
    assert not store.kept
    assert path.read_bytes() == b"", "nothing of it is gone on with"


def test_a_list_is_made_once_and_signed(tmp_path: Path) -> None:
    path, lists, opened = tmp_path / "one", PieceLists(), []

    def reading() -> Path:
        opened.append(1)
        return path

    path.write_bytes(WHOLE)
    made = [lists.of(NAME, SIZE, reading) for _ in range(3)]
    assert made[0].hashes == listed().hashes
    assert len(opened) == 1
    signed = lists.sign(made[0], KEY)
    assert lists.get(NAME) == signed
    assert is_signed(signed, KEY.public)
    assert not is_signed(signed, SigningKey(b"x" * 32).public)
    assert not is_signed(sign_list(NAME, SIZE + 1, signed.hashes, KEY), bytes(32))
    lists.forget(NAME)
    assert lists.get(NAME) is None


@given(st.integers(1, 1 << 48))
def test_pieces_cover_an_object_and_are_not_too_many(size: int) -> None:
    assert 0 < piece_count(size) <= swarm.MAX_PIECES
    assert (piece_count(size) - 1) * piece_size(size) < size <= piece_count(size) * piece_size(size)


@pytest.mark.parametrize("more", [b"", b"\0" * 7])
def test_a_whole_file_that_was_not_finished_is_the_object_and_no_more(tmp_path: Path, more: bytes) -> None:
    path = tmp_path / "one"
    file = PieceFile(path, listed())
    for number in range(10):
        file.put(number, piece(number))
    file.close()
    assert path.read_bytes() == WHOLE
    path.write_bytes(WHOLE + more)
    again = PieceFile(path, listed())
    assert again.is_whole
    assert path.read_bytes() == WHOLE
    again.close()


@given(st.permutations(range(10)), st.integers(0, 10), st.data())
def test_however_it_comes_only_what_fits_counts(
    tmp_path_factory: Any, order: list[int], until: int, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("pieces") / "one"
    file, have = PieceFile(path, listed()), set[int]()
    for number in order[:until]:
        raw = piece(number)
        if data.draw(st.booleans()):
            file.put(number, raw)
            have.add(number)
        else:
            with pytest.raises(Invalid):
                file.put(number, raw + b"?")
    assert file.have == sum(1 << number for number in have)
    file.close()
    assert WHOLE.startswith(path.read_bytes())
    path.unlink()
