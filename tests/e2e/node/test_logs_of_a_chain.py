"""Logs of a chain, by a real daemon and the real engine: decoded, reshaped by ``preprocess``, each of them once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odfd.ingest.clients.evm import parse_event, selector
from worlds.evm import MINTED, chain_served

eth_abi = pytest.importorskip("eth_abi")
pytestmark = [pytest.mark.e2e, pytest.mark.engine]
MANIFEST = """kind: DatasetSnapshot
version: 1
content:
  name: minted
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch:
        kind: EthereumLogs
        chainId: 1
        nodeUrl: '{url}'
        signature: {signature}
        filter: block_number > 99
      read:
        kind: Parquet
      preprocess:
        kind: Sql
        engine: spark
        query: |
          select timestamp_seconds(cast(event.time as bigint)) as event_time, block_number,
            lower(hex(event.to)) as holder, cast(event.amount as decimal(38, 0)) as amount
          from input
      merge:
        kind: Append
"""


def test_logs_are_decoded_reshaped_and_taken_once(make_with_spark: Callable[..., Any], tmp_path: Path) -> None:
    alice = make_with_spark("alice")
    alice.start()
    with chain_served() as chain:

        def mint(block: int, amount: int) -> None:
            data = eth_abi.encode(["uint256", "uint256", "uint256"], [amount, 7, 1_633_000_000]).hex()
            chain.log(block, 0, [selector(parse_event(MINTED)), "0x" + "00" * 12 + "11" * 20], f"0x{data}")

        (tmp_path / "m.yaml").write_text(MANIFEST.format(url=chain.url, signature=MINTED))
        alice.ask("apply", "-f", str(tmp_path / "m.yaml"))
        mint(100, 10**30)
        mint(160, 5)
        chain.final = 150
        alice.ask("pull", "minted")
        chain.final = 200
        alice.ask("pull", "minted")
        assert alice.ask("pull", "minted")["items"][0]["outcome"] == "up-to-date"
        rows = [row[4:] for row in alice.ask("tail", "minted")["rows"]]
    assert [(row[0], row[1], str(row[2])) for row in rows] == [(100, "11" * 20, str(10**30)), (160, "11" * 20, "5")]
    assert alice.ask("verify", "minted")["ok"]
    assert alice.stop() == 0
