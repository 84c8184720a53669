"""Writes text for people: the only module that writes to a terminal, a file or a pipe.

Names, keywords, messages and cells come from strangers, so nothing is written that a terminal obeys
(``chain.terminal_text``). In text such characters are shown as the replacement character, in JSON and YAML as escapes,
so that a program reads what was there.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Final, TextIO

from chain.errors import Environment
from chain.terminal_text import escaped, one_line, visible

_ESCAPED: Final = "odfd-escaped"
_PLAINER: Final = str.maketrans("…─┄│├└→·†", "~-.||`>-+")
"""Signs of our own, each by one character of ASCII, so that columns stay below each other."""

_USUAL_COLUMNS: Final = 80

_instead: list[IO[str]] = []
"""Replacements of standard output; the last one is used."""


class TerminalText(str):
    """Text that a terminal gets in another layout; pipes, files and pagers get the text itself."""

    def draw(self, stream: IO[str], columns: int) -> None:
        """Draws the text and a newline on a terminal of that width, which gets no command that a stranger wrote."""
        raise NotImplementedError


class FaultText(TerminalText):
    """A message whose first word, ``error`` or ``warning``, a terminal colours."""

    def draw(self, stream: IO[str], columns: int) -> None:
        from odfd import terminal

        terminal.draw_message(terminal.open_console(stream, columns), self)


def say(text: str, end: str = "\n") -> None:
    """Writes to standard output, flushed."""
    _show(_instead[-1] if _instead else sys.stdout, text, end)


def say_json(text: str) -> None:
    """Writes one or more lines of JSON to standard output, flushed."""
    _write(_instead[-1] if _instead else sys.stdout, escaped(text) + "\n", is_data=True)


@contextmanager
def redirected(stream: IO[str]) -> Iterator[None]:
    """Redirects output of the block to a pager, which writes to the terminal."""
    _instead.append(stream)
    try:
        yield
    finally:
        _instead.pop()


def remark(text: str, end: str = "\n") -> None:
    """Writes to standard error, flushed."""
    _show(sys.stderr, text, end)


def error_stream() -> TextIO:
    """Returns standard error, for ``note`` and ``draw``."""
    return sys.stderr


def note(stream: TextIO, text: str) -> None:
    """Writes a line to a stream of the caller."""
    _write(stream, one_line(text) + "\n")


def draws(stream: TextIO | None = None) -> bool:
    """Whether ``draw`` can be used: the stream, or standard output, is a terminal that moves its cursor."""
    return (stream or sys.stdout).isatty() and os.environ.get("TERM") != "dumb"


def draw(stream: TextIO, text: str) -> None:
    """Replaces the terminal's last line. A wider text is cut, since of several lines one is replaced."""
    _write(stream, f"\r\x1b[K{_cut(one_line(text), _columns(stream) - 1)}")


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL_COLUMNS
    except (OSError, ValueError):
        return _USUAL_COLUMNS


def _cut(text: str, columns: int) -> str:
    """Cuts the middle out of a text that takes more columns of a terminal: its end says how far, how fast, how long."""
    if len(_fitting(text, columns)) == len(text):
        return text
    end = _fitting(text[::-1], columns // 2)[::-1]
    return f"{_fitting(text, columns - columns // 2 - 1)}…{end}"


def _fitting(text: str, columns: int) -> str:
    """Returns the beginning of a text that fits into so many columns; wide characters take two."""
    if text.isascii():
        return text[:columns]
    for at, char in enumerate(text):
        columns -= 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if columns < 0:
            return text[:at]
    return text


def say_bytes(data: bytes | memoryview) -> None:
    """Writes a file to standard output, which is no terminal (``is_terminal``). Raises Environment, BrokenPipeError."""
    with _output():
        sys.stdout.buffer.write(data)


def is_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


def flush() -> None:
    """Flushes standard output. Raises Environment, BrokenPipeError."""
    with _output():
        sys.stdout.flush()


def leave() -> None:
    """Drops further output after the reader of standard output has closed it, or its disk is full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _output() -> Iterator[None]:
    """Turns the error of a standard output that cannot be written into a fault, and drops what comes after it."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        leave()
        raise Environment(
            f"cannot write to standard output: {error.strerror}",
            rule="output",
            hint="what is there now is not complete; free some space, or name a file elsewhere",
        ) from error


def end_when_unread() -> None:
    """Makes the program end successfully once the reader of its standard output has closed it: ``odfctl watch | head``.

    Only writing would tell otherwise, and the next news may come in a year. Nothing that the program has open may need
    an end in good order.
    """
    import select
    import threading

    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # of a broken pipe it always tells

    def wait() -> None:
        poll.poll()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def trace(error: BaseException) -> None:
    """Writes the traceback of a bug to standard error."""
    import traceback

    remark("".join(traceback.format_exception(error)), end="")


def visible_values(value: Any) -> Any:
    """Values of a log line, nested ones too, with visible text."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, dict):
        return {visible_values(key): visible_values(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [visible_values(each) for each in value]
    return value


def _show(stream: IO[str], text: str, end: str) -> None:
    if not (isinstance(text, TerminalText) and stream.isatty()):
        _write(stream, visible(text) + end)
        return
    import shutil

    drawn = _Drawn()
    text.draw(drawn, shutil.get_terminal_size().columns)
    _write(stream, drawn.getvalue())


class _Drawn(io.StringIO):
    """Collects what is drawn, for the terminal that it stands for."""

    def isatty(self) -> bool:
        return True


def _write(stream: IO[str], text: str, *, is_data: bool = False) -> None:
    if stream is sys.stdout:
        with _output():
            _write_to(stream, text, is_data=is_data)
    else:
        _write_to(stream, text, is_data=is_data)


def _write_to(stream: IO[str], text: str, *, is_data: bool) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError as error:
        # The encoding of the locale lacks a character, which is shown as an escape.
        plainer = text if is_data else text.translate(_PLAINER)
        stream.write(plainer.encode(error.encoding, _ESCAPED).decode(error.encoding))
    stream.flush()


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Replaces what cannot be encoded by escapes of JSON, so that JSON stays what it is in every locale."""
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error(_ESCAPED, _escape)
