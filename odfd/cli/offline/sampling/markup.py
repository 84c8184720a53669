"""Guesses which elements of an XML document are its rows: the outermost of those that occur more than once."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from typing import Final
from xml.parsers import expat

from chain.errors import Invalid
from chain.terminal_text import visible
from odfd.cli.offline.sampling.guess import Guess

DEPTH: Final = 16
"""Depth of elements within one another that is looked at."""
PATHS: Final = 1000
"""Different paths that are counted."""
_HTML: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE)
_SAID: Final = 3


def markup(data: bytes) -> Guess:
    """Returns a read step of kind Xml. Raises Invalid for HTML, and if no element occurs twice."""
    if _HTML.match(data):
        raise Invalid(
            "this is HTML, a page for people",
            rule="new-xml",
            hint="an error page of the server, or a form to log in? Name the address of the data themselves",
        )
    counts = _count_paths(data)
    repeated = [path for path, number in counts.items() if number > 1]
    if not repeated:
        raise Invalid(
            "XML: no element occurs twice, so which one is a row is for you to say",
            rule="new-xml",
            hint="write `read: {kind: Xml, record: feed/entry}` with your path; see odfctl docs sources",
        )
    first = min(repeated, key=lambda path: (path.count("/"), -counts[path]))
    others = [path for path in repeated if not path.startswith(f"{first}/") and path != first][:_SAID]
    doubt = f"each element {first} is taken for a row" + (f"; {' or '.join(others)} may be meant" if others else "")
    return Guess({"kind": "Xml", "record": first}, unsure=(visible(doubt),))


def _count_paths(data: bytes) -> Counter[str]:
    """Counts how often each path of elements occurs, as far as the sample is well formed."""
    counts: Counter[str] = Counter()
    above: list[str] = []
    parser = expat.ParserCreate()

    def start(name: str, _: object) -> None:
        above.append(name)
        if len(above) > DEPTH:  # a path of each of many levels would be as long as they are
            return
        path = "/".join(above)
        if len(counts) < PATHS or path in counts:
            counts[path] += 1

    def no_type(*_: object) -> None:
        raise _Stop

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: above.pop()
    parser.StartDoctypeDeclHandler = no_type
    with contextlib.suppress(expat.ExpatError, _Stop):
        parser.Parse(data, False)
    return counts


class _Stop(Exception):
    """Stops the parser at a document type, whose entities are not read."""
