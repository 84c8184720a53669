"""The engine process: ``python -m engines.spark --listen unix:PATH --scratch DIR``.

Prints one line when it serves, then works until it is told to stop (SIGTERM, SIGINT) or its parent is gone.
"""

from __future__ import annotations

import argparse
import functools
import os
import signal
import sys
from pathlib import Path

from chain.errors import Fault
from engines.contract import EngineIdentity
from engines.identity import FileDigests, host_manifest, identity_of
from engines.service import serve
from engines.spark.cluster import Cluster, read_settings
from engines.spark.handler import SparkHandler
from engines.spark.java import Java
from engines.spark.session import SessionOptions, java_of, start_session, stop_session
from engines.spark.settings import manifest_settings


def main(arguments: list[str] | None = None) -> int:
    """Exit code of the process."""
    args = _parser().parse_args(arguments)
    told = _told_to_stop()
    try:
        options = SessionOptions(args.scratch, args.cores, args.heap, args.archive, args.record_archive, _cluster(args))
        java = java_of(options)
        spark = start_session(options)
        try:
            handler = SparkHandler(spark, functools.cache(lambda: _identity(java, args.scratch, args.sandbox)))
            server = serve(handler, args.listen)
            sys.stdout.write(server.ready_line + "\n")
            sys.stdout.flush()
            os.read(told, 1)
            server.stop(args.grace)
        finally:
            stop_session(spark)
    except Fault as fault:
        sys.stderr.write(f"{fault}\n{fault.hint}\n")
        return fault.exit_code
    return 0


def _told_to_stop() -> int:
    """A descriptor that can be read once a signal to stop has come.

    The kernel may give a signal to any thread. Python only notes it there and runs its handler in the main thread when
    that comes to it, which a main thread asleep on a lock never does; a byte in a pipe wakes it for certain.
    """
    told, teller = os.pipe()
    os.set_blocking(teller, False)
    signal.set_wakeup_fd(teller)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)
    return told


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engines.spark", description=__doc__)
    parser.add_argument("--listen", required=True, help="unix:PATH or HOST:PORT")
    parser.add_argument("--scratch", required=True, type=Path, help="a directory of the engine's own")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--heap", default="2g", help="of the JVM, like 512m or 2g")
    parser.add_argument("--grace", type=float, default=2.0, help="seconds that requests get to end when stopping")
    parser.add_argument("--sandbox", default="none", help="the level of isolation, as told to whoever asks")
    parser.add_argument("--archive", type=Path, help="class data archive of the JVM, for a faster start")
    parser.add_argument("--master", help="a cluster to run on: spark://HOST:PORT, yarn, k8s://…; see docs/cluster.md")
    parser.add_argument("--address", default="127.0.0.1", help="of this machine, as the cluster's executors reach it")
    parser.add_argument("--settings", type=Path, help="more settings of Spark for the cluster, a name and value a line")
    parser.add_argument("--record-archive", action="store_true", help="make the archive on exit instead")
    return parser


def _cluster(args: argparse.Namespace) -> Cluster | None:
    if args.master is None:
        return None
    return Cluster(args.master, args.address, read_settings(args.settings) if args.settings else {})


def _identity(java: Java, scratch: Path, sandbox: str) -> EngineIdentity:
    digests = FileDigests(scratch / "digests.json")
    identity = identity_of(host_manifest(manifest_settings(), java.runtime, digests), sandbox)
    digests.save()
    return identity


if __name__ == "__main__":
    sys.exit(main())
