"""Connects to a node: ``connect`` is the entry point of this package."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from odfd_client.appending import Appended, CommitPoint, append, commit_point
from odfd_client.datasets import Dataset
from odfd_client.errors import Invalid
from odfd_client.holds import HeldTogether, Hold, take_together
from odfd_client.leases import SECONDS, When
from odfd_client.relations import Demand, Query, Selection, parameters_of
from odfd_client.transport import Transport, is_url, socket_path
from odfd_client.values import DatasetInfo, Pin


def connect(
    socket: str | os.PathLike[str] | None = None, *, token: str = "", ca_file: str | os.PathLike[str] | None = None
) -> Client:
    """Connects to a node at a control socket: the given one, ``ODFD_SOCKET``, or the default of daemons.

    A URL (``http://HOST:PORT``, ``grpc://HOST:PORT``) reaches a node that answers queries over HTTP or Flight on the
    datasets that it has published; with a ``token`` of its ``flight.tokens``, on all. ``https://HOST:PORT`` of its
    ``api.listen`` with a ``token`` of an account answers on the datasets that the account may read. ``ca_file``:
    certificates (PEM) that verify the node's own at ``https`` or ``grpc+tls``, in place of the system's. Raises
    Unreachable if no node answers, Refused for an invalid token, Invalid.
    """
    transport = transport_to(socket, token, ca_file)
    next(iter(transport.datasets(page=1)), None)
    return Client(transport)


def transport_to(
    socket: str | os.PathLike[str] | None, token: str = "", ca_file: str | os.PathLike[str] | None = None
) -> Transport:
    """Returns the way to a node, as ``connect`` takes it, without a request. Raises Invalid."""
    if ca_file is not None and not (is_url(socket) and str(socket).startswith(("https:", "grpc+tls:"))):
        raise Invalid("certificates are for TLS", rule="url", hint="https://HOST:PORT, or grpc+tls://HOST:PORT")
    if is_url(socket) and str(socket).startswith("grpc"):
        from odfd_client.flight_transport import FlightTransport

        return FlightTransport(str(socket), token, ca_file)
    if is_url(socket):
        return Transport(str(socket), ca_file, token)
    if token:
        raise Invalid("a token is for a URL", rule="url", hint="https://HOST:PORT, or grpc+tls://HOST:PORT")
    return Transport(socket_path(socket, os.environ), ca_file)


class Client:
    """A node. It holds no connection: each request makes one."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def datasets(self) -> list[DatasetInfo]:
        """Lists the node's own datasets and its mirrors."""
        return list(map(DatasetInfo.of, self._transport.datasets()))

    def open(self, ref: str) -> Dataset:
        """Returns a dataset by its name or its id. Raises NotFound."""
        if not isinstance(ref, str) or not ref:
            raise Invalid("a dataset is named by a text", rule="dataset", hint='c.open("weather")')
        self._transport.dataset(ref)
        return Dataset(self._transport, Selection(ref))

    def hold(self, ref: str, *, at: When = None, seconds: int = SECONDS, note: str = "", owner: str = "") -> Hold:
        """Keeps a dataset's history as it is: ``with c.hold("weather") as held: held.dataset.to_arrow()``.

        ``at``: a time that is complete; by default now. The hold is renewed until the block ends, and expires
        ``seconds`` after the program died. Raises NotFound, Invalid, Refused; its end raises HoldLost if it was lost.

        ``owner``: the name of a pipeline that owns it. It does not expire and outlives the block; the next process of
        that owner finds it where it is (``time``), and what an earlier one still asks raises HoldLost.
        """
        return Hold.take(self._transport, ref, at, seconds, note, owner)

    def at(self, time: When, *refs: str, seconds: int = SECONDS, note: str = "") -> HeldTogether:
        """Holds several datasets at one time: ``with c.at(None, "a", "b") as held: held["a"].to_arrow()``.

        ``time``: ``None`` is the greatest time that is complete in all of them. Each dataset gets a hold, as of
        ``hold``.
        """
        return take_together(self._transport, refs, time, seconds, note)

    def sql(
        self, query: str, parameters: Mapping[str, Any] | Collection[Any] | None = None, *, pins: Sequence[Pin] = (),
        require: str | None = None, cut: bool = False,
    ) -> Query:  # fmt: skip
        """Builds a query. ``parameters``: in order for ``?``, or by name for ``$name``. Sends nothing yet."""
        return Query(self._transport, (query, parameters_of(parameters)), pins, Demand(require, cut))

    def commit_point(self, ref: str) -> CommitPoint:
        """Asks where a dataset ends, and for the id of its last append. Raises NotFound, and Refused for a mirror."""
        return commit_point(self._transport, ref)

    def append(
        self, ref: str, data: Any, *, id: str | None = None, after: CommitPoint | Appended | None = None,
        source: str | None = None,
    ) -> Appended:  # fmt: skip
        """Appends rows to a dataset in one transaction, with the caller's rights.

        ``data``: a table, batch or reader of Arrow, or what exports one, as data frames do. ``id``: an append of an id
        counts once: repeat it, with the same rows, after Unreachable; by default each call counts. ``after``: the rows
        must follow this block. ``source``: the push source, if the dataset has several; it has to read Parquet, and
        a dataset without one gets it.

        Raises Conflict if the dataset ends elsewhere, Refused for an id of other rows, for an account that may not
        write, and for a mirror, and Invalid for rows that do not fit.
        """
        return append(self._transport, ref, data, id, after, source)
