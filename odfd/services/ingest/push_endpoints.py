"""Receives what clients push to the endpoints of Sources, and shows and drops what waits there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Final, NamedTuple

from chain import instant
from chain.errors import Environment, Fault, Invalid, NotFound
from chain.wording import plural
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.control.operations import SOURCE_PATH, Parameter, Permission, operation
from odfd.ingest.endpoint import (
    RestEndpoint,
    buffer_of,
    check_signature,
    key_of,
    records_in,
    secret_name,
    unknown_source,
)
from odfd.ingest.push import MAX_ID
from odfd.resources.store import ResourceStore
from odfd.runtime.shared_calls import SharedCalls
from odfd.runtime.subjects import about
from odfd.services.ingest.sources import TYPE, OpenedSource, SourceReader
from odfd.services.resources.views import GetResource
from odfd.store.directory import StateDirectory
from odfd.store.spool import Backlog, Pushed, Receipt

AT_ONCE: Final = 256
"""Most pushes that one thread keeps together; more wait for the next."""


_PUSH: Final = Parameter("number", "number", "Of a push; without it, all that wait.", 1)


class _Body(NamedTuple):
    """A pushed body."""

    name: str
    data: bytes
    id: str | None = None
    headers: Mapping[str, str] | None = None
    """Of a call that has to be signed, by names in lower case."""


class _Taken(NamedTuple):
    source: OpenedSource
    receipt: Receipt
    dropped: int
    """Number of records that were dropped because the buffer was full."""


class EndpointService:
    """The API service for endpoints of Sources."""

    def __init__(
        self, home: StateDirectory, context: Context, arrived: Callable[[str], None], get: GetResource
    ) -> None:
        """``arrived`` is called in the event loop with the id of a Source to which something was pushed.

        ``get`` returns a resource by its type and name; whoever judges rights uses it.
        """
        self.get = get
        self._home, self._sources = home, SourceReader(home)
        self._events, self._clock = context.events, context.clock
        self._arrived = arrived
        self._together: SharedCalls[_Body, _Taken] = SharedCalls(self._take_all, AT_ONCE)

    @operation(needs=Permission.BY_RULE)
    async def push(self, name: str, data: bytes, push_id: str | None = None) -> wire.PushReceipt:
        """Takes in a pushed body, once for each id.

        Raises NotFound; Invalid for a body that is not of the Source's format; Refused if too much waits; Conflict for
        an id of other content; Environment if the disk fails.
        """
        return await self._push(_Body(name, data, push_id))

    async def signed_push(self, name: str, headers: Mapping[str, str], data: bytes) -> wire.PushReceipt:
        """Takes in a body that is signed for a Source, from a client without a token; otherwise as ``push``.

        ``headers``: by names in lower case. Raises the same Refused if there is no such Source.
        """
        return await self._push(_Body(name, data, None, headers))

    def _take_all(self, bodies: Sequence[_Body]) -> list[_Taken | Exception]:
        """Checks bodies, and keeps all that are sound together. Blocking."""
        sources: dict[str, tuple[OpenedSource, RestEndpoint] | Fault] = {}
        answers: dict[int, _Taken | Exception] = {}
        sound: list[tuple[int, OpenedSource, Pushed]] = []
        for at, body in enumerate(bodies):
            try:
                if body.name not in sources:
                    sources[body.name] = self._try_open(body.name)
                sound.append((at, *self._check(body, sources[body.name])))
            except Fault as fault:
                answers[at] = fault
        spool = self._home.spool
        dropping = {
            opened.id: spool.count_dropped(opened.id) for _, opened, pushed in sound if pushed.buffer is not None
        }
        kept = spool.add_all([pushed for _, _, pushed in sound], self._clock.now())
        # A Source may be deleted between ``_check`` and ``add_all``, and nobody else would ever remove what was kept.
        gone = self._find_gone({opened.id for _, opened, _ in sound})
        for (at, opened, _), receipt in zip(sound, kept, strict=True):
            if opened.id in gone:
                answers[at] = gone[opened.id]
                continue
            if not isinstance(receipt, Receipt):
                answers[at] = receipt
                continue
            before = dropping.pop(opened.id, None)  # what was dropped is told once
            dropped = 0 if before is None else spool.count_dropped(opened.id) - before
            answers[at] = _Taken(opened, receipt, dropped)
        return [answers[at] for at in range(len(bodies))]

    def _find_gone(self, sources: Collection[str]) -> Mapping[str, Fault]:
        """Returns faults for Sources that were deleted meanwhile, by id, and removes what was kept of them since.

        One that is deleted later removes it itself.
        """
        with self._home.database.read() as connection:
            missing = [source for source in sources if ResourceStore(connection).row(source) is None]
        for each in missing:
            self._home.spool.remove(each)
        hint = "odfctl get sources lists them"
        return {each: NotFound("the Source was deleted meanwhile", rule="resource", hint=hint) for each in missing}

    def _try_open(self, name: str) -> tuple[OpenedSource, RestEndpoint] | Fault:
        try:
            return self._open(name)
        except Fault as fault:
            return fault

    def _check(self, body: _Body, found: tuple[OpenedSource, RestEndpoint] | Fault) -> tuple[OpenedSource, Pushed]:
        """Checks signature, id and format of a body. Raises Fault."""
        push_id = body.id
        signature = None if isinstance(found, Fault) else found[1].signature
        if body.headers is not None and signature is None and not isinstance(found, Environment):
            raise unknown_source()
        if isinstance(found, Fault):
            raise found
        opened, endpoint = found
        if body.headers is not None and signature is not None:
            secret = opened.values[secret_name(signature.secret)]
            key = key_of(signature, secret, opened.name)
            push_id = check_signature(signature, key, body.headers, body.data, self._clock.now())
        if push_id is not None and not 0 < len(push_id) <= MAX_ID:
            raise Invalid(f"an id of {len(push_id):,} characters", rule="push-id", hint=f"1 to {MAX_ID}")
        records = records_in(body.data, opened.polled.read)
        return opened, Pushed(opened.id, body.data, records, buffer_of(endpoint), push_id)

    async def _push(self, body: _Body) -> wire.PushReceipt:
        opened, taken, dropped = await self._together.call(body)
        if dropped:
            self._events.emit(
                "source.dropped",
                opened.name,
                f"{plural(dropped, 'record')} of a full buffer dropped",
                about=about(opened.id),
            )
        self._arrived(opened.id)
        return wire.PushReceipt(
            source=opened.name, number=taken.number, records=taken.records, bytes=taken.bytes,
            repeated=taken.repeated, durable=taken.durable,
        )  # fmt: skip

    @operation("GET", SOURCE_PATH + "/endpoint", needs=Permission.BY_RULE)
    def show(self, name: str) -> wire.EndpointView:
        """Shows the pushes that wait at a Source. Raises NotFound; Invalid for a Source that is fetched."""
        opened, _ = self._open(name)
        return _view(opened.name, self._home.spool.waiting(opened.id))

    @operation("DELETE", SOURCE_PATH + "/waiting", needs=Permission.BY_RULE)
    def drop(self, name: str, number: Annotated[int | None, _PUSH]) -> wire.EndpointView:
        """Drops one waiting push, or all of them: no dataset will get their records. Raises NotFound, Invalid."""
        opened, _ = self._open(name)
        spool = self._home.spool
        gone = spool.drop_all(opened.id) if number is None else spool.drop(opened.id, number)
        text = f"{plural(gone, 'record')} dropped by an operator"
        self._events.emit("source.dropped", opened.name, text, about=about(opened.id))
        return _view(opened.name, spool.waiting(opened.id))

    def _open(self, name: str) -> tuple[OpenedSource, RestEndpoint]:
        opened = self._sources.open(name)
        if opened.endpoint is None:
            hint = f"odfctl pull NAME --source {opened.name}"
            raise Invalid(f"the {TYPE} {opened.name} is fetched, not pushed to", rule="source-endpoint", hint=hint)
        return opened, opened.endpoint


def _view(name: str, waiting: Backlog) -> wire.EndpointView:
    return wire.EndpointView(
        name=name,
        path=f"/source/v1alpha1/sources/{name}/ingest",
        pushes=waiting.pushes,
        records=waiting.records,
        bytes=waiting.bytes,
        first=waiting.first or None,
        last=waiting.last or None,
        oldest_at=None if waiting.oldest is None else instant.render(waiting.oldest),
        dropped=waiting.dropped,
    )
