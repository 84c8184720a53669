"""Lines of a CSV file that are no rows: before the header, at the end, and comments. Counted, and made empty.

Empty lines are no rows either, so the file keeps its lines, and what is wrong in it is told by its own line.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from chain.errors import Invalid
from chain.model.read_options import ReadOptions
from chain.wording import plural
from engines.spark.ingest.unpack import CHUNK

_END: Final = re.compile(rb"\r\n|\n|\r")


class Passed(NamedTuple):
    """How many lines of a file are no rows."""

    before: int
    comments: int
    behind: int

    def told(self, name: str) -> str:
        """In words."""
        parts = [
            plural(self.before, "line") + " before the header" if self.before else "",
            plural(self.comments, "comment") if self.comments else "",
            plural(self.behind, "line") + " at the end" if self.behind else "",
        ]
        return f"{name}: no rows: {', '.join(filter(None, parts))}"


class LinesPassed:
    """One file without the lines that ``options`` pass over. Read ``blocks``, then ``passed``."""

    def __init__(self, view: mmap.mmap, options: ReadOptions, quote: str, name: str) -> None:
        self._view = view
        self._quote = quote.encode()
        self._open = False
        self._start, before = _behind_lines(view, options.skip_rows)
        self._stop, behind = _before_footer(view, self._start, options.skip_footer)
        if before < options.skip_rows or behind < options.skip_footer:
            raise Invalid(
                f"skipRows {options.skip_rows} and skipFooter {options.skip_footer} are more than there is",
                rule="read-lines",
                hint="is the whole file there?",
                place=name,
            )
        self._comment = None if options.comment is None else re.escape(options.comment.encode())
        self.passed = Passed(before, 0, behind)

    def blocks(self) -> Iterator[bytes]:
        """What stays, in pieces; line ends of all."""
        view, at = self._view, self._start
        yield b"\n" * self.passed.before
        if self._comment is not None:
            for found in re.compile(rb"(?<![^\r\n])" + self._comment + rb"[^\r\n]*").finditer(view, at, self._stop):
                yield from self._kept(at, found.start())
                at = found.start()
                if not self._open:  # within quotes it is a value
                    at = found.end()
                    self.passed = self.passed._replace(comments=self.passed.comments + 1)
        yield from self._kept(at, self._stop)

    def _kept(self, start: int, stop: int) -> Iterator[bytes]:
        for at in range(start, stop, CHUNK):
            block = self._view[at : min(at + CHUNK, stop)]
            self._open ^= bool(block.count(self._quote) % 2)
            yield block


def _behind_lines(view: mmap.mmap, count: int) -> tuple[int, int]:
    """The place behind so many lines, and how many there were."""
    ends = [found.end() for found in islice(_END.finditer(view), count)]
    return (ends[-1] if ends else 0), len(ends)


def _before_footer(view: mmap.mmap, start: int, count: int) -> tuple[int, int]:
    """The place before so many lines that are not empty, from the end, and how many there were."""
    stop, found = len(view), 0
    while found < count and stop > start:
        end = stop
        while end > start and view[end - 1 : end] in (b"\n", b"\r"):
            end -= 1
        stop = max(view.rfind(b"\n", start, end), view.rfind(b"\r", start, end), start - 1) + 1
        found += end > start
    return stop, found
