"""Holds the context of one run of ``odfctl``: the client, the output format, and the message stream.

Standard output has the answer only; progress, hints and warnings go to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from chain.errors import Fault
from odfd import output
from odfd.errors import ExitCode, exit_code
from odfd.errors import render as render_fault
from odfd.output import visible_values
from odfd.runtime.clock import SystemClock

if TYPE_CHECKING:
    from odfd.control.client import Answer, ControlClient
    from odfd.control.remote_node import RemoteNode

T = TypeVar("T")
FORMATS: Final = ("table", "json", "yaml", "ndjson")
MANIFEST: Final = "manifest"
LEGACY: Final = "legacy"
"""Prints the manifest of a dataset in the older form, a DatasetSnapshot."""
MANIFESTS: Final = (MANIFEST, LEGACY)
"""Formats of only those commands that show declarations (``writes_manifests``)."""
NAMES: Final = "name"
"""Prints each resource as a line ``KIND/NAME``."""
WIDE: Final = "wide"
"""Prints a table with ids, in which no cell is cut short."""
SHAPES: Final = (NAMES, WIDE)
"""Formats of only those commands that list resources (``lists_things``)."""
TOLD_AFTER: Final = 2
"""Seconds after which a command says what it waits for."""
AGAIN_AFTER: Final = 5
"""Seconds between two lines that say what it waits for."""
SYSTEM_SOCKET: Final = Path("/run/odfd/control.sock")


class Session:
    """The context of one run: client, output format, and how much is printed."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.output: str = args.output
        self.quiet: bool = args.quiet
        self.verbose: bool = args.verbose
        self.clock = SystemClock()
        self._socket: str | None = args.socket
        self._account: str | None = getattr(args, "account", None)  # other programs make sessions without it
        self._node: str | None = getattr(args, "node", None)
        self._files = getattr(args, "token_file", None), getattr(args, "ca_file", None)
        self._client: ControlClient | None = None

    @property
    def client(self) -> ControlClient:
        if self._client is None:
            from odfd.control.client import ControlClient

            self._client = ControlClient(
                socket_path(self._socket, os.environ),
                self._account or os.environ.get("ODFD_ACCOUNT", ""),
                self._remote(os.environ),
                self.remark,
            )
        return self._client

    def _remote(self, environ: Mapping[str, str]) -> RemoteNode | None:
        """Returns the node at the URL of ``--node`` or ``ODFD_NODE``; ``None`` without one, or with ``--socket``."""
        url = self._node or ("" if self._socket else environ.get("ODFD_NODE", ""))
        if not url:
            return None
        from odfd.control.remote_node import remote_node

        files = [given or environ.get(name, "") for given, name in zip(self._files, _FILES, strict=True)]
        return remote_node(url, *files)

    @property
    def again(self) -> str:
        """The first words of a command for the same daemon and account."""
        words = ["odfctl", *(["--socket", self._socket] if self._socket else [])]
        words += ["--node", self._node] if self._node else []
        return " ".join([*words, *(["--account", self._account] if self._account else [])])

    def answer(self, answer: Answer[T], table: Callable[[T], str]) -> None:
        """Prints the daemon's answer in the requested format: the JSON unchanged, or the text of ``table``."""
        self.show(answer.sent, lambda _: table(answer.value))

    def show(self, value: Any, table: Callable[[Any], str]) -> None:
        """Prints a value of JSON that ``odfctl`` made itself."""
        if self.output == "table":
            text = table(value)
        elif self.output == "yaml":
            text = to_yaml(value)
        elif self.output == "ndjson":
            text = "\n".join(to_json(item) for item in (value if isinstance(value, list) else [value]))
        else:
            text = indent(value)
        if text:
            say = output.say if self.output in ("table", "yaml") else output.say_json
            say(text if isinstance(text, output.TerminalText) else text.rstrip("\n"))

    def line(self, value: Any, text: str) -> None:
        """Prints one item of an unbounded answer, as JSON or as text."""
        if self.output == "table":
            output.say(text)
        else:
            output.say_json(to_json(value))

    def remark(self, text: str) -> None:
        """Prints a remark for people, separate from the answer."""
        if not self.quiet:
            output.remark(text)

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Says on standard error what the block waits for, once that takes long; silent with ``--quiet``."""
        if self.quiet:
            yield
            return
        import threading

        over = threading.Event()

        def say() -> None:
            seconds, pause = TOLD_AFTER, TOLD_AFTER
            while not over.wait(pause):
                output.remark(f"{text}, for {seconds} s")
                pause = AGAIN_AFTER
                seconds += pause

        teller = threading.Thread(target=say, daemon=True)
        teller.start()
        try:
            yield
        finally:
            over.set()
            teller.join()  # no line comes after the answer

    def failure(self, name: str, fault: Fault) -> ExitCode:
        """Reports the fault of one of several items, with its name if the fault has none. Returns the exit code."""
        if not fault.place and name not in fault.message:
            fault.place = name
        output.remark(render_fault(fault, self.verbose))
        return ExitCode(exit_code(fault))


def socket_path(given: str | None, environ: Mapping[str, str]) -> Path:
    """Returns ``--socket``, ``ODFD_SOCKET``, the user's own daemon, the system's: the first that is given or exists."""
    named = given or environ.get("ODFD_SOCKET")
    if named:
        return Path(named)
    places = [Path(folder) / "odfd" / "control.sock" for name in _FOLDERS if (folder := environ.get(name))]
    home = environ.get("HOME")
    if home:
        places.append(Path(home) / ".local" / "state" / "odfd" / "control.sock")
    places.append(SYSTEM_SOCKET)
    return next((place for place in places if place.exists()), places[0])


_FILES: Final = ("ODFD_TOKEN_FILE", "ODFD_CA_FILE")
_FOLDERS: Final = ("XDG_RUNTIME_DIR", "XDG_STATE_HOME")


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def indent(value: Any) -> str:
    """Formats JSON of several lines as ``json.dumps(value, indent=2)`` does, which is slow on long lists.

    ``msgspec`` lays out what ``json`` encoded, if it was loaded to decode the answer: to load it takes longer.
    """
    msgspec = sys.modules.get("msgspec")
    if msgspec is not None:
        try:
            laid_out: bytes = msgspec.json.format(to_json(value).encode(), indent=2)
        except (UnicodeEncodeError, RecursionError):
            pass  # surrogates of a stranger's text, or values nested deeply
        else:
            return laid_out.decode()
    return json.dumps(value, indent=2, ensure_ascii=False)


def to_yaml(value: Any) -> str:
    """Formats YAML that can be applied; text of several lines, such as a query, is a block."""
    from chain.yaml_text import render_yaml

    try:
        return render_yaml(value)
    except UnicodeEncodeError:  # surrogate characters, which YAML cannot express
        return render_yaml(visible_values(value))
