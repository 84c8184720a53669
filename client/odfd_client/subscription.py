"""Delivers new rows of a dataset, each once. Events of the node trigger reads, offsets identify new rows.

A position is the offset of the last row that was delivered, and the block up to which was read. Later blocks must
follow that block: if a history was rewritten, a listener ends with an error and never skips or repeats rows.
"""

from __future__ import annotations

import atexit
import json
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from odfd_client.answer_stream import Answer
from odfd_client.errors import Bug, HandedOver, NotFound, OdfdError, Refused, from_problem
from odfd_client.transport import Exchange, Transport, part
from odfd_client.values import NodeMetadata, Pin, Position

MARK = "odfd client offset"
"""The last column of rows for a listener: their offsets."""
_ENDED = ("Superseded", "Sealed")
_RENAMES = 8
"""Attempts to read a collection by its name while that changes."""
_MAX_EVENT = 1 << 24
_RESET = "reset"
"""Kind of the last event of a stream whose account's rights changed."""
_LATEST = 1 << 62
"""An event number that never existed: the node reports that at once, and so confirms that the stream has begun."""


@dataclass(frozen=True, slots=True)
class Update:
    """Rows, and the position after them. Save ``position`` together with the results from the rows."""

    batch: pa.RecordBatch
    position: Position
    standing: str
    complete: bool = False
    """Whether they are the last rows of one cut: then all rows of all shards were delivered, up to one time."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Time that passed: all rows of times before ``upper`` were delivered, and none of them will follow."""

    upper: str | None
    """A time (RFC 3339); ``None``: the history is sealed, so no row at all will follow."""
    position: Position | None
    """The position of the last rows; ``None``: there were none yet."""


class Rows(Protocol):
    """Rows of a log after a position, in order; the last column has their offsets."""

    told: NodeMetadata
    more: bool
    is_checked: bool

    def batches(self) -> Iterator[pa.RecordBatch]: ...

    def __enter__(self) -> Rows: ...

    def __exit__(self, *_: object) -> None: ...


@dataclass(frozen=True, slots=True)
class Look:
    """The knowledge of a log before its rows are read."""

    newest: str
    """Hash of the newest block of a single chain; empty: there is none."""
    ended: bool
    """Whether another rendition has replaced this one, which gets no more rows."""
    pins: tuple[Pin, ...] = ()
    """The cuts of all shards at one time, if they are known already."""
    rows: Rows | None = None
    """The rows of a single chain, if they came together with this."""


class Source(ABC):
    """The port of a subscription to a node."""

    def __init__(self, transport: Transport, ref: str, *, always: bool, whole: bool) -> None:
        """``always``: there may be new rows without a new block. ``whole``: no row is filtered out."""
        self.transport, self.ref, self.always, self.whole = transport, ref, always, whole
        self.together = not ref.startswith("did:")
        """Whether all shards are read, if there are several."""

    @abstractmethod
    def after(self, dataset: str, offset: int, mark: str, pin: Pin | None = None) -> Answer:
        """Returns the rows of a dataset, by its id, after an offset, in order; the last column, ``mark``, has their
        offsets.

        ``pin``: the cut up to which is read; ``None``: the newest.
        """

    def rows(self, dataset: str, position: Position | None, mark: str, pin: Pin | None = None) -> Rows:
        """Returns the rows after a position, as ``after`` does. It may be fewer (``more``)."""
        return self.after(dataset, -1 if position is None else position.offset, mark, pin)

    def look(self, dataset: str, position: Position | None, *, together: bool, follow: bool) -> Look:  # noqa: ARG002
        """Looks for news of a dataset, by its id, for a reader at a position; ``together``: of all shards.

        ``follow``: whether its end matters.
        """
        ended = follow and self.has_ended(dataset)  # asked first: rows from before the end are delivered first
        return Look("" if together else self.newest(dataset), ended)

    @abstractmethod
    def cut(self, name: str) -> tuple[Pin, ...]:
        """Returns the cuts of all shards of a dataset, by its name, at one time."""

    def describe(self) -> dict[str, Any]:
        return self.describe_dataset(self.ref)

    def describe_dataset(self, ref: str) -> dict[str, Any]:
        """Returns the description of a dataset, as the node gives it."""
        return self.transport.dataset(ref)

    def upper(self, dataset: str) -> str | None:
        """Returns the frontier of a dataset, by its id: earlier times are complete; ``None``: it is sealed.

        Raises Refused for a node that does not say it.
        """
        frontiers = self.describe_dataset(dataset).get("frontiers")
        if not isinstance(frontiers, dict):
            hint = "ask a node at its own socket: connect()"
            raise Refused(f"the node does not say how far {self.ref} is complete", rule="listen-progress", hint=hint)
        found = frontiers.get("upper")
        return None if found is None else str(found)

    def newest(self, dataset: str) -> str:
        """Returns the hash of the newest block; empty: there is none."""
        found = self.transport.get(f"/dataset/v1alpha1/datasets/{part(dataset)}/blocks", {"limit": 1})
        return str(found[0]["hash"]) if found else ""

    def holds(self, position: Position) -> bool:
        """Whether the chain has the block of a position."""
        path = f"/dataset/v1alpha1/datasets/{part(position.id)}/blocks/{position.sequence_number}"
        try:
            return bool(self.transport.get(path)["hash"] == position.block)
        except NotFound:  # the chain is shorter now
            return False

    def has_ended(self, dataset: str) -> bool:
        """Whether another rendition has replaced this one, which gets no more rows."""
        if self.transport.is_remote:
            return False
        found = self.transport.get(f"/dataset/v1alpha1/datasets/{part(dataset)}/renditions")
        return any(each["datasetId"] == dataset and each["state"] in _ENDED for each in found)

    def was_before(self, former: str, dataset: str) -> bool:
        """Whether a dataset is a former rendition of the collection that another one is of."""
        if self.transport.is_remote:
            return False
        try:
            found = self.transport.get(f"/dataset/v1alpha1/datasets/{part(former)}/renditions")
        except NotFound:
            return False
        ended = {str(each["datasetId"]) for each in found if each["state"] in _ENDED}
        return former in ended and dataset in {str(each["datasetId"]) for each in found}

    def handed_over(self, dataset: str) -> HandedOver:
        return HandedOver(
            f"{self.ref} handed over: what was listened to is not its active rendition any more",
            rule="listen-handover",
            hint=f"odfctl diff --current --values {dataset} {self.ref} shows how they differ; cross() goes on",
        )

    def stands_on(self, position: Position) -> None:
        """Raises NotFound if the block of a position is no longer in the chain."""
        if not self.holds(position):
            raise NotFound(
                f"block #{position.sequence_number} of {self.ref} is not the one that was listened to: its history was"
                " rewritten",
                rule="listen-rewritten",
                hint="start again without a position, and replace the results of the former rows",
            )


def listen(source: Source, after: Position | None, *, follow: bool, seconds: float) -> Generator[Update, None, None]:
    """Implements ``Dataset.listen``."""
    for item in progressing(source, after, follow=follow, seconds=seconds, progress=False):
        if isinstance(item, Update):
            yield item


def progressing(
    source: Source, after: Position | None, *, follow: bool, seconds: float, progress: bool
) -> Generator[Update | Progress, None, None]:
    """Yields what ``listen`` does; with ``progress`` also how far the frontier moved, when that is all delivered."""
    described = source.describe()
    dataset = str(described["id"])
    if after is not None and after.id != dataset and source.was_before(after.id, dataset):
        raise source.handed_over(after.id)
    shards = tuple(map(str, described.get("shards") or ())) if source.together else ()
    _check_position(source, after, shards or (dataset,))
    ids, name = shards or (dataset,), str(described["name"])
    position, seen, resumed = after, "", after is not None
    told = _Pauses() if source.transport.is_remote else _News(source.transport, ids, name)
    reached: str | None = ""
    with closing(told) as news:
        while True:
            news.clear()
            # Asked first: what is read afterwards has all rows of earlier times. A rendition is not handed over before
            # its frontier, so none of them belongs to another one.
            upper = source.upper(dataset) if progress else reached
            look = source.look(dataset, position, together=bool(shards), follow=follow)
            if shards or source.always or look.newest != seen:
                done, rows = False, look.rows
                whole = None if shards or not look.pins else replace(look.pins[0], name=dataset)
                while not done:
                    cut = look.pins if tuple(pin.id for pin in look.pins) == shards else None
                    some = (
                        of_shards(source, shards, position, cut, resumed=resumed)
                        if shards
                        else deliver(source, dataset, position, whole, rows)
                    )
                    rows = None
                    done, position = yield from _mark_last(some)
                    resumed = False
                seen = look.newest
            if upper != reached and not look.ended:
                yield Progress(upper, position)
                reached = upper
            if not follow:
                return
            if follow and look.ended:
                raise source.handed_over(dataset)
            news.wait(seconds)


def _check_position(source: Source, after: Position | None, ids: Sequence[str]) -> None:
    """Raises NotFound for the position of another dataset, or of other shards."""
    if after is not None and tuple(each.id for each in after.parts) != tuple(ids):
        hint = "each dataset has positions of its own, and a shard by its id has others than all together"
        raise NotFound(f"the position is of {after.id}, not of {source.ref}", rule="listen-position", hint=hint)


Some = Generator[Update, None, tuple[bool, Position | None]]
"""Updates; returns whether they were all rows of one cut, and the position after them."""


def _mark_last(updates: Some) -> Some:
    """Passes updates on, each when the next one has come; marks the last one if it completes its cut."""
    waiting: Update | None = None
    while True:
        try:
            update = next(updates)
        except StopIteration as end:
            if waiting is not None:
                yield replace(waiting, complete=end.value[0])
            found: tuple[bool, Position | None] = end.value
            return found
        except OdfdError:
            if waiting is not None:
                yield waiting
            raise
        if waiting is not None:
            yield waiting
        waiting = update


def of_shards(
    source: Source,
    shards: Sequence[str],
    position: Position | None,
    up_to: Sequence[Pin] | None = None,
    *,
    resumed: bool = False,
) -> Some:
    """Yields the rows after a position, up to one time of all shards: shard by shard, in the order of offsets.

    ``resumed``: the position was saved, perhaps between two batches of a cut, so that rows of its own block are left.
    """
    parts = [Position(shard, -1, "", -1) for shard in shards] if position is None else list(position.parts)
    for place, pin in enumerate(_cut(source, shards) if up_to is None else up_to):
        done = not resumed and (parts[place].block, parts[place].sequence_number) == (pin.block, pin.sequence_number)
        while not done:
            begun = parts[place] if parts[place].block else None
            rows = deliver(source, shards[place], begun, replace(pin, name=pin.id))
            while True:
                try:
                    update = next(rows)
                except StopIteration as end:
                    done = end.value[0]
                    break
                parts[place] = update.position
                yield replace(update, position=Position.of(parts))
        parts[place] = Position(shards[place], parts[place].offset, pin.block, pin.sequence_number)
    return True, Position.of(parts)


def _cut(source: Source, shards: Sequence[str]) -> Sequence[Pin]:
    """Returns the cuts of these shards at one time, also if a handover gave the collection's name other shards."""
    for _ in range(_RENAMES):
        pins = source.cut(str(source.describe_dataset(shards[0])["name"]))
        if tuple(pin.id for pin in pins) == tuple(shards):
            return pins
    raise Bug(f"the shards of {source.ref} are not those that were listened to", rule="listen-dataset")


def deliver(
    source: Source, dataset: str, position: Position | None, up_to: Pin | None = None, rows: Rows | None = None
) -> Generator[Update, None, tuple[bool, Position | None]]:
    """Yields the rows after a position, of one request. Returns whether they were all, and the position after them.

    ``rows``: the answer to the request, if it came already.
    """
    with source.rows(dataset, position, MARK, up_to) if rows is None else rows as answer:
        (pin,) = answer.told.pins
        if pin.id != dataset:
            raise Bug(f"rows of {pin.id} came, not of {dataset}", rule="listen-dataset", hint="please report it")
        if position is not None and not answer.is_checked:
            source.stands_on(position)
        moved = False
        try:
            for batch in answer.batches():
                if batch.num_rows:
                    position = _after(batch, position, pin, whole=source.whole)
                    moved = True
                    yield Update(batch.drop_columns([MARK]), position, answer.told.standing)
        except Refused as refusal:
            # A slow reader uses up the time of a query: the next query continues where it stopped.
            if not moved or refusal.rule != "query-deadline":
                raise
            return False, position
        return not answer.more, position


def _after(batch: pa.RecordBatch, position: Position | None, pin: Pin, *, whole: bool) -> Position:
    """Returns the position after a batch. Raises Bug for a repeated row, or, in ``whole`` logs, a missing one."""
    offsets = batch.column(batch.schema.get_field_index(MARK))
    last = -1 if position is None else position.offset
    rises = not offsets.null_count and offsets[0].as_py() > last
    if not rises or not (len(offsets) == 1 or pc.all(pc.greater(offsets[1:], offsets[:-1])).as_py()):
        raise Bug("rows came out of the order of their offsets", rule="listen-order", hint="please report it")
    if whole and offsets[-1].as_py() != last + len(offsets):
        said = f"not all rows came from offset {last + 1} to {offsets[-1].as_py()}"
        raise Bug(said, rule="listen-order", hint="please report it")
    return Position(pin.id, offsets[-1].as_py(), pin.block, pin.sequence_number)


class _Pauses:
    """Pauses between reads of a remote node, which sends events only on its own machine."""

    def clear(self) -> None: ...

    def close(self) -> None: ...

    def wait(self, seconds: float) -> None:
        threading.Event().wait(seconds)


def _events(transport: Transport) -> Exchange:
    """Returns the stream of events from now on. Raises the node's error."""
    events = transport.ask("GET", "/resource/v1alpha1/events", {"since": _LATEST}, patience=None)
    try:
        # The node reports that an event of this number never existed; from then on it misses none.
        events.line(_MAX_EVENT)
    except BaseException:
        events.close()
        raise
    return events


_open_news: weakref.WeakSet[_News] = weakref.WeakSet()


@atexit.register
def _close_news() -> None:
    """Ends the threads of listeners that a program leaves open at its end: Python aborts if they still read then."""
    for each in list(_open_news):
        each.close()


class _News:
    """Reads the node's events in a thread, and notes whether one was about one of the chains."""

    def __init__(self, transport: Transport, ids: Sequence[str], name: str) -> None:
        """``ids``: those of all shards. ``name``: the dataset's name, which a rename of the first shard changes."""
        self._ids, self._name = ids, name
        self._come = threading.Event()
        self._fault: OdfdError | None = None
        self._transport, self._lock, self._is_closed = transport, threading.Lock(), False
        self._events = _events(transport)
        _open_news.add(self)
        self._thread = threading.Thread(target=self._read, name="odfd events", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self._events.close()
            raise

    def clear(self) -> None:
        self._come.clear()

    def wait(self, seconds: float) -> None:
        """Waits until there is news, or for ``seconds``. Raises Unreachable when the node is gone."""
        self._come.wait(seconds)
        if self._fault is not None:
            raise self._fault

    def close(self) -> None:
        _open_news.discard(self)
        with self._lock:
            self._is_closed = True
            self._events.interrupt()
        if self._thread.is_alive():
            self._thread.join()
        self._events.close()

    def _read(self) -> None:
        try:
            while True:
                event = json.loads(self._events.line(_MAX_EVENT))
                if "problem" in event:
                    raise from_problem(event["problem"])
                if event.get("kind") == _RESET and not self._goes_on():
                    return
                if self._is_about(event):
                    self._come.set()
        except OdfdError as fault:
            self._fault = fault
        except (ValueError, TypeError, AttributeError) as error:
            self._fault = Bug(f"an event of the node is not understood: {error}", rule="answer")
        finally:
            self._come.set()

    def _goes_on(self) -> bool:
        """Opens a new stream, as rights of the account changed. Returns whether the listener is still open."""
        events = _events(self._transport)
        with self._lock:
            former, self._events = self._events, events
            if self._is_closed:
                events.interrupt()
        former.close()
        return not self._is_closed

    def _is_about(self, event: dict[str, Any]) -> bool:
        data = event.get("data") or {}
        if data.get("id") in self._ids:
            if data.get("id") == self._ids[0] and event.get("kind") == "dataset.renamed":
                self._name = str(event.get("subject"))
            return True
        return event.get("kind") in ("lagged", _RESET) or event.get("subject") in (self._name, *self._ids)
