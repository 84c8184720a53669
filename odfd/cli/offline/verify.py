"""``verify DIR``: verifies a directory in the ODF layout, without daemon, network or Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odfd import output
from odfd.cli.offline import files
from odfd.cli.progress import Meter
from odfd.cli.session import Session
from odfd.control import wire
from odfd.control.client import Answer
from odfd.errors import Usage

if TYPE_CHECKING:
    from pathlib import Path

    from odfd.verify.report import Progress


def check_directory(session: Session, target: str, level: str, start: int) -> Answer[wire.VerifyReport]:
    """Verifies a directory. Raises Usage for a level that needs an engine, NotFound, Environment."""
    import msgspec

    from chain.store.layout import DirectoryChain, DirectoryObjects
    from odfd.verify.report import Level
    from odfd.verify.verify import VerificationRequest, verify_chain

    if level == "reproduced":
        raise Usage(
            "a directory can be checked to the levels chain and data; transforms are run again by a daemon",
            hint=f"odfctl import {target}, and then odfctl verify NAME --level reproduced",
        )
    directory = files.dataset(target)
    meter = Meter(session, output.error_stream())
    request = VerificationRequest(ref=target, level=Level(level), start=start)
    try:
        report = verify_chain(
            DirectoryChain(directory),
            DirectoryObjects(directory),
            request,
            lambda progress: meter.show(_state(target, progress)),
        )
    finally:
        meter.clear()
    if report.ok and start == 0:
        _tell_former(session, directory)
    return Answer.of(msgspec.to_builtins(report), wire.VerifyReport)


def _tell_former(session: Session, directory: Path) -> None:
    """Shows how a converted dataset compares with its former chain of ODF 0.18. Raises Invalid if they differ."""
    from chain.store.layout import DirectoryChain, DirectoryObjects
    from odfd.transfer.former_chain import is_converted, load_former_format

    chain = DirectoryChain(directory)
    if is_converted(chain):
        session.remark(load_former_format().compare(chain, DirectoryObjects(directory)).told())


def _state(target: str, progress: Progress) -> wire.TaskState:
    """Returns the progress of the verification in the form of a task."""
    return wire.TaskState(
        kind="verify",
        target=target,
        state="running",
        message=f"blocks {progress.blocks:,}/{progress.blocks_total:,}",
        done=progress.bytes,
        total=progress.bytes_known or None,
        unit="bytes",
    )
