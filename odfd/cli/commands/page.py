"""``ui``: opens the node's page in a browser of this machine."""

from __future__ import annotations

import argparse
import html
import os
import webbrowser
from pathlib import Path

from chain.errors import Environment
from odfd.cli.command import Commands, argument
from odfd.cli.session import Session
from odfd.control import calls

commands = Commands()


@commands.add(
    "ui",
    argument("--open", action="store_true", help="also open it in this user's browser"),
    description="Print the address of the node's web UI, for a browser on this machine. The address works once, within "
    "two minutes. The session it opens ends when the node stops, or after twelve hours without a request.",
    example="--open",
)
def _ui(session: Session, args: argparse.Namespace) -> None:
    answer = session.client.do(calls.page_open())
    session.answer(answer, lambda address: address.url)
    if args.open:
        _open(answer.value.url)
    else:
        session.remark(f"good once, for {answer.value.seconds} s; odfctl ui --open opens it")


def _open(url: str) -> None:
    """Opens an address by way of a private file, since every user of the machine can read the arguments of programs."""
    place = _private_folder() / "page.html"
    target = html.escape(url, quote=True)
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        place.unlink(missing_ok=True)
        with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f'<!doctype html><title>odfd</title><meta http-equiv="refresh" content="0;url={target}">\n')
    except OSError as error:
        raise Environment(
            f"cannot write {place}: {error.strerror}", rule="page-file", hint="open the printed address by hand"
        ) from error
    if not webbrowser.open(place.as_uri()):
        raise Environment(
            "no browser was found on this machine", rule="page-browser", hint="open the printed address by hand"
        )


def _private_folder() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "odfd"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "odfd"
