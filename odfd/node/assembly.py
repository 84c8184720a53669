"""Opens a node from its settings: makes its features and its API, and lists what runs, in start order."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from config.model import Settings
from odfd.api.access.requests import AccessControl
from odfd.api.routes import application
from odfd.api.services import Services, services_among
from odfd.api.smart_backend import NodeSmartBackend
from odfd.control.assembly import Assembly, Context
from odfd.control.board import LogEvents, LogService
from odfd.node.features import NodeFeatures
from odfd.node.readings import Readings
from odfd.obs.metrics_server import MetricsServer, Probing
from odfd.page.server import PageServer
from odfd.resources.store import ResourceStore
from odfd.runtime.http import Application
from odfd.runtime.supervision import Child
from odfd.services.feature import InForce, listener, worker
from odfd.services.node_events import SettingsChanged
from odfd.services.webhooks.feature import webhook_networks
from odfd.store.directory import open_state_directory
from odfd.store.idempotency import AnswerStore

FOUNDATIONS: Final = (
    "metrics", "survey", "engine", "queries", "containers", "page", "network", "remotes", "site", "api",
)  # fmt: skip
"""What is started before any task runs, and stopped after the last, in order: metrics first, so that they are given
during the start, and ``network`` before what its peers wake."""
WORKERS: Final = (
    "outbox", "forks", "mirrors", "signers", "heads", "cards", "node-card", "views", "validator", "rechecking",
    "observer", "review", "witness", "submissions", "collection", "sizes", "publications", "flows", "webhooks",
    "handovers", "renditions", "volumes", "reconciler", "dependencies", "incidents",
)  # fmt: skip
"""What is started when tasks can run, and stopped before they are drained, in order: what answers peers before what
works by itself, and the reconciler when all that it asks is there."""


@contextmanager
def build_node(settings: Settings, context: Context) -> Iterator[Assembly]:
    """Opens the state directory and assembles a node; implements ``odfd.control.assembly.Build``."""
    directory = Path(settings.node.state_dir)
    is_entered = bool(settings.control.group) and directory in Path(settings.control.socket).parents
    in_force = InForce(settings)
    terms = in_force.home_terms(context.clock, context.bus)
    with open_state_directory(directory, is_entered=is_entered, terms=terms) as home:
        features = NodeFeatures(home, in_force, context)
        yield assembly_of(features, services_of(features))


def services_of(features: NodeFeatures) -> Services:
    """Finds the services of the control API among the operations of all features, and adds those of the process."""
    context, settings = features.ground.context, features.ground.settings
    page = PageServer(settings.http, partial(secrets.token_urlsafe, 32), context.logger, features.api)
    operations = [operation for each in features.all for operation in each.operations]
    return services_among([*operations, LogEvents(context.events), LogService(context.lines), page])


def assembly_of(features: NodeFeatures, services: Services) -> Assembly:
    context, home = features.ground.context, features.ground.home
    access = access_of(features, services)
    answers = AnswerStore(home.database, context.clock.now)
    api = application(services, context.logger, answers, access)
    features.api.fill(api)
    features.smart_backend.fill(_make_smart_backend(features, access))
    context.servers.append(services.page.server)
    children = [
        *_serve_metrics(features),
        *(child for each in features.all for child in each.children),
        listener("page", services.page.run),
        *_serve_remotely(features, api),
    ]
    by_name = {child.name: child for child in children}
    foundations = [by_name.pop(name) for name in FOUNDATIONS if name in by_name]
    foundations += [child for door in features.queries.doors.values() for child in door.children()]
    workers = tuple(by_name.pop(name) for name in WORKERS)
    assert not by_name, f"say when these are started: {sorted(by_name)}"
    return Assembly(api=api, foundations=tuple(foundations), workers=workers, reload=partial(reload, features))


def reload(features: NodeFeatures, settings: Settings) -> None:
    """Applies new settings. Raises Invalid for an impossible policy or malformed networks; then nothing is changed."""
    features.judgement.check(settings)
    webhook_networks(settings)
    features.ground.in_force.settings.put(settings)
    features.ground.bus.publish(SettingsChanged(settings))
    features.judgement.change_policy()


def access_of(features: NodeFeatures, services: Services) -> AccessControl:
    """Makes the access control, which decides who makes each request, and what the things of accounts may use."""
    home = features.ground.home
    with home.database.read() as connection:
        log = ResourceStore(connection).epoch().encode()
    # With the identity of the log: a position in an earlier one does not open here, and the client lists anew.
    key = hmac.digest(home.keys.node_seed(), b"odfd: positions of accounts in the log " + log, hashlib.sha512)
    about = services.tasks.about, services.declarations.subjects
    return AccessControl(home, home.access, os.geteuid(), about, features.access.tokens.is_good, key=key)


def _make_smart_backend(features: NodeFeatures, access: AccessControl) -> NodeSmartBackend:
    """Makes the backend of the smart protocol, which decides what tokens permit over HTTP."""
    return NodeSmartBackend(
        features.ground.home,
        features.peers.library,
        (access, features.access.tokens),
        features.transfer.import_export,
        features.transfer.remotes,
        features.ground.context,
        lambda: secrets.token_hex(8),
    )


def _serve_remotely(features: NodeFeatures, api: Application) -> tuple[Child, ...]:
    remote = features.access.remote
    if remote is None:
        return ()
    features.ground.context.servers.append(remote.server)
    return (listener("api", partial(remote.run, api, features.ingest.endpoints.signed_push)),)


def _serve_metrics(features: NodeFeatures) -> tuple[Child, ...]:
    """Returns nothing if the settings name no address; then nothing is counted in the background either."""
    context, addresses, readings = features.ground.context, features.ground.settings.metrics.listen, Readings(features)
    if not addresses:
        return ()
    probing = Probing(readings.scrape, readings.why_not_ready, readings.dependencies)
    metrics = MetricsServer(addresses, probing, context.meter, context.logger)
    context.servers.append(metrics.server)
    return listener("metrics", metrics.run), worker("survey", readings.surveyor.loop.run)
