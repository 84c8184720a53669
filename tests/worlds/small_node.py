"""``odfd`` with the small engine: everything else is real, so that it starts at once and computes without a JVM.

With ``KILL_AT=N`` in its environment it kills itself (SIGKILL) at the Nth durable step of its objects and chains; with
``KILL_EFFECT=N`` after the Nth effect of commands on renditions, or the Nth step in which a mirror follows them.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from config.model import Settings
from odfd.control.assembly import Assembly, Context
from odfd.daemon import main
from odfd.node.assembly import assembly_of
from odfd.node.handlers import services_of
from odfd.node.parts import NodeParts
from odfd.state.directory import open_state_directory
from worlds.node_world import SmallEngine


@contextmanager
def build_node(settings: Settings, context: Context) -> Iterator[Assembly]:
    engine: Any = SmallEngine()
    with open_state_directory(Path(settings.node.state_dir)) as home:
        if at := os.environ.get("KILL_AT"):
            home.objects._step = home.chains._step = killing(int(at))
        parts = NodeParts(home, settings, context, engine)
        services = services_of(parts)
        if at := os.environ.get("KILL_EFFECT"):
            step = killing(int(at))
            services.renditions._effects.step = services.renditions.upkeep.step = step
            parts.handovers.step = parts.handovers.shards.step = step
            parts.handovers.loop._start_after = 0.0
        yield assembly_of(parts, services)


def killing(at: int) -> Callable[[str], None]:
    """Counts steps, and is the last thing that this process does at the one."""
    steps = itertools.count(1)

    def step(_: str) -> None:
        if next(steps) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    return step


def odfd(words: Sequence[str] | None = None) -> None:
    """The program, with ``build_node`` in place of the node's own."""
    main.SERVICES = __name__
    sys.exit(main.main(words))
