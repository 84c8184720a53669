"""A node that has nothing but an engine at one level of isolation: ``engine_node.py LEVEL FOLDER``.

Says in a line of JSON what it has and what the engine answered, or why there is none, then stays until it is killed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import trio

from chain.data.arrow_schema import from_arrow
from chain.errors import Fault
from chain.ids import DatasetId
from chain.model.source import SqlQueryStep, TransformSql
from engines.contract import ValidateInput, ValidateRequest, Vocab
from engines.provision.host import SparkOptions, spark_engine
from engines.provision.settings import WarmthLimits
from engines.sandbox import probe
from engines.sandbox.base import SandboxLevel

TIME = pa.timestamp("ms", "UTC")
SCHEMA = pa.schema(
    [("offset", pa.int64()), ("op", pa.int32()), ("system_time", TIME), ("event_time", TIME), ("v", pa.int64())]
)
_ALL = probe._candidates


async def main(level: SandboxLevel, folder: Path) -> None:
    def only(*given: Any) -> Iterator[Any]:
        return (candidate for candidate in _ALL(*given) if candidate.level is level)

    probe._candidates = only  # type: ignore[assignment]
    options = SparkOptions(
        scratch=folder / "scratch",
        cache=folder / "cache",
        heap="512m",
        quick=True,
        minimum=level,
        limits=WarmthLimits(start=600.0),
    )
    try:
        host = await spark_engine(options, os.environ, lambda *_: None)
    except Fault as fault:
        tell(fault=str(fault))
        return
    async with trio.open_nursery() as nursery:
        await nursery.start(host.engine.run)  # type: ignore[arg-type]
        answer = await host.engine.validate(question())
        identity = await host.engine.identity()
        image = host.choice.image
        tell(level=identity.sandbox, digest=identity.digest, ok=answer.ok, mode=answer.mode,
             image=image.manifest if image else None, prepared=bool(image and image.prepared),
             unbounded=host.choice.verdict.unbounded, grouped=host.choice.groups is not None)  # fmt: skip
        await trio.sleep_forever()


def question() -> ValidateRequest:
    given = ValidateInput(
        query_alias="a", dataset_id=DatasetId.from_public_key(b"a" * 32), schema=from_arrow(SCHEMA),
        vocab=Vocab(), changelog=False,
    )  # fmt: skip
    steps = (SqlQueryStep(query="select event_time, v from a"),)
    return ValidateRequest(
        transform=TransformSql(engine="spark", queries=steps), inputs=(given,), vocab=Vocab()
    )  # fmt: skip


def tell(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    trio.run(main, SandboxLevel(sys.argv[1]), Path(sys.argv[2]))
