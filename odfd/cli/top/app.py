"""Shows the repeatedly polled state of a node on a terminal, by Textual: only ``odfctl top`` imports it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import DataTable, Footer, Static

from chain.errors import Fault
from chain.instant import Instant
from odfd.cli import formatting, kinds
from odfd.cli.table import WHOLE, TableColumn, clean, drop_empty
from odfd.cli.top.polling import Need, PollAnswers, needs, rates
from odfd.control import wire
from odfd.resources import registry

MOST: Final = 200
"""Rows of a table; the heading has the number of all."""
_NEEDS: Final = (
    TableColumn[Need]("STATE", lambda need: need.state),
    TableColumn[Need]("WHAT", lambda need: need.what),
    TableColumn[Need]("", lambda need: need.message, most=WHOLE),
)
_PARTS: Final = (("needs", "Needs you"), ("tasks", "Tasks"), ("mirrors", "Mirrors"), ("peers", "Peers"))


class TopApp(App[None]):
    """The application. ``look`` polls the node, in a thread, every ``every`` seconds."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #node { height: auto; padding: 0 1; }
    .title { height: 1; padding: 0 1; margin-top: 1; text-style: bold; }
    DataTable { height: auto; max-height: 14; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Leave"),
        Binding("space", "rest", "Rest / continue", priority=True),
        Binding("r", "look", "Look now"),
        *(Binding(str(n), f"go('{part}')", title) for n, (part, title) in enumerate(_PARTS, 1)),
    ]

    def __init__(self, look: Callable[[], PollAnswers], now: Callable[[], Instant], every: float) -> None:
        super().__init__()
        self._ask, self._now, self._every = look, now, every
        self._last: PollAnswers | None = None
        self._rests = False

    def compose(self) -> ComposeResult:
        yield Static(id="node", markup=False)
        with VerticalScroll(can_focus=False):
            for part, title in _PARTS:
                yield Static(title, id=f"{part}-title", classes="title", markup=False)
                yield DataTable(id=part, cursor_type="row")
        yield Footer()

    def on_mount(self) -> None:
        self.action_look()
        self.set_interval(self._every, self._again)

    def _again(self) -> None:
        if not self._rests:
            self.action_look()

    def action_rest(self) -> None:
        self._rests = not self._rests
        self.sub_title = "at rest" if self._rests else ""
        if self._last is not None:
            self._head(self._last.status)

    def action_go(self, part: str) -> None:
        self.query_one(f"#{part}", DataTable).focus(scroll_visible=True)

    @work(thread=True, exclusive=True)
    def action_look(self) -> None:
        try:
            look = self._ask()
        except Fault as fault:
            self.call_from_thread(self._show_fault, fault)
        else:
            self.call_from_thread(self.show, look)

    def _show_fault(self, fault: Fault) -> None:
        """Shows a fault in place of the facts at the top; the tables stay."""
        self.query_one("#node", Static).update(clean(f"{fault.message}: {fault.hint}", WHOLE))

    def show(self, look: PollAnswers) -> None:
        moved, now = rates(self._last, look), self._now()
        tasks = sorted(look.tasks, key=_running_first, reverse=True)
        peers = sorted(look.peers, key=lambda one: not registry.state(one).get("connected"))
        self._head(look.status)
        self._table("needs", needs(look), _NEEDS)
        self._table("tasks", tasks, _with_rate(kinds.TASK.columns(now), lambda one: moved.get(one.name)))
        self._table("mirrors", look.mirrors, _with_rate(kinds.MIRROR.columns(now), lambda one: moved.get(one.id)))
        self._table("peers", peers, kinds.PEER.columns(now))
        self._last = look

    def _head(self, status: wire.Status) -> None:
        disk, engine = status.disk, status.engine
        facts = [
            f"{status.name or '(unnamed)'}  {status.version}  up since {formatting.moment(status.started_at)}",
            f"datasets {sum(status.datasets.values()):,} ({status.published:,} published)",
            f"peers {status.peers:,}",
            f"tasks {status.tasks:,}",
            f"memory {formatting.size(status.memory)}",
            f"disk {formatting.size(disk.free)} free" if disk else "",
            f"engine {engine.state.replace('-', ' ')}" if engine else "",
            self.sub_title,
        ]
        self.query_one("#node", Static).update(clean("  ".join(filter(None, facts)), WHOLE))

    def _table(self, part: str, rows: Sequence[Any], columns: Sequence[TableColumn[Any]]) -> None:
        """Fills a table, and keeps the selected row. Cells are untrusted text, never markup."""
        title = dict(_PARTS)[part]
        more = f", the first {MOST}" if len(rows) > MOST else ""
        self.query_one(f"#{part}-title", Static).update(f"{title}: {len(rows):,}{more}" if rows else f"{title}: none")
        table = self.query_one(f"#{part}", DataTable)
        at, left = table.cursor_row, table.scroll_offset
        columns = drop_empty(columns, rows[:MOST])
        titles = [column.title for column in columns]
        if [str(column.label) for column in table.columns.values()] != titles:
            table.clear(columns=True)
            for title in titles:
                table.add_column(Text(title))
        table.clear()
        for row in rows[:MOST]:
            table.add_row(*(_cell(column, row) for column in columns))
        table.display = bool(rows)
        table.move_cursor(row=min(at, max(0, table.row_count - 1)), scroll=False)
        table.scroll_to(left.x, left.y, animate=False)


def _cell(column: TableColumn[Any], row: Any) -> Text:
    return Text(clean(column.cell(row), column.most), justify="right" if column.right else "left", no_wrap=True)


def _running_first(row: wire.ResourceManifest) -> tuple[bool, str]:
    task = row.state(wire.TaskState)
    return task.state in ("running", "waiting"), task.started_at or "9"


def _with_rate(columns: Sequence[TableColumn[Any]], rate: Callable[[Any], float | None]) -> list[TableColumn[Any]]:
    """Adds a column of rates before the last column, which holds long messages."""

    def said(row: Any) -> str:
        found = rate(row)
        return formatting.NOTHING if found is None else f"{formatting.size(found)}/s"

    return [*columns[:-1], TableColumn("RATE", said, right=True), columns[-1]]
