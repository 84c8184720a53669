"""``demo``: runs the recorded node of the demo in a folder of one's own, for those who have no engine.

``make demo`` plays five nodes on Spark. ``python -m demo --record`` plays it until everybody knows of the lie, and
keeps a backup of the node of Carol, who counts three validators. Here that backup is restored and started: what its
page shows was found by those nodes, and is read from the same database.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from chain.errors import Environment, NotFound
from config.paths import code_environment
from odfd import output
from odfd.cli.command import Commands, argument
from odfd.cli.offline.restore import what_is_wrong
from odfd.cli.session import Session
from odfd.control import calls
from odfd.control.client import ControlClient
from odfd.errors import Unreachable

RECORDED: Final = Path("/usr/share/odfd/demo")
"""Where the Debian package odfd-demo has the backup."""
SETTINGS: Final = "odfd.toml"
START_SECONDS: Final = 60
LOOK_SECONDS: Final = 0.1
LOG: Final = "odfd.log"
SHOWN: Final = """The demo's node runs: Carol's, as it was when two of her three validators had refuted a dataset.
Open its web UI, and find out why nyc.flights.bad may not be used (the address works once, for {seconds} s):

  {url}

  another address   odfctl --socket {socket} ui
  the same as text  odfctl --socket {socket} trust show nyc.flights.bad
  end it            Ctrl+C{removed}

It has no peers and signs nothing, and says so too.
"""
commands = Commands()


@commands.add(
    "demo",
    argument("--folder", metavar="DIR", help="a new folder for the node, which stays (one that is removed)"),
    argument("--from", dest="source", metavar="DIR", help=f"the recorded node ({RECORDED})"),
    description="Run the recorded node of the demo, print the address of its web UI, and end it with "
    "Ctrl+C. It needs no "
    "engine, no network and no other node of this machine. A publisher in it lied, and validators found it out.",
    example="--folder ./carol",
)
def _demo(session: Session, args: argparse.Namespace) -> None:
    source = Path(args.source).expanduser().resolve() if args.source else RECORDED
    if not (source / SETTINGS).is_file():
        raise NotFound(
            f"the recorded node of the demo is not at {source}",
            rule="demo-missing",
            hint="apt install ./odfd-demo_VERSION_all.deb, of the version of the node, adds it; in a checkout with an "
            "engine, make demo KEEP=1 plays the whole demo",
        )
    signal.signal(signal.SIGTERM, _interrupt)
    with _folder(args.folder) as folder:
        _lay_out(source, folder)
        with _node(folder) as (client, process):
            address = client.do(calls.page_open())
            removed = "" if args.folder else ", which also removes its folder"
            socket = folder / "control.sock"
            session.answer(
                address,
                lambda page: SHOWN.format(url=page.url, seconds=page.seconds, socket=socket, removed=removed),
            )
            output.flush()
            process.wait()
            raise Environment(f"the node ended: {_last_words(folder)}", rule="demo-node", hint=f"see {folder / LOG}")


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def _folder(given: str | None) -> Iterator[Path]:
    """Makes the folder. A temporary one is short, as paths of sockets have to be, and removed."""
    if given:
        yield Path(given).expanduser().absolute()
        return
    with tempfile.TemporaryDirectory(prefix="odfd-demo-") as folder:
        yield Path(folder)


def _lay_out(source: Path, folder: Path) -> None:
    """Restores the state and copies the settings. Raises NotFound, Invalid, Environment."""
    from odfd.runtime.tasks import Report
    from odfd.services.maintenance.restore import choose, restore

    restore(choose(source, None), folder / "state", what_is_wrong, Report(), skip_damaged=False)
    shutil.copyfile(source / SETTINGS, folder / SETTINGS)


@contextmanager
def _node(folder: Path) -> Iterator[tuple[ControlClient, subprocess.Popen[bytes]]]:
    """Starts the node, and ends it. Raises Environment if it does not start."""
    words = ["run", "--config", folder / SETTINGS, "--state", folder / "state", "--socket", folder / "control.sock"]
    with (folder / LOG).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "odfd.daemon.main", *map(str, words)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | code_environment(),
            start_new_session=True,
        )  # fmt: skip
    try:
        yield _reach(folder, process), process
    finally:
        process.terminate()
        process.wait()


def _reach(folder: Path, process: subprocess.Popen[bytes]) -> ControlClient:
    for _ in range(int(START_SECONDS / LOOK_SECONDS)):
        client = ControlClient(folder / "control.sock")
        with suppress(Unreachable):
            client.ask(calls.about_status())
            return client
        with suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_SECONDS)
            break
    raise Environment(f"the node does not start: {_last_words(folder)}", rule="demo-node")


def _last_words(folder: Path) -> str:
    lines = (folder / LOG).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"
