"""Runs the Flight SQL process: it serves at one socket, and sends requests to the node at another.

``python -m engines.flight --place DIR --version TEXT``

Both sockets are in DIR. Prints ``ready`` when it serves, and ends when its standard input does.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from chain.struct_types import learn_struct_types
from engines.flight import ASKED, READY, SERVED
from engines.flight.node_client import NodeSocket
from engines.flight.server import FlightSqlServer, keep_traces
from engines.flight.service import FlightSql


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--place", type=Path, required=True)
    parser.add_argument("--version", required=True)
    args = parser.parse_args()
    keep_traces()
    learn_struct_types()
    service = FlightSql(NodeSocket(args.place / ASKED), args.version)
    server = FlightSqlServer(f"grpc+unix://{args.place / SERVED}", service)
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()
    while sys.stdin.buffer.read(1 << 16):
        pass
    server.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
