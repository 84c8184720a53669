"""A daemon with the small engine: everything else is real, so that it starts at once and computes without a JVM."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

from config.load import load
from config.model import Settings
from odfd.control.assembly import Assembly, Context
from odfd.daemon import wiring
from odfd.errors import exit_code, render, sole_fault
from odfd.node.assembly import assembly_of
from odfd.node.handlers import services_of
from odfd.node.parts import NodeParts
from odfd.obs import log
from odfd.state.directory import open_state_directory

sys.path.insert(0, str(Path(__file__).parents[2]))
from worlds.node_world import SmallEngine


@contextmanager
def build(settings: Settings, context: Context) -> Iterator[Assembly]:
    engine: Any = SmallEngine()
    with open_state_directory(Path(settings.node.state_dir)) as home:
        parts = NodeParts(home, settings, context, engine)
        yield assembly_of(parts, services_of(parts))


def main(state: str) -> int:
    def again() -> Any:
        return load(os.environ, None, {"node.state-dir": state})

    try:
        log.configure("info", "json")
        trio.run(wiring.run, again(), again, build, os.environ)
    except Exception as error:
        fault = sole_fault(error)
        if fault is None:
            raise
        sys.stderr.write(render(fault) + "\n")
        return exit_code(fault)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
