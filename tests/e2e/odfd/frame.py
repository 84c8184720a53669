"""The daemon's frame as a process of its own, over a fake node: real signals, sockets and settings, no services."""

from __future__ import annotations

import importlib.util
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

FAKE = Path(__file__).parents[2] / "contract" / "odfd" / "fake_node.py"


@contextmanager
def build(settings: Settings, context: Context) -> Iterator[Assembly]:
    spec = importlib.util.spec_from_file_location("fake_node", FAKE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def reload(after: Settings) -> None:
        context.events.emit("settings.reloaded", after.node.name)

    yield Assembly(application(module.FakeNode(context.board, context.events), context.logger), reload=reload)
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
