"""Fills variables of this machine into texts of a manifest, and shows the unfilled text in messages and views.

``FilledTemplate`` carries both texts, and shows the unfilled one unless ``reveal`` is called. Messages of libraries,
servers and the system may quote what was sent to them: every fault that leaves ingestion passes ``redact``, which
replaces each value by its template, in the fault's causes too. Pure.
"""

from __future__ import annotations

import html
import re
import urllib.parse
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, final

from chain.errors import Fault, Invalid

TEMPLATE: Final = re.compile(r"\$\{\{\s*env\.(\w+)\s*(?:\|\|\s*'([^']*)'\s*)?\}\}")
_USER_INFO: Final = re.compile(r"\w[\w+.-]*://([^/?#@]*)@")
SHORT: Final = 4
"""Characters below which a value is searched as a whole word: ``7`` is within half of all port numbers."""


@final
class FilledTemplate:
    """A text with its variables filled in; ``str`` and ``repr`` show the template."""

    __slots__ = ("_text", "is_template", "written")

    def __init__(self, written: str, text: str) -> None:
        self.written = written
        self.is_template = TEMPLATE.search(written) is not None
        self._text = text

    def __str__(self) -> str:
        return self.written

    __repr__ = __str__

    def reveal(self) -> str:
        """Returns the text with the values, only for their recipient."""
        return self._text


def fill(written: str, variables: Mapping[str, str]) -> FilledTemplate:
    """Fills in ``${{ env.NAME || 'default' }}``. Raises Invalid for a name that has neither value nor default."""
    check_template(written)

    def value(match: re.Match[str]) -> str:
        found = variables.get(match[1], match[2])
        if found is None:
            raise _no_variable(match[1])
        return found

    return FilledTemplate(written, TEMPLATE.sub(value, written))


def check_template(written: str) -> None:
    """Raises Invalid for a malformed variable, which would be sent unchanged."""
    if "${{" in TEMPLATE.sub("", written):
        raise Invalid(
            f"not all variables can be read: {written}",
            rule="source-variable",
            hint="write ${{ env.NAME }} or ${{ env.NAME || 'default' }}",
        )


def check_allowed(written: str, names: Collection[str]) -> None:
    """Raises Invalid for a variable without a default that is not in ``names``."""
    for found in TEMPLATE.finditer(written):
        if found[2] is None and found[1] not in names:
            raise _no_variable(found[1])


def check_secret(written: str, what: str) -> None:
    """Raises Invalid unless the whole of a secret is one variable without a default."""
    found = TEMPLATE.fullmatch(written)
    if found is None or found[2]:
        raise _written_out(what)


def check_user_info(written: str) -> None:
    """Raises Invalid for a ``user:password`` whose password has text or a default besides variables."""
    if _with_defaults(written).partition(":")[2]:
        raise _written_out("a password")


def check_url_password(url: str) -> None:
    """Raises Invalid for a URL whose password has text or a default besides variables."""
    if found := _USER_INFO.match(_with_defaults(url)):
        check_user_info(found[1])


def _with_defaults(written: str) -> str:
    """Returns the text with each variable replaced by its default, or by nothing."""
    return TEMPLATE.sub(lambda found: found[2] or "", written)


def _written_out(what: str) -> Invalid:
    return Invalid(
        f"{what} in a source would be in the chain, readable by every holder of the chain",
        rule="source-password",
        hint="write ${{ env.NAME }} in its place, and declare it in a SecretSet that has the dataset's name",
    )


def check_text(text: str, what: str) -> None:
    """Raises Invalid for a variable in a text that is not substituted. ``what``: the text's name in messages."""
    found = TEMPLATE.search(text)
    if found is not None:
        raise Invalid(
            f"{what} names the variable {found[1]!r}, and nothing is filled in there",
            rule="source-variable",
            hint="write the value itself; variables belong in the URL and the headers of a source",
        )


def _no_variable(name: str) -> Invalid:
    return Invalid(
        f"no variable {name!r}",
        rule="source-variable",
        hint=f'let sources see the daemon\'s: [ingest] variables = ["{name}"]; or declare it in a VariableSet or '
        "SecretSet that has the dataset's name",
    )


def tells(text: str, variables: Mapping[str, str]) -> bool:
    """Whether a foreign text holds a value of a variable."""
    return _Values(variables).are_in(text)


@contextmanager
def redact(variables: Mapping[str, str]) -> Iterator[None]:
    """Removes values of variables from errors that leave the block, and from their causes."""
    try:
        yield
    except (Exception, BaseExceptionGroup) as error:
        values = _Values(variables)
        _clean(error, values, set())
        if _tells(error, values):
            # It makes its text of what cannot be cleaned here, so it is replaced as a whole.
            raise RuntimeError(values.hide(repr(error))) from None
        raise


class _Values:
    """Finds values of variables in text, as they are or as URLs, HTML and Python spell them."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._templates = {
            spelled: f"${{{{ env.{name} }}}}"
            for name, value in variables.items()
            if value
            for spelled in _spellings(value)
        }
        # A value may be the beginning of another one, whose rest would be shown.
        longest_first = sorted(self._templates, key=len, reverse=True)
        # Without values, a pattern that never matches: an empty one matches everywhere.
        self._pattern = re.compile("|".join(map(_pattern_of, longest_first)) or "(?!)")

    def hide(self, text: str) -> str:
        return self._pattern.sub(lambda found: self._templates[found[0]], text)

    def are_in(self, text: str) -> bool:
        return self.hide(text) != text


def _spellings(value: str) -> set[str]:
    quoted = (urllib.parse.quote(value), urllib.parse.quote(value, safe=""), urllib.parse.quote_plus(value))
    return {value, *quoted, repr(value)[1:-1], html.escape(value)}


def _pattern_of(spelled: str) -> str:
    whole = re.escape(spelled)
    return whole if len(spelled) >= SHORT else rf"(?<!\w){whole}(?!\w)"


def _clean(error: BaseException, values: _Values, seen: set[int]) -> None:
    """Cleans an error, its parts and its causes in place; drops a cause that still shows a value."""
    seen.add(id(error))
    error.args = tuple(values.hide(argument) if isinstance(argument, str) else argument for argument in error.args)
    for name in (*vars(error), "filename", "filename2", "strerror"):
        if isinstance(value := getattr(error, name, None), str) and values.are_in(value):
            with suppress(AttributeError):  # a read-only property
                setattr(error, name, values.hide(value))
    parts = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    inside = [value for value in vars(error).values() if isinstance(value, BaseException)]  # as URLError's reason
    for part in (*parts, *inside, error.__cause__, error.__context__):
        if part is not None and id(part) not in seen:
            _clean(part, values, seen)
    if error.__cause__ is not None and _tells(error.__cause__, values):
        error.__cause__ = None
    if error.__context__ is not None and _tells(error.__context__, values):
        error.__context__ = None


def _tells(error: BaseException, values: _Values) -> bool:
    """Whether an error still shows a value: some errors build their text from attributes. False for our own faults."""
    return not isinstance(error, Fault) and (values.are_in(str(error)) or values.are_in(repr(error)))


def filled_url(written: str, variables: Mapping[str, str]) -> FilledTemplate:
    """Fills in the variables of a URL. Values before the last ``@``, user and password, are escaped for URLs."""
    user, at, rest = written.rpartition("@")
    escaped = {name: urllib.parse.quote(value, safe="") for name, value in variables.items()}
    text = fill(user, escaped).reveal() + at + fill(rest, variables).reveal()
    return FilledTemplate(written, text)
