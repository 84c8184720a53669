"""``support``: writes a file of diagnostics about a node, without secrets.

``odfctl`` makes it from ordinary answers of the daemon, so it holds nothing that the node's owner could not see. It
lists the parts that are missing, with the reason.
"""

from __future__ import annotations

import argparse
import io
import os
import platform
import re
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from chain.errors import Fault
from odfd import __version__, output
from odfd.cli import formatting
from odfd.cli.command import Commands, argument
from odfd.cli.kinds import PAGE
from odfd.cli.new_file import NewFile
from odfd.cli.session import Session, to_json
from odfd.control import calls
from odfd.control.client import ApiCall
from odfd.errors import ExitCode
from odfd.resources import registry

_PARTS: Final[Mapping[str, ApiCall[Any]]] = {
    "status.json": calls.about_status(),
    "doctor.json": calls.about_doctor(),
    "settings.json": calls.about_settings(),
    "engines.json": calls.resources_all(registry.ENGINE),
    "tasks.json": calls.resources_all(registry.TASK),
    "events.json": calls.events_kept(kept=True),
    "datasets.json": calls.resources_all(registry.DATASET, limit=PAGE),
    "mirrors.json": calls.resources_all(registry.MIRROR),
    "flows.json": calls.resources_all(registry.FLOW),
    "publications.json": calls.publications_list(),
    "networks.json": calls.resources_all(registry.NETWORK),
    "peers.json": calls.resources_all(registry.PEER, limit=PAGE),
    "validators.json": calls.resources_all(registry.VALIDATOR),
    "policy.json": calls.policies_policy(),
}
"""Names of files in the archive, with the calls that fill them."""
_SECRETS: Final = re.compile(
    rb"(?P<kept>://)[^/@\s\"]+(?=@)|(?P<named>(?i:token|secret|password|passwd|signature|sig|key)=)[^&\s\"\\]+"
)
"""Secrets in URLs, as sources may have: user and password before the host, and parameters of these names."""
MASK: Final = b"********"


commands = Commands()


@commands.add(
    "support",
    argument("file", metavar="FILE", type=Path, help="a new .tar.gz"),
    description="Write an archive for support: status, probes, settings, tasks, events, and names and "
    "states of datasets, mirrors, flows and peers. It has no data, no blocks and no keys, and secrets are "
    "masked. It does name private datasets and addresses of peers: look at it before you send it.",
    example="alice.tar.gz",
)
def _support(session: Session, args: argparse.Namespace) -> int:
    file = NewFile(args.file, is_private=True)
    session.client.raw(calls.about_status())  # without a daemon there is nothing to write
    missing: dict[str, str] = {}
    masked = _write(file, _collect(session, missing))
    for name, why in missing.items():
        output.remark(f"{name} is not in it: {why}")
    text = f"; {formatting.plural(masked, 'secret')} in it masked" if masked else ""
    session.remark(f"wrote {args.file}{text}\n  look into it before you send it: tar -xzf {args.file}")
    return ExitCode.NO if missing else ExitCode.OK


def _collect(session: Session, missing: dict[str, str]) -> Iterator[tuple[str, bytes]]:
    machine = {"odfctl": __version__, "python": sys.version, "platform": platform.platform(), "cores": os.cpu_count()}
    yield "machine.json", to_json(machine).encode()
    for name, call in _PARTS.items():
        try:
            yield name, session.client.raw(call)
        except Fault as fault:
            missing[name] = fault.message
    if missing:
        yield "missing.json", to_json(missing).encode()


def _write(file: NewFile, parts: Iterator[tuple[str, bytes]]) -> int:
    """Writes the archive. Returns the number of masked secrets. Raises as ``NewFile``, and then leaves no file."""
    masked = 0
    with file.writing() as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for name, content in parts:
            plain, count = _SECRETS.subn(lambda found: (found["kept"] or found["named"]) + MASK, content)
            masked += count
            info = tarfile.TarInfo(f"{file.path.name.partition('.')[0] or 'support'}/{name}")
            info.size, info.mode = len(plain), 0o600
            archive.addfile(info, io.BytesIO(plain))
    return masked
