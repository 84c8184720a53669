"""Rows of a query over Arrow Flight SQL to a client on the same machine, against bare pyarrow Flight."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.flight as flight

from bench.measure import Row, Side, Size, in_turns
from bench.node import daemon
from engines.flight.messages import packed

BATCH = 65_536
_READY = 1.5
"""Seconds after a query in which the process for the next one starts, which would be in the way of either side."""
_BARE = """
import sys, pyarrow as pa, pyarrow.flight as flight
batch = pa.record_batch({{"range": pa.array(range({batch}), pa.int64())}})
class Bare(flight.FlightServerBase):
    def do_get(self, context, ticket):
        return flight.GeneratorStream(batch.schema, (batch for _ in range({batches})))
server = Bare("grpc://127.0.0.1:0")
print(server.port, flush=True)
sys.stdin.read()
"""


def measure_flight(size: Size, folder: Path) -> list[Row]:
    """Measures transfers of the same batches: numbers that DuckDB makes as fast as they are read."""
    batches = size.pick(4, 400)
    rounds = size.pick(1, 9)
    ready = 0.0 if size.quick else _READY
    port = _free_port()
    sql = f"select range from range({batches * BATCH})"
    with daemon(folder, f'[flight]\nlisten = ["127.0.0.1:{port}"]\n'), _bare(batches) as bare:
        ours, theirs = flight.connect(f"grpc://127.0.0.1:{port}"), flight.connect(f"grpc://127.0.0.1:{bare}")
        command = flight.FlightDescriptor.for_command(packed("CommandStatementQuery", query=sql))

        def ask() -> int:
            (endpoint,) = ours.get_flight_info(command).endpoints
            return _rows(ours.do_get(endpoint.ticket))

        def fetch() -> int:
            return _rows(theirs.do_get(flight.Ticket(b"")))

        def rested() -> int:
            time.sleep(ready)
            return fetch()

        assert ask() == fetch() == batches * BATCH
        asked, fetched = in_turns(ask, rested, rounds)
        fetched = tuple(each - ready for each in fetched)
    mib = batches * BATCH * 8 / 2**20
    return [
        Row(
            name="flight",
            measures="a query's rows, its plan included and its process waiting, to a client of the same machine",
            ours=Side(name="Flight SQL", costs=asked, amount=mib, unit="MiB"),
            peer=Side(name="bare pyarrow Flight, the same batches", costs=fetched, amount=mib, unit="MiB"),
            goal="< 1.25",
        )
    ]


def _rows(reader: flight.FlightStreamReader) -> int:
    return sum(chunk.data.num_rows for chunk in reader)


@contextmanager
def _bare(batches: int) -> Iterator[int]:
    """A server in a process of its own; its port."""
    program = _BARE.format(batch=BATCH, batches=batches)
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])
