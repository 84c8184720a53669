"""Fetches ``Container`` sources: runs a program of an image with the last fetch's state, and takes its output.

The interface is kamu's: ``ODF_ETAG`` or ``ODF_LAST_MODIFIED`` is the state of the last fetch, ``ODF_BATCH_SIZE`` the
number of records that a batch may have, and ``ODF_NEW_…_PATH`` are files in which the program leaves the new state, and
that there is more. Only images that are named by digest run, if the settings allow it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Final

import trio

from chain.errors import Invalid, Refused
from chain.instant import parse, render
from chain.model.events import SourceState
from chain.model.fetch_options import ContainerAccess
from chain.model.source import EnvVar, FetchContainer
from odfd.ingest.containers import OUT, RULE, ContainerJob, check_left, no_podman, run_container
from odfd.ingest.fetch.source import (
    DEFAULT_SOURCE,
    ETAG,
    LAST_MODIFIED,
    Fetched,
    FetchJob,
    FetchOutcome,
    Source,
    Unchanged,
)
from odfd.ingest.settings import CHUNK, IngestSettings
from odfd.ingest.templates import TEMPLATE, fill

BATCH_SIZE: Final = "ODF_BATCH_SIZE"
BATCH_RECORDS: Final = 10_000
"""Value of ``ODF_BATCH_SIZE`` if a source does not set it; as in kamu."""
MAX_STATE: Final = 4096
"""Bytes of a state that a container leaves."""
NEW_ETAG: Final = "new-etag"
NEW_LAST_MODIFIED: Final = "new-last-modified"
NEW_HAS_MORE: Final = "new-has-more-data"
_MAX_WORDS: Final = 1024
_IMAGE: Final = re.compile(
    r"(?:[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?::\d{1,5})?/)?"
    r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*@sha256:[0-9a-f]{64}\Z"
)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_OURS: Final = "ODF_"
_LINE_ENDS: Final = re.compile(r"[\0\r\n]")


class ContainerSource(Source[FetchContainer, ContainerAccess]):
    """The output of a program of an image."""

    options_type = ContainerAccess

    @property
    def address(self) -> str:
        return f"the container of {self.step.image}"

    @property
    def is_asked_anew(self) -> bool:
        return True

    async def fetch(self, job: FetchJob) -> FetchOutcome:
        """Runs the container and fetches its output.

        Raises Refused (not allowed, too much of something), Invalid (it failed, or its files contradict), Environment.
        """
        await trio.to_thread.run_sync(self.check, job.settings)
        folder = job.folder / "container"
        await trio.to_thread.run_sync(folder.mkdir)
        wanted = ContainerJob(
            image=self.step.image,
            command=self.step.command,
            args=tuple(fill(argument, job.settings.variables).reveal() for argument in self.step.args or ()),
            env=_environment(self.step, job),
            network=self.options.network,
            owner=job.dataset,
            folder=folder,
        )
        target = job.folder / "printed"
        await run_container(wanted, target, job.settings)
        return await trio.to_thread.run_sync(_outcome, self.step, job, wanted.out, target)

    def check(self, settings: IngestSettings) -> None:
        """Checks a step before a fetch. Raises Refused if the settings forbid it or podman is missing, Invalid."""
        if settings.container == "never":
            raise Refused(
                f"fetch: Container would run {self.step.image[:120]}, and no images are run here",
                rule=RULE,
                hint='ingest.container = "offline" of the settings runs them by podman, without a network',
            )
        if self.options.network and settings.container != "network":
            raise Refused(
                f"the container of {self.step.image[:120]} asks for a network, and gets none here",
                rule=RULE,
                hint='ingest.container = "network" of the settings gives it one; it reaches what this machine reaches',
            )
        if not _IMAGE.match(self.step.image):
            raise Invalid(
                f"the image {self.step.image[:120]!r} is not named by its digest,"
                " so it would not be known later which image ran",
                rule=RULE,
                hint="write NAME@sha256:…, as `podman image inspect --format '{{.RepoDigests}}' NAME` shows it",
            )
        _check_words(self.step)
        for each in self.step.env or ():
            _check_variable(each, settings)
        for text in self.step.args or ():
            settings.check_variables(text)
        if shutil.which("podman") is None:
            raise no_podman()


def _outcome(step: FetchContainer, job: FetchJob, out: Path, target: Path) -> FetchOutcome:
    """Reads the files that a container left. Returns the outcome of the fetch. Blocking."""
    check_left(out)
    state, has_more = _new_state(out), _regular(out / NEW_HAS_MORE)
    size = target.stat().st_size
    if state is not None and job.value_of(state.kind) == state.value:
        if size:
            raise Invalid(
                f"the container of {step.image} gave {size:,} bytes, and the state that it had before: {state.value!r}",
                rule=RULE,
                hint="it has to print nothing, or to leave another state",
            )
        return Unchanged()
    if has_more and state is None:
        raise Invalid(
            f"the container of {step.image} says that there is more, and leaves no state to continue from",
            rule=RULE,
            hint="it has to write to $ODF_NEW_ETAG_PATH or $ODF_NEW_LAST_MODIFIED_PATH",
        )
    return Fetched(
        path=target,
        name=f"the container of {step.image}",
        identity=f"sha3-256:{_digest(target)}",
        event_time=job.now,
        state=state,
        has_more=has_more,
    )


def _environment(step: FetchContainer, job: FetchJob) -> dict[str, str]:
    """Returns the container's environment. Raises Invalid for a value that no environment variable can have."""
    variables = job.settings.variables
    found = {"HOME": "/tmp", BATCH_SIZE: str(BATCH_RECORDS)}  # noqa: S108  # inside
    for each in step.env or ():
        written = _template_of(each)
        found[each.name] = fill(written, variables).reveal()
        # Variables are in a file of lines (--env-file): a second line would be another variable.
        if _LINE_ENDS.search(found[each.name]):
            raise Invalid(
                f"the value of {each.name} of a container has several lines", rule=RULE, hint="give it as one line"
            )
    _check_batch(found[BATCH_SIZE])
    last = job.value_of(LAST_MODIFIED)
    return {
        **found,
        "ODF_ETAG": _one_line(job.value_of(ETAG) or ""),
        "ODF_LAST_MODIFIED": "" if last is None else _one_line(last),
        "ODF_NEW_ETAG_PATH": f"{OUT}/{NEW_ETAG}",
        "ODF_NEW_LAST_MODIFIED_PATH": f"{OUT}/{NEW_LAST_MODIFIED}",
        "ODF_NEW_HAS_MORE_DATA_PATH": f"{OUT}/{NEW_HAS_MORE}",
    }


def _template_of(each: EnvVar) -> str:
    """Returns the value of a variable as written; one without a value takes that of the node's variable of its name."""
    return each.value if each.value is not None else f"${{{{ env.{each.name} }}}}"


def _one_line(state: str) -> str:
    if _LINE_ENDS.search(state):
        raise Invalid(
            f"the state of the last fetch has several lines: {state[:80]!r}",
            rule=RULE,
            hint="it was left by another source; begin the dataset again",
        )
    return state


def _new_state(out: Path) -> SourceState | None:
    """Returns the state that a container left, if any. Raises Invalid for one that cannot be read."""
    if (etag := _text(out / NEW_ETAG)) is not None:
        return SourceState(source_name=DEFAULT_SOURCE, kind=ETAG, value=etag)
    if (changed := _text(out / NEW_LAST_MODIFIED)) is not None:
        try:
            value = render(parse(changed.strip()))
        except Invalid as error:
            raise Invalid(
                f"a container left no time in {NEW_LAST_MODIFIED}: {changed[:80]!r}",
                rule=RULE,
                hint="write it as in RFC 3339: 2024-05-01T12:00:00Z",
            ) from error
        return SourceState(source_name=DEFAULT_SOURCE, kind=LAST_MODIFIED, value=value)
    return None


def _text(path: Path) -> str | None:
    """Returns the text of a file that a container left, if any. Opens plain files only: containers are not trusted."""
    try:
        # A link leads to files of the node, and a FIFO would wait for a writer (test_what_cannot_be_is_refused).
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _no_file(path) from error
    with os.fdopen(file, "rb") as source:
        if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
            raise _no_file(path)
        found = source.read(MAX_STATE + 1)
    try:
        text = found.decode().removesuffix("\n")
    except UnicodeDecodeError:
        text = None
    if text is None or len(found) > MAX_STATE or _LINE_ENDS.search(text):
        raise Invalid(
            f"a container left something else than a line of {MAX_STATE:,} bytes of UTF-8 in {path.name}",
            rule=RULE,
            hint="a state is a short text: where to continue",
        )
    return text


def _no_file(path: Path) -> Invalid:
    return Invalid(f"what a container left as {path.name} is no plain file", rule=RULE, hint="it has to write a file")


def _regular(path: Path) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(found.st_mode):
        raise _no_file(path)
    return True


def _digest(path: Path) -> str:
    digest = hashlib.sha3_256()
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


def _check_words(step: FetchContainer) -> None:
    if step.command is not None and not (step.command and step.command[0]):
        raise Invalid(
            "a container's command is empty", rule=RULE, hint="command: [program, argument, …], or leave it out"
        )
    words = [*(step.command or ()), *(step.args or ())]
    if len(words) + len(step.env or ()) > _MAX_WORDS:
        raise Invalid(f"a container has more than {_MAX_WORDS:,} arguments and variables", rule=RULE)
    if any("\0" in word for word in words):
        raise Invalid("an argument of a container has a character 0", rule=RULE)
    for word in step.command or ():
        if TEMPLATE.search(word):
            raise Invalid(
                f"nothing is filled into the command of a container: {word[:80]}",
                rule="source-variable",
                hint="write variables in env, or in args",
            )


def _check_variable(each: EnvVar, settings: IngestSettings) -> None:
    if not _NAME.match(each.name) or (each.name.startswith(_OURS) and each.name != BATCH_SIZE):
        raise Invalid(
            f"a container has no variable {each.name[:80]!r} of a source",
            rule=RULE,
            hint=f"names are of letters, digits and _; those with {_OURS} are the node's, but {BATCH_SIZE}",
        )
    written = _template_of(each)
    settings.check_variables(written)
    if each.name == BATCH_SIZE and not TEMPLATE.search(written):
        _check_batch(written)


def _check_batch(text: str) -> None:
    if not re.fullmatch(r"[1-9]\d{0,8}", text):
        raise Invalid(f"{BATCH_SIZE} is no number of records: {text[:80]!r}", rule=RULE, hint="write 1 or more")
