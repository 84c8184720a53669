"""What whoever uses IPFS relies on: the same of a real Kubo and of the one in memory."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from chain.errors import Remote
from chain.instant import Instant
from chain.statements.keys import SigningKey
from p2p.ipfs import record
from p2p.ipfs.record import Pointer
from p2p.kubo.rpc import AddedFile, Kubo
from worlds import foreign
from worlds.memory_ipfs import MemoryIpfs

KEY = SigningKey(b"\x61" * 32)
REAL = pytest.param("kubo", marks=[pytest.mark.e2e, pytest.mark.slow])


@pytest.fixture(params=["memory", REAL])
async def ipfs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:
        if request.param == "memory":
            yield await stack.enter_async_context(MemoryIpfs())
        else:
            daemon = await stack.enter_async_context(foreign.open_kubo(tmp_path / "repo"))
            yield await stack.enter_async_context(Kubo(daemon.api))


async def whole(content: Any) -> bytes:
    async with content as parts:
        return b"".join([part async for part in parts])


async def test_files_come_again_and_stay(ipfs: Any, tmp_path: Path) -> None:
    on_disk = tmp_path / "large"
    on_disk.write_bytes(bytes(range(256)) * 4000)
    await ipfs.add("/odfd/d/blocks", [AddedFile("b", b"2"), AddedFile("c", b"")])
    await ipfs.add("/odfd/d/blocks", [AddedFile(name, name.encode()) for name in "abcd"] + [AddedFile("z", on_disk)])
    await ipfs.add("/odfd/d/blocks", [AddedFile("b", b"other")])
    said = [await ipfs.read(f"/odfd/d/blocks/{name}", 10) for name in "abcde"]
    assert said == [b"a", b"2", b"", b"d", None]
    root = await ipfs.root_of("/odfd/d")
    assert await whole(ipfs.open(f"/ipfs/{root}/blocks/z", 100)) == on_disk.read_bytes()[100:]
    assert await ipfs.size_of(f"/ipfs/{root}/blocks/z") == on_disk.stat().st_size
    with tarfile.open(fileobj=io.BytesIO(await whole(ipfs.archive(f"/ipfs/{root}/blocks")))) as archive:
        files = {member.name: member.size for member in archive if member.isfile()}
    assert files == {"blocks/a": 1, "blocks/b": 1, "blocks/c": 0, "blocks/d": 1, "blocks/z": on_disk.stat().st_size}


async def test_a_root_changes_with_what_is_below_it_and_only_then(ipfs: Any) -> None:
    assert await ipfs.root_of("/odfd/e") is None
    roots = []
    for head in (b"one", b"two", b"two", b""):
        await ipfs.replace("/odfd/e/refs/head", head)
        roots.append(await ipfs.root_of("/odfd/e"))
        assert await ipfs.read("/odfd/e/refs/head", 10) == head
    assert len(set(roots)) == 3
    assert roots[1] == roots[2]
    assert [await ipfs.cat(f"/ipfs/{root}/refs/head", 10) for root in roots] == [b"one", b"two", b"two", b""]
    await ipfs.remove("/odfd/e")
    await ipfs.remove("/odfd/e")
    assert await ipfs.root_of("/odfd/e") is None
    assert await ipfs.cat(f"/ipfs/{roots[0]}/refs/head", 10) == b"one"


async def test_what_is_not_there_or_too_large(ipfs: Any) -> None:
    await ipfs.replace("/odfd/f/x", b"12345")
    root = await ipfs.root_of("/odfd/f")
    assert await ipfs.cat(f"/ipfs/{root}/y", 10) is None
    assert await ipfs.size_of(f"/ipfs/{root}/y/z") is None
    for asked in (ipfs.cat(f"/ipfs/{root}/x", 4), ipfs.read("/odfd/f/x", 4), whole(ipfs.open(f"/ipfs/{root}/y"))):
        with pytest.raises(Remote):
            await asked


async def test_names_point_where_their_newest_record_says(ipfs: Any) -> None:
    name = record.name_of(KEY.dataset_id)
    assert await ipfs.record(name) is None
    for sequence in (3, 4):
        pointer = Pointer(value="/ipfs/bafkqaaa", sequence=sequence, expires=Instant(4_102_444_800 * 10**9), ttl=10**9)
        await ipfs.put_record(name, record.seal(pointer, KEY))
        assert record.unseal(await ipfs.record(name), KEY.dataset_id) == pointer
