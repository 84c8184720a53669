"""The daemon's frame as a process of its own, over a fake node: real signals, sockets and settings, no services."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from config.load import load
from config.model import Settings
from config.schema import ConfigError
from odfd.api.routes import application
from odfd.control.assembly import Assembly, Context
from odfd.daemon import wiring
from odfd.errors import exit_code, render, sole_fault
from odfd.obs import log

sys.path.insert(0, str(Path(__file__).parents[2]))
from worlds.fake_node import FakeNode


@contextmanager
def build(settings: Settings, context: Context) -> Iterator[Assembly]:
    def reload(after: Settings) -> None:
        context.events.emit("settings.reloaded", after.node.name)

    yield Assembly(application(FakeNode(context.board, context.events), context.logger), reload=reload)
    context.logger.info("closed")


def main(state: str, file: str) -> int:
    def again() -> object:
        return load(os.environ, Path(file), {"node.state-dir": state})

    try:
        loaded = again()
        log.configure("info", "json")
        trio.run(wiring.run, loaded, again, build, os.environ)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 5
    except Exception as error:
        fault = sole_fault(error)
        if fault is None:
            raise
        sys.stderr.write(render(fault) + "\n")
        return exit_code(fault)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
