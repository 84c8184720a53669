"""Runs the shell of ``odfctl sql``: queries one after another, with history and completion.

A query ends with a semicolon and may have many lines; a command begins with a backslash. ``^C`` cancels the line, or
the running query, never the shell; ``^D`` leaves. A mistake is reported, and the shell continues.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from chain.errors import Fault
from chain.terminal_text import is_visible
from engines.query.installed import need_sql
from odfd import output
from odfd.cli import kinds
from odfd.cli.new_file import NewFile
from odfd.cli.session import Session
from odfd.cli.sql.descriptions import describe, described_dataset
from odfd.cli.sql.formats import FORMATS, answer, check_form, explained_query, remarks_of, show_plan
from odfd.cli.table import fields
from odfd.control import calls, wire
from odfd.errors import Usage
from odfd.errors import render as rendered

_WORD: Final = re.compile(r"[\w.]*\Z")
_NAME: Final = re.compile(r"[\w.]+")
_AFTER: Final = re.compile(r"\b(?:from|join)\s+[\w.]*\Z", re.IGNORECASE)
_COMMAND: Final = re.compile(r"\\\w*\Z")
CURRENT: Final = "current."
WORDS: Final = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "QUALIFY", "LIMIT", "JOIN", "LEFT JOIN", "USING",
    "WITH", "UNION ALL", "CASE", "WHEN", "THEN", "ELSE", "END", "DISTINCT", "BETWEEN", "IS NULL", "OVER (PARTITION BY",
    "FOR SYSTEM_TIME AS OF", "AT BLOCK", "AS AT",
)  # fmt: skip
COMMANDS: Final[Mapping[str, str]] = {
    "\\d": "datasets; \\d NAME: its columns",
    "\\o": "the form of answers: \\o csv",
    "\\pin": "what the last answer was read from; \\pin FILE writes it",
    "\\plan": "how a query would be answered: \\plan SELECT …",
    "\\q": "leave",
    "\\?": "this list",
}


def completions(
    before: str, datasets: Sequence[str], columns: Mapping[str, Sequence[str]], functions: Collection[str]
) -> Iterator[tuple[str, int]]:
    """Yields words for the text before the cursor, and how many of its characters each replaces.

    ``columns``: names of columns by dataset.
    """
    if command := _COMMAND.match(before.lstrip()):
        yield from ((each, len(command[0])) for each in COMMANDS if each.startswith(command[0]))
        return
    found = _WORD.search(before)
    assert found is not None
    word = found[0]
    low = word.lower()
    if before.lstrip().startswith("\\d ") or _AFTER.search(before):
        names = [*datasets, *(CURRENT + dataset for dataset in datasets)]
        yield from ((name, len(word)) for name in names if name.lower().startswith(low))
        return
    if not word:
        return
    named = set(_NAME.findall(before.lower()))
    known = [name for name in datasets if {name.lower(), CURRENT + name.lower()} & named]
    last = low.rpartition(".")[2]
    seen: set[str] = set()
    for column in (column for name in known for column in columns.get(name, ())):
        if column.lower().startswith(last) and column not in seen:
            seen.add(column)
            yield column, len(last)
    yield from ((f"{function}(", len(word)) for function in sorted(functions) if low and function.startswith(low))
    yield from ((each, len(word)) for each in WORDS if each.lower().startswith(low))


_MOST_DATASETS: Final = 200
"""Datasets whose columns are requested when a query names them."""
_FUNCTIONS: Final = (
    "abs", "avg", "coalesce", "count", "date_trunc", "dense_rank", "first", "greatest", "lag", "lead", "least",
    "length", "list", "lower", "max", "median", "min", "quantile_cont", "rank", "regexp_matches", "replace", "round",
    "row_number", "strftime", "string_agg", "substr", "sum", "trim", "upper",
)  # fmt: skip
"""Functions that are proposed."""


class Shell:
    """One session of the shell. ``request``: the settings of each query; ``form``: the format of answers."""

    def __init__(self, session: Session, request: wire.QueryRequest, form: str) -> None:
        self._session, self._request, self.form = session, request, form
        self._pins: tuple[wire.Pin, ...] = ()
        self._datasets: Sequence[str] = ()
        self._columns: dict[str, Sequence[str]] = {}

    def run(self, read: Callable[[], str]) -> None:
        """Reads and runs input until ``read`` raises EOFError."""
        while True:
            try:
                text = read().strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                continue
            try:
                if not self.take(text):
                    return
            except Fault as fault:
                output.remark(rendered(fault, self._session.verbose))
            except KeyboardInterrupt:
                output.remark("cancelled")

    def take(self, text: str) -> bool:
        """Runs one query or command. Returns whether the session continues. Raises its fault."""
        if text.startswith("\\"):
            return self._command(text)
        if statement := text.rstrip("; \n"):
            if (name := described_dataset(statement)) is not None:
                describe(self._session.client, name, self.form)
            else:
                self._ask(statement)
        return True

    def proposals(self, before: str) -> Iterable[tuple[str, int]]:
        """Returns proposals as ``completions`` does, with datasets and columns of the node."""
        if not self._datasets:
            self._look()
        for name in [name for name in self._datasets if name in before and name not in self._columns]:
            if len(self._columns) < _MOST_DATASETS:
                self._columns[name] = self._columns_of(name)
        return completions(before, self._datasets, self._columns, _FUNCTIONS)

    def _ask(self, statement: str, *, explain: bool = False) -> None:
        plain = statement if explain else explained_query(statement)
        request = msgspec.structs.replace(self._request, sql=statement if plain is None else plain)
        if plain is not None:
            show_plan(self._session.client, request)
            return
        answered = answer(self._session.client, request, self.form)
        self._pins = answered.head.pins
        for line in remarks_of(answered.head, answered.rows):
            self._session.remark(line)

    def _command(self, text: str) -> bool:
        word, _, rest = text.partition(" ")
        rest = rest.strip().rstrip(";")
        match word:
            case "\\q":
                return False
            case "\\?":
                output.say(fields(COMMANDS.items()))
            case "\\d":
                describe(self._session.client, rest, "table")
            case "\\o":
                if rest not in FORMATS:
                    raise Usage(f"there is no form {rest!r}", hint=f"one of {', '.join(FORMATS)}")
                check_form(rest)
                self.form = rest
            case "\\pin":
                self._pin(rest)
            case "\\plan":
                self._ask(rest, explain=True)
            case _:
                raise Usage(f"there is no command {word}", hint="\\? lists them")
        return True

    def _pin(self, path: str) -> None:
        text = json.dumps({"pins": msgspec.to_builtins(self._pins)}, indent=2)
        if not path:
            output.say_json(text)
            return
        NewFile(path, hint="name another file").write(text + "\n")
        self._session.remark(f"{path} has the pins of the last answer: {len(self._pins)}")

    def _look(self) -> None:
        self._datasets = [each.name for each in kinds.DATASET.all(self._session).value]

    def _columns_of(self, name: str) -> Sequence[str]:
        try:
            schema = self._session.client.do(calls.datasets_schema(name))
        except Fault:
            return ()  # it has no columns yet; a query for it reports that
        return [column.name for column in schema.value.fields if is_visible(column.name)]


def interactive(shell: Shell, environ: Mapping[str, str]) -> Callable[[], str]:
    """Returns a reader that prompts a user on a terminal. Raises Environment without SQL."""
    need_sql("prompt_toolkit")
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    place = history_file(environ)
    history: Any = InMemoryHistory() if place is None else FileHistory(str(place))
    return prompting(shell, PromptSession(history=history))


def prompting(shell: Shell, session: Any) -> Callable[[], str]:
    """Returns a reader in which Enter ends a command, or a query with a final semicolon; else it begins a line."""
    from prompt_toolkit.completion import Completer, Completion
    from prompt_toolkit.filters import Condition
    from prompt_toolkit.key_binding import KeyBindings

    class ShellCompleter(Completer):  # type: ignore[misc]
        def get_completions(self, document: Any, _: Any) -> Iterable[Any]:
            try:
                found = list(shell.proposals(document.text_before_cursor))
            except Fault:
                return  # the daemon is away: the next query reports it
            for word, replaced in found:
                yield Completion(word, start_position=-replaced)

    keys = KeyBindings()

    def is_whole() -> bool:
        text = session.default_buffer.text.strip()
        return not text or text.startswith("\\") or text.endswith(";")

    @keys.add("enter", filter=Condition(is_whole))  # type: ignore[untyped-decorator]
    def _(event: Any) -> None:
        event.current_buffer.validate_and_handle()

    def read() -> str:
        """Reads one input. Restores the handler of ``^C`` afterwards, whatever handler the prompt has left behind."""
        try:
            return str(
                session.prompt(
                    "odfd> ",
                    multiline=True,
                    prompt_continuation="    > ",
                    completer=ShellCompleter(),
                    complete_while_typing=False,
                    key_bindings=keys,
                )
            )
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    return read


def history_file(environ: Mapping[str, str]) -> Path | None:
    """Returns the file of the history, readable by its owner only; ``None`` if it cannot be made."""
    home = environ.get("XDG_STATE_HOME") or (f"{environ['HOME']}/.local/state" if environ.get("HOME") else "")
    if not home:
        return None
    place = Path(home) / "odfd" / "sql-history"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o600))
    except OSError:
        return None
    return place
