"""Runs the engine process: ``python -m engines.spark``, or ``odfd engine spark`` for one without a daemon.

Prints one line when it is ready, and if asked one whenever Java starts or ends, then serves until it is told to stop
(SIGTERM, SIGINT) or its parent is gone. Java starts with the first request that needs it: most ingests need none (ADR
79). It reads and writes the paths that requests name, with the rights of its user, and keeps nothing from one start to
the next.
"""

from __future__ import annotations

import argparse
import functools
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from chain.errors import Fault, Invalid
from chain.struct_types import learn_struct_types
from chain.terminal_text import visible
from engines.contract import EngineIdentity
from engines.identity import FileDigests, host_manifest, identity_of
from engines.listen_address import DEFAULT, SESSION, EngineAddress, check_free, parse_address
from engines.service import ServiceLimits, serve
from engines.spark.handler import SparkHandler
from engines.spark.runtime.cluster import Cluster, read_settings
from engines.spark.runtime.java import Java, dump_base, find_archive, find_java
from engines.spark.runtime.jvm import Jvm
from engines.spark.runtime.limits import DiskWatch
from engines.spark.runtime.session import SessionOptions
from engines.spark.runtime.settings import MEMORY_BEYOND_HEAP, heap_bytes, manifest_settings
from engines.spark.runtime.warm_up import rehearse

GIB: Final = 1 << 30


def main(arguments: list[str] | None = None) -> int:
    """Runs the engine. Returns the exit code of the process."""
    args = _parser().parse_args(arguments)
    stopping = _stop_signals()
    learn_struct_types()
    try:
        address = parse_address(args.listen)
        if not args.record_archive:
            check_free(address)  # before a cluster is asked for executors: that takes seconds
        with _scratch(args.scratch) as scratch:
            _limit_memory(heap_bytes(args.heap) + MEMORY_BEYOND_HEAP)
            java = find_java(os.environ, scratch)
            archive = args.archive if args.record_archive else args.archive or find_archive(scratch, java)
            options = SessionOptions(
                scratch=scratch,
                cores=args.cores,
                heap=args.heap,
                quick=args.quick,
                archive=archive,
                record=args.record_archive,
                cluster=_cluster(args, scratch),
            )
            if args.record_archive:
                _record(options, java)
            else:
                _serve(args, address, options, java, stopping)
    except Fault as fault:
        sys.stderr.write(visible(f"{fault}\n{fault.hint}\n"))
        return fault.exit_code
    return 0


def _record(options: SessionOptions, java: Java) -> None:
    """Starts once and runs a few queries, to record the class data archive, which is written as the JVM ends."""
    if options.archive is None:
        raise Invalid("the archive's path is missing", rule="engine-archive", hint="--archive FILE")
    dump_base(java, options.archive)
    spark = Jvm(options)
    try:
        rehearse(spark.session(), options.scratch / "rehearsal")
    finally:
        spark.stop()


def _serve(args: argparse.Namespace, address: EngineAddress, options: SessionOptions, java: Java, told: int) -> None:
    """Serves until a byte can be read from ``told``."""
    is_told = False
    spark = Jvm(options, lambda state: _tell(state) if is_told else None)
    try:
        if options.cluster is not None:
            spark.session()  # a cluster without executors is of no use to anybody
        handler = SparkHandler(
            spark,
            functools.cache(lambda: _identity(java, options.scratch, args.sandbox)),
            DiskWatch(options.scratch / "spark", int(args.disk * GIB)),
        )
        server = serve(handler, str(address), ServiceLimits(deadline=args.deadline))
        if not address.is_local:
            sys.stderr.write(f"any client that reaches {server.address} can read and write the files of this user\n")
        # In one write, so that who reads the first line knows the second.
        more = f"{SESSION}{spark.state.state}\n" if args.tell_session else ""
        sys.stdout.write(f"{server.ready_line}\n{more}")
        sys.stdout.flush()
        is_told = args.tell_session
        os.read(told, 1)
        server.stop(args.grace)
    finally:
        spark.stop()


def _tell(state: str) -> None:
    """Tells the parent what the session is, in one write: threads may tell at the same time."""
    sys.stdout.write(f"{SESSION}{state}\n")
    sys.stdout.flush()


@contextmanager
def _scratch(given: Path | None) -> Iterator[Path]:
    """Yields the folder for Spark's spills and for rows in transit; one of our own is removed at the end."""
    if given is not None:
        yield given.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="odf-engine-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _limit_memory(most: int) -> None:
    """Limits the private memory, in bytes, of this process and of each that it starts, as the JVM. A
    lower limit stays."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    known = [limit for limit in (soft, hard, most) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(known), hard))


def _stop_signals() -> int:
    """Returns a descriptor that becomes readable when a signal to stop has come.

    The kernel may give a signal to any thread. Python only notes it there and runs its handler later in the main
    thread, which never happens while that sleeps on a lock; a byte in a pipe wakes it for certain.
    """
    told, teller = os.pipe()
    os.set_blocking(teller, False)
    signal.set_wakeup_fd(teller)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)
    return told


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="odfd engine spark",
        description="The Spark engine by itself: engine.Engine of Open Data Fabric over gRPC. It reads and writes the "
        "paths that requests name.",
        epilog="example:  odfd engine spark --listen 127.0.0.1:2884",
    )
    parser.add_argument(
        "--listen",
        default=DEFAULT,
        metavar="ADDRESS",
        help="HOST:PORT, :PORT for this machine alone, or unix:PATH (%(default)s)",
    )
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="for what Spark spills (one that goes with it)")
    parser.add_argument("--cores", type=int, default=2, help="for Spark's tasks (%(default)s)")
    parser.add_argument("--heap", default="2g", help="of the JVM, like 512m or 2g (%(default)s)")
    parser.add_argument(
        "--deadline", type=float, metavar="SECONDS", help="for one request, waiting included (the caller's own)"
    )
    parser.add_argument("--disk", type=float, default=20.0, metavar="GIB", help="that Spark may spill (%(default)s)")
    parser.add_argument("--grace", type=float, default=2.0, help="seconds that requests get to end when stopping")
    parser.add_argument("--sandbox", default="none", help="the level of isolation that the engine states to clients")
    parser.add_argument("--archive", type=Path, help="class data archive of the JVM, for a faster start")
    parser.add_argument("--quick", action="store_true", help="to start: half the CPU, slower where much is computed")
    parser.add_argument("--master", help="a cluster to run on: spark://HOST:PORT, yarn, k8s://…; odfctl docs cluster")
    parser.add_argument("--address", default="127.0.0.1", help="of this machine, as the cluster's executors reach it")
    parser.add_argument("--settings", type=Path, help="more settings of Spark for the cluster, a name and value a line")
    parser.add_argument("--tell-session", action="store_true", help="print a line whenever Java starts or ends")
    parser.add_argument("--record-archive", action="store_true", help="make the archive, and serve no client")
    return parser


def _cluster(args: argparse.Namespace, scratch: Path) -> Cluster | None:
    if args.master is None:
        return None
    # Executors must be able to read a transaction's temporary files: they go with the scratch, on shared storage.
    tempfile.tempdir = str(scratch / "tmp")
    return Cluster(args.master, args.address, read_settings(args.settings) if args.settings else {})


def _identity(java: Java, scratch: Path, sandbox: str) -> EngineIdentity:
    digests = FileDigests(scratch / "digests.json")
    identity = identity_of(host_manifest(manifest_settings(), java.runtime, digests), sandbox)
    digests.save()
    return identity


if __name__ == "__main__":
    sys.exit(main())
