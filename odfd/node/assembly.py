"""Opens a node from its settings: makes its parts, its API, and the list of tasks to run, in start order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from config.model import Settings
from odfd.api.routes import application
from odfd.api.services import Services
from odfd.control.assembly import Assembly, Context
from odfd.node.gauges import serve_metrics
from odfd.node.handlers import access_of, services_of, smart_backend_of
from odfd.node.in_force import InForce
from odfd.node.parts import NodeParts
from odfd.node.query_parts import run_readers
from odfd.runtime.http import Application
from odfd.runtime.supervision import Child, Restart
from odfd.services.maintenance.former_containers import remove_former_containers
from odfd.services.maintenance.incident_keeper import IncidentKeeper
from odfd.store.directory import open_state_directory
from odfd.store.idempotency import AnswerStore


@contextmanager
def build_node(settings: Settings, context: Context) -> Iterator[Assembly]:
    """Opens the state directory and assembles a node; implements ``odfd.control.assembly.Build``."""
    directory = Path(settings.node.state_dir)
    is_entered = bool(settings.control.group) and directory in Path(settings.control.socket).parents
    in_force = InForce(settings)
    with open_state_directory(
        directory, is_entered=is_entered, terms=in_force.home_terms(context.clock, context.bus)
    ) as home:
        parts = NodeParts(home, in_force, context)
        yield assembly_of(parts, services_of(parts))


def assembly_of(parts: NodeParts, services: Services) -> Assembly:
    restart = Restart()
    workers = [
        Child("outbox", parts.outbox.run, restart),
        Child("forks", parts.forks.run, restart),
        Child("mirrors", parts.scheduler.run, restart),
        Child("signers", parts.journal_recovery.loop.run, restart),
        Child("heads", parts.heads.loop.run, restart),
        Child("cards", parts.cards.loop.run, restart),
        Child("node-card", parts.node_card.loop.run, restart),
        Child("views", parts.views.refresher.loop.run, restart),
        Child("validator", parts.validator.loop.run, restart),
        Child("rechecking", parts.rechecker.loop.run, restart),
        Child("observer", parts.observer.run, restart),
        Child("review", parts.suspension_review.loop.run, restart),
        Child("witness", parts.witnessing.loop.run, restart),
        Child("submissions", parts.submissions.run, restart),
        Child("collection", parts.collection.run, restart),
        Child("sizes", services.datasets.states.summing.run, restart),
        Child("publications", parts.publications.loop.run, restart),
        Child("flows", parts.flows.run, restart),
        Child("webhooks", parts.webhooks.run, restart),
        Child("handovers", parts.handovers.loop.run, restart),
        Child("renditions", services.renditions.upkeep.loop.run, restart),
        Child("volumes", parts.volumes.run, restart),
        Child("reconciler", parts.reconciler.run, restart),
        Child("dependencies", services.about.dependencies.loop.run, restart),
        Child("incidents", IncidentKeeper(parts.home.database, parts.context.events).run, restart),
    ]
    answers = AnswerStore(parts.home.database, parts.context.clock.now)
    access = access_of(parts, services)
    api = application(services, parts.context.logger, answers, access)
    parts.late.api.fill(api)
    parts.late.smart_backend.fill(smart_backend_of(parts, access))
    parts.late.check()
    parts.context.servers.append(services.page.server)
    if parts.remote is not None:
        parts.context.servers.append(parts.remote.server)
    return Assembly(
        api=api,
        foundations=(
            *serve_metrics(parts),
            Child("engine", parts.engine.run),
            Child("queries", partial(run_readers, parts.readers)),
            *_containers(parts),
            # ``from_start=False``: a port that is taken at the start is a mistake of the settings, and ends the node.
            Child("page", services.page.run, Restart(from_start=False)),
            Child("network", parts.run_network, Restart(from_start=False)),
            Child("remotes", parts.remotes.run),
            *([] if parts.site is None else [Child("site", parts.site.run, Restart(from_start=False))]),
            *_remote(parts, api, services),
            *(child for door in parts.doors.values() for child in door.children()),
        ),
        workers=tuple(workers),
        reload=parts.reload,
    )


def _remote(parts: NodeParts, api: Application, services: Services) -> tuple[Child, ...]:
    if parts.remote is None:
        return ()
    run = partial(parts.remote.run, api, services.endpoints.signed_push)
    return (Child("api", run, Restart(from_start=False)),)


def _containers(parts: NodeParts) -> tuple[Child, ...]:
    settings = parts.ingest_deps.settings
    if settings.container == "never":
        return ()
    return (Child("containers", partial(remove_former_containers, settings, parts.context.logger)),)
