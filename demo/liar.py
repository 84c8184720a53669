"""Runs a lying node: a real daemon with real keys, whose engine's results are modified.

Whatever it derives, one number of one row is changed before the slice is hashed and signed. Nothing about its chain is
malformed: only running the transform again can tell.
"""

from __future__ import annotations

import datetime as dt
import decimal
import sys
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from chain.data.parquet import write_slice
from engines.contract import OnProgress, Success, TransformOutcome, TransformRequest, ignore_progress
from odfd.daemon import main as daemon
from odfd.services.execution.engine import NodeEngine

DAY: Final = dt.datetime(2013, 6, 14, tzinfo=dt.UTC)
CARRIER: Final = "UA"
COLUMN: Final = "delay"
TAKEN: Final = decimal.Decimal(1000)
"""Minutes of delay that vanish."""


def tell_a_lie(path: Path) -> None:
    """Removes a thousand minutes of delay from one carrier on one day."""
    table = pq.read_table(path)
    guilty = pc.and_(pc.equal(table["event_time"], pa.scalar(DAY, table["event_time"].type)),
                     pc.equal(table["carrier"], CARRIER))  # fmt: skip
    lower = pc.subtract(table[COLUMN], pa.scalar(TAKEN, pa.decimal128(18, 2))).cast(table[COLUMN].type)
    place = table.schema.get_field_index(COLUMN)
    field: Any = table.schema.field(place)
    write_slice(table.set_column(place, field, pc.if_else(guilty, lower, table[COLUMN])), path)


def corrupt() -> None:
    """Passes every transform of this process through ``tell_a_lie``."""
    honest = NodeEngine.transform

    async def transform(
        self: NodeEngine, request: TransformRequest, on_progress: OnProgress = ignore_progress
    ) -> TransformOutcome:
        answer = await honest(self, request, on_progress)
        if isinstance(answer, Success) and answer.new_offset_interval is not None:
            tell_a_lie(Path(request.new_data_path))
        return answer

    NodeEngine.transform = transform  # type: ignore[method-assign]


if __name__ == "__main__":
    corrupt()
    sys.exit(daemon.main())
