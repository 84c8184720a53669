"""A record made here, of a dataset's key that no daemon has: Kubo 0.43 takes it, and resolves its name."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from chain.instant import Instant
from chain.statements.keys import SigningKey
from p2p.ipfs import record
from p2p.ipfs.record import Pointer
from worlds import foreign
from worlds.eventually import PATIENCE

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
KEY = SigningKey(b"\x44" * 32)
YEAR_2100 = Instant(4_102_444_800 * 10**9)
FIRST = "/ipfs/bafkreiem4twkqzsq2aj4shbycd4yvoj2cx72vezicletlhi7dijjciqpui"
SECOND = "/ipfs/bafkqaaa"


async def test_kubo_takes_our_records(tmp_path: Path) -> None:
    name = record.name_of(KEY.dataset_id)
    async with foreign.open_kubo(tmp_path) as kubo:
        with trio.fail_after(PATIENCE):
            for sequence, value in enumerate((FIRST, SECOND)):
                file = trio.Path(tmp_path / "record")
                pointer = Pointer(value=value, sequence=sequence, expires=YEAR_2100, ttl=60 * 10**9)
                await file.write_bytes(record.seal(pointer, KEY))
                await kubo.do("routing", "put", "--allow-offline", f"/ipns/{name}", str(file))
                assert (await kubo.do("name", "resolve", "--nocache", f"/ipns/{name}")).strip() == value
            stored = await trio.to_thread.run_sync(kubo.fetch, "routing", "get", f"/ipns/{name}")
            assert record.unseal(stored, KEY.dataset_id).value == SECOND
