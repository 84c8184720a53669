"""Libraries without what only debuggers read: they load as before, and nothing else is touched."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

import pytest

from package.symbols import strip_libraries, stripped


def library(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


def test_a_stripped_library_is_smaller_and_loads(tmp_path: Path) -> None:
    """It gives what it gave: names that the loader finds stay."""
    source = library("fastavro._read")
    copy, text = tmp_path / source.name, tmp_path / "linked.so.1.txt"
    copy.write_bytes(source.read_bytes())
    text.write_text("no library")
    (tmp_path / "name.so").symlink_to(copy)
    strip_libraries(tmp_path)
    assert copy.stat().st_size < source.stat().st_size // 2
    assert (text.read_text(), (tmp_path / "name.so").is_symlink()) == ("no library", True)
    assert ctypes.CDLL(str(copy)).PyInit__read


def test_what_is_stripped_has_nothing_more_to_strip() -> None:
    once = stripped(library("cbor2._cbor2").read_bytes())
    assert stripped(once) == once


def test_numbers_of_sections_stay() -> None:
    """NumPy's has a mapped section behind others, which its symbols name by numbers: it stays as it is."""
    whole = library("numpy._core._multiarray_umath").read_bytes()
    assert stripped(whole) == whole


@pytest.mark.parametrize("text", [b"", b"\x7fELF", b"\x7fELF\x01\x01" + bytes(64), b"#!/bin/sh\n", bytes(100)])
def test_what_is_no_library_of_this_kind_stays_as_it_is(text: bytes) -> None:
    assert stripped(text) == text
