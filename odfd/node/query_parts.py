"""Makes the parts that answer queries: those of the node's owner, and those of others over permitted data."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import trio

from chain.errors import Fault
from chain.ids import DatasetId
from config.check import is_loopback
from config.model import Settings
from engines.provision.warm import EnginePool
from engines.query.reader import QueryProcesses
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.control.remote import RemoteServer
from odfd.control.tokens import Tokens
from odfd.flight.backend import FlightBackend
from odfd.flight.server import FlightListener, FlightServer
from odfd.node.component_settings import query_isolation
from odfd.queries.folds import FoldStore
from odfd.queries.inputs import QueryInputs
from odfd.queries.planning import Planner
from odfd.runtime.supervision import Life
from odfd.services.maintenance.engine import NodeEngine
from odfd.services.queries.answer_proofs import Signer
from odfd.services.queries.engine_queries import EngineQueries
from odfd.services.queries.fold_cache import FoldCache
from odfd.services.queries.projections import ProjectionTables
from odfd.services.queries.public_queries import FlightQueries, PublicQueries
from odfd.services.queries.service import QueryService
from odfd.store.access_tokens import TokenStore
from odfd.store.catalog import DatasetEntry
from odfd.store.directory import FOLDS, STAGING, StateDirectory
from odfd.trust.judgement.trust_evaluator import TrustEvaluator


def queries_of(
    home: StateDirectory,
    shown: tuple[Callable[[DatasetEntry], wire.DatasetView], TrustEvaluator],
    computes: tuple[QueryProcesses, NodeEngine],
    served: Callable[[DatasetId], int],
    settings: Settings,
    context: Context,
) -> tuple[QueryService, PublicQueries, ProjectionTables]:
    """Makes the query services, which share processes, known slices, and folds."""

    def failed(dataset: DatasetId, fault: Fault) -> None:
        context.logger.info("a fold is not kept", dataset=str(dataset), fault=str(fault), rule=fault.rule)

    processes, engine = computes
    planner = Planner(
        home, *shown, lambda name, asker: projections.named(name, asker), lambda name: projections.is_declared(name)
    )
    inputs = QueryInputs(home)
    store = FoldStore(home.folder(FOLDS), settings.query.folds_mib << 20)
    folding = FoldCache(home, store, processes, inputs, failed)
    room = home.folder(STAGING), settings.query.temporary_mib << 20
    by_engines = EngineQueries(EnginePool({"spark": (engine,)}), engine.warm, inputs, *room)
    queries = QueryService(
        planner, processes, inputs, Signer(home.keys.node_key, context.clock.now, *room), folding, by_engines
    )
    projections = ProjectionTables(home, queries, context.clock, settings.query.temporary_mib << 20)
    public = PublicQueries(home, queries, served, proves=settings.http.prove)
    return queries, public, projections


def network_listeners(
    settings: Settings, home: StateDirectory, asked: tuple[QueryService, PublicQueries], context: Context
) -> tuple[FlightServer | None, TokenStore, RemoteServer | None]:
    """Makes the Flight SQL server, the store of accounts' tokens, and the server of the control API over TCP.

    A server is ``None`` if the settings have no address for it.
    """
    tokens = TokenStore(home.database, context.clock.now, secrets.token_bytes)
    remote = RemoteServer(settings.api, tokens.admit, context.logger) if settings.api.listen else None
    return _flight_of(settings, home, asked, context), tokens, remote


def _flight_of(
    settings: Settings, home: StateDirectory, asked: tuple[QueryService, PublicQueries], context: Context
) -> FlightServer | None:
    """Makes the Flight SQL server; ``None`` if the settings have no address for it."""
    flight = settings.flight
    if not flight.listen:
        return None
    path = Path(flight.tokens) if flight.tokens else None
    tokens = Tokens(path, "flight.tokens", required=not all(map(is_loopback, flight.listen)))
    places = (address.rpartition(":") for address in flight.listen)
    listener = FlightListener(
        addresses=tuple((host.strip("[]"), int(port)) for host, _, port in places),
        certificate=flight.certificate,
        key=flight.key,
        connections=flight.connections,
    )
    backend = FlightBackend(FlightQueries(home, *asked), tokens, context.logger)
    return FlightServer(listener, backend, lambda: query_isolation(settings), context.version, context.logger)


async def run_readers(readers: QueryProcesses, life: Life) -> None:
    """Runs the query processes until asked to stop; ready once queries are answered."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(readers.run)
        await readers.serving.wait()
        life.ready()
        await life.stopping.wait()
        nursery.cancel_scope.cancel()
