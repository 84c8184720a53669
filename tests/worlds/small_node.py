"""``odfd`` with the small engine: everything else is real, so that it starts at once and computes without a JVM.

With ``KILL_AT=N`` in its environment it kills itself (SIGKILL) at the Nth durable step of its objects and chains; with
``KILL_PUSH=N`` at the Nth step in which a push becomes durable, or is let go when datasets have it; with
``KILL_MOVE=N`` at the Nth beginning or end of a move of a slice to a volume or back; with
``KILL_EFFECT=N`` after the Nth effect of commands on renditions, or the Nth step in which a mirror follows them.
With ``KILL_FINALIZER=before`` or ``after`` it kills itself when what a deleted resource made is to be undone, or when
that is done and not noted yet.
With ``STOP_LASTING=FIFO`` it, or ``odfctl`` in its place, stops (SIGSTOP) before each of its steps that last: each
sync, each change of the names of files and folders, each script of a migration. It says there what that step is.
Whoever reads that looks at what a kill would leave now, and has it go on (``follow_steps``).
With ``NAME_SECONDS=N`` it signs names of IPFS for so long, and again after a third of it.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from chain.instant import SECOND
from chain.store.database import Database
from config.model import Settings
from odfd.cli import start
from odfd.control.assembly import Assembly, Context
from odfd.daemon import main
from odfd.ipfs import publishing
from odfd.node.assembly import assembly_of, services_of
from odfd.node.features import NodeFeatures
from odfd.runtime.hanging_calls import invoke
from odfd.services.feature import InForce
from odfd.services.resources import reconciler
from odfd.services.volumes.volume_paths import VolumeFolder
from odfd.store.directory import open_state_directory
from worlds.node_world import SmallEngine
from worlds.power import each_sync

NAMING: Final = frozenset(
    {"os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "os.truncate", "shutil.copyfile"}
)
"""What Python tells of when a name of a file or folder changes, or a file is copied."""


@contextmanager
def build_node(settings: Settings, context: Context) -> Iterator[Assembly]:
    engine: Any = SmallEngine()
    if seconds := os.environ.get("NAME_SECONDS"):
        _sign_names_for(int(seconds))
    in_force = InForce(settings)
    terms = in_force.home_terms(context.clock, context.bus)
    with open_state_directory(Path(settings.node.state_dir), terms=terms) as home:
        if at := os.environ.get("KILL_AT"):
            home.objects._step = home.chains._step = killing(int(at))
        if when := os.environ.get("KILL_FINALIZER"):
            _kill_in_finalizers(when)
        if at := os.environ.get("KILL_PUSH"):
            _kill_in_pushes(home.spool, killing(int(at)))
        if at := os.environ.get("KILL_MOVE"):
            _kill_in_moves(killing(int(at)))
        features = NodeFeatures(home, in_force, context, engine)
        services = services_of(features)
        if at := os.environ.get("KILL_EFFECT"):
            step = killing(int(at))
            services.renditions._effects.step = services.renditions.upkeep.step = step
            handovers = features.renditions.handovers
            handovers.step = handovers.shards.step = step
            handovers.loop._start_after = 0.0
        yield assembly_of(features, services)


@contextmanager
def stopped_at_what_lasts() -> Iterator[None]:
    """``STOP_LASTING``; see the module."""
    told = os.environ.get("STOP_LASTING")
    if not told:
        yield
        return
    lock = threading.Lock()
    pipe = os.open(told, os.O_WRONLY)

    def stop(what: str) -> None:
        with lock:  # of two threads that are at a step, the other one comes to it later
            os.write(pipe, f"{os.getpid()} {what}\n".encode())
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # it returns when all threads go on

    run = Database._run

    def run_script(self: Database, connection: Any, room: str, script: Any) -> None:
        stop(f"migrates {room}")
        run(self, connection, room, script)

    Database._run = run_script  # type: ignore[method-assign,assignment]
    sys.addaudithook(lambda event, _: stop(event) if event in NAMING else None)
    with each_sync(lambda what: stop(f"syncs {what.name}" if isinstance(what, Path) else "syncs")):
        yield


def follow_steps(fifo: Path) -> Iterator[str]:
    """Yields the steps of a process that has ``STOP_LASTING``, which is stopped meanwhile, until it ends."""
    with fifo.open() as told, suppress(ProcessLookupError, FileNotFoundError):  # it is killed at the end
        for line in told:
            pid, _, step = line.rstrip("\n").partition(" ")
            while not is_stopped(int(pid)):  # it is a few instructions away
                os.sched_yield()
            yield step
            os.kill(int(pid), signal.SIGCONT)


def is_stopped(pid: int) -> bool:
    """Whether no thread of a process runs."""
    stats = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return all(each.rpartition(") ")[2].startswith("T") for each in stats)


def killing(at: int) -> Callable[[str], None]:
    """Counts steps, and is the last thing that this process does at the one."""
    steps = itertools.count(1)

    def step(_what: str) -> None:
        if next(steps) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    return step


def _sign_names_for(seconds: int) -> None:
    publishing.LIFETIME = seconds * SECOND  # type: ignore[misc]
    publishing.RENEW = seconds * SECOND // 3  # type: ignore[misc]
    reconciler.DRIFT_SECONDS = seconds / 10  # type: ignore[misc,assignment]


def _kill_in_finalizers(when: str) -> None:
    async def cut(self: Any, gone: Any) -> None:
        if when == "after":
            await invoke(self._controllers.of(gone.type).finalize, gone)
        os.kill(os.getpid(), signal.SIGKILL)

    reconciler.Reconciler._finalize = cut  # type: ignore[method-assign]


def _kill_in_pushes(spool: Any, step: Callable[[str], None]) -> None:
    """Steps: the beginning of a transaction, its end before and after the commit; a large body before and after it lies
    in its file.
    """
    write, stage = spool._database.write, spool._stage

    @contextmanager
    def stepping() -> Iterator[Any]:
        step("begins")
        with write() as connection:
            yield connection
            step("is written")
        step("is committed")

    def staging(push: Any) -> Path:
        step("stages")
        path: Path = stage(push)
        step("is staged")
        return path

    spool._database = SimpleNamespace(read=spool._database.read, write=stepping)
    spool._stage = staging


def _kill_in_moves(step: Callable[[str], None]) -> None:
    def stepping(move: Callable[..., Any]) -> Callable[..., Any]:
        def moving(*args: Any) -> Any:
            step("begins")
            done = move(*args)
            step("is done")
            return done

        return moving

    VolumeFolder.put, VolumeFolder.delete = stepping(VolumeFolder.put), stepping(VolumeFolder.delete)  # type: ignore[method-assign]
    VolumeFolder.fetch = stepping(VolumeFolder.fetch)  # type: ignore[method-assign]


def odfd(words: Sequence[str] | None = None) -> None:
    """The program, with ``build_node`` in place of the node's own."""
    main.SERVICES = __name__
    with stopped_at_what_lasts():
        sys.exit(main.main(words))


def odfctl(_words: Sequence[str]) -> None:
    """The command line, with the words of ``sys.argv``."""
    with stopped_at_what_lasts():
        sys.exit(start())
