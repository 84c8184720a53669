"""Rows of a query over Arrow Flight SQL to a client on the same machine, against bare pyarrow Flight."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow.flight as flight

from bench.measure import Row, Side, Size, in_turns
from bench.node import daemon
from engines.flight.messages import pack_any

BATCH = 65_536
_READY = 1.5
"""Seconds before either side: after a query the process for the next one starts, and would be in the way."""
_SERVER = """
import sys, duckdb, pyarrow as pa, pyarrow.flight as flight
batch = pa.record_batch({{"range": pa.array(range({batch}), pa.int64())}})
class Server(flight.FlightServerBase):
    def do_get(self, context, ticket):
        if not ticket.ticket:
            return flight.GeneratorStream(batch.schema, (batch for _ in range({batches})))
        reader = duckdb.connect().sql(ticket.ticket.decode()).to_arrow_reader({batch})
        return flight.GeneratorStream(reader.schema, iter(reader))
server = Server("grpc://127.0.0.1:0")
print(server.port, flush=True)
sys.stdin.read()
"""
"""Sends one batch again and again, or the rows of a statement that DuckDB computes in the same process."""


def measure_flight(size: Size, folder: Path) -> list[Row]:
    """Measures transfers of the same batches: numbers that DuckDB makes as fast as they are read."""
    batches = size.pick(4, 400)
    rounds = size.pick(1, 9)
    ready = 0.0 if size.quick else _READY
    port = _free_port()
    sql = f"select range from range({batches * BATCH})"
    peers = (
        ("flight", "bare pyarrow Flight, the same batches", b""),
        ("flight and query", "pyarrow Flight and DuckDB in one process", sql.encode()),
    )
    found = []
    with daemon(folder, f'[flight]\nlisten = ["127.0.0.1:{port}"]\n'), _bare(batches) as bare:
        ours, theirs = flight.connect(f"grpc://127.0.0.1:{port}"), flight.connect(f"grpc://127.0.0.1:{bare}")
        command = flight.FlightDescriptor.for_command(pack_any("CommandStatementQuery", query=sql))

        def ask() -> int:
            (endpoint,) = ours.get_flight_info(command).endpoints
            return _rows(ours.do_get(endpoint.ticket))

        def fetch(ticket: bytes) -> int:
            return _rows(theirs.do_get(flight.Ticket(ticket)))

        def rested(action: Callable[[], int]) -> int:
            time.sleep(ready)
            return action()

        for name, peer, ticket in peers:
            assert ask() == fetch(ticket) == batches * BATCH
            sides = in_turns(partial(rested, ask), partial(rested, partial(fetch, ticket)), rounds)
            asked, fetched = (tuple(each - ready for each in costs) for costs in sides)
            mib = batches * BATCH * 8 / 2**20
            found.append(
                Row(
                    name=name,
                    measures="a query's rows, its plan included, its process waiting, to a client of the same machine",
                    ours=Side(name="Flight SQL", costs=asked, amount=mib, unit="MiB"),
                    peer=Side(name=peer, costs=fetched, amount=mib, unit="MiB"),
                    goal="< 1.25",
                )
            )
    return found


def _rows(reader: flight.FlightStreamReader) -> int:
    return sum(chunk.data.num_rows for chunk in reader)


@contextmanager
def _bare(batches: int) -> Iterator[int]:
    """A server in a process of its own; its port."""
    program = _SERVER.format(batch=BATCH, batches=batches)
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])
