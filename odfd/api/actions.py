"""Lists the endpoints of the API for everything but reading and declaring resources: one for each operation.

An action on one resource has its path below that resource (``OF_RESOURCES``); what the node itself does and sees has
its path below ``NODE``. Resources are read and changed only at their own paths (``resource_protocol``).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from chain.errors import Refused
from engines.query.frames import MEDIA_TYPE as FRAMES
from odfd.api import resource_operations as operations
from odfd.api.endpoints import (
    JSON,
    OCTETS,
    SINCE,
    WATCH,
    Ask,
    Parameter,
    asks,
    is_watch,
    on_dataset,
    path_part,
    with_body,
)
from odfd.control import wire
from odfd.control.board import known_kinds
from odfd.control.endpoint import CALLER
from odfd.control.responses import (
    FrameStream,
    LineStream,
    answer,
    body,
    flag,
    lines,
    number,
    since_of,
    stream_of,
    whole_body,
)
from odfd.errors import Usage
from odfd.flows.manifest import FLOW_TYPE
from odfd.obs.log_lines import LineFilter
from odfd.resources.registry import VERSION
from odfd.services.network.network_types import NETWORK_TYPE, PEER_TYPE

if TYPE_CHECKING:
    # Not imported at run time: tests serve these endpoints over a fake node, without services.
    from odfd.api.services import Services

MAX_ROWS: Final = 10_000
"""Most blocks or records in one answer."""
DEFAULT_ROWS: Final = 20
LIMIT: Final = Parameter("limit", "number", "Blocks or records at the most.", 1, MAX_ROWS, DEFAULT_ROWS)
MANY: Final = Parameter("limit", "number", "Lines at the most.", 1, MAX_ROWS, DEFAULT_ROWS * 5)
KIND: Final = Parameter("kind", "texts", "A kind; given several times, several kinds.")
_BOOKMARK: Final = Parameter("bookmark", "flag", "With watch: also tell how far the log was read, before new changes.")
FOLLOW: Final = Parameter("follow", "flag", "Answer with a stream, which goes on.")


def _rows(request: Request) -> int:
    return LIMIT.number(request) or DEFAULT_ROWS


_name = path_part


@asks(
    KIND, LIMIT,
    Parameter("before", "text", "Only blocks that come after this one: its hash, or of one chain its sequence number."),
    Parameter("epoch", "number", "Blocks of this epoch, which a later one gave up."),
    answers=Sequence[wire.BlockView],
)  # fmt: skip
async def _log(services: Services, request: Request) -> object:
    """Lists blocks of a dataset, newest first."""
    kinds = request.query_params.getlist("kind")
    before, epoch = request.query_params.get("before"), number(request, "epoch", None)
    return await services.datasets.log(_name(request), kinds, _rows(request), before, epoch)


@asks(Parameter("name", "text", "Of the file, for messages."), takes=bytes, body_types=(OCTETS,), answers=wire.Upload)
async def _stage(services: Services, request: Request) -> object:
    """Uploads a file, for a later ingest."""
    async with aclosing(request.stream()) as chunks:
        return await services.flow.stage(request.query_params.get("name", "-"), chunks)


@asks(
    Parameter("id", "text", "Of the push: it counts once, however often it comes."),
    takes=bytes, body_types=(OCTETS, JSON, "application/x-ndjson", "text/csv"),
    answers=wire.PushReceipt, statuses=(201, 202),
)  # fmt: skip
async def _push(services: Services, request: Request) -> object:
    """Pushes records to a source; answers 201 once they are committed, 202 if they wait for it."""
    push_id = request.query_params.get("id")
    receipt = await services.endpoints.push(_name(request, "name"), await whole_body(request), push_id)
    return answer(receipt, 201 if receipt.durable else 202)


@asks(
    Parameter("number", "number", "Of a push; without it, all that wait.", 1),
    operation=lambda s: s.endpoints.drop,
)  # fmt: skip
async def _drop(services: Services, request: Request) -> object:
    return await services.endpoints.drop(_name(request, "name"), number(request, "number", None, 1))


@asks(takes=wire.ConnectRequest, operation=lambda s: s.peers.connect, answers=wire.ResourceManifest)
async def _connect(services: Services, request: Request) -> object:
    """Connects to a peer at a multiaddress, and returns the Peer."""
    peer = await services.peers.connect((await body(request, wire.ConnectRequest)).multiaddr)
    return await operations.read(services, PEER_TYPE, peer)


@asks(takes=wire.InvitationRequest, operation=lambda s: s.networks.invite)
async def _invite(services: Services, request: Request) -> object:
    return await services.networks.invite(_name(request, "name"), await body(request, wire.InvitationRequest))


@asks(takes=wire.BackfillRequest, operation=lambda s: s.flows.backfill)
async def _backfill(services: Services, request: Request) -> object:
    return await services.flows.backfill(_name(request, "name"), await body(request, wire.BackfillRequest))


@asks(takes=wire.FlowRunRequest, operation=lambda s: s.flows.run, answers=wire.ResourceManifest)
async def _run(services: Services, request: Request) -> object:
    """Runs a flow because a person asks for it, and returns the Flow."""
    id_ = await services.flows.run(_name(request, "name"), await body(request, wire.FlowRunRequest))
    return await operations.read(services, FLOW_TYPE, id_)


@asks(operation=lambda s: s.flows.pause, answers=wire.ResourceManifest)
async def _pause(services: Services, request: Request) -> object:
    """Pauses a flow until it is resumed, and returns the Flow."""
    return await operations.read(services, FLOW_TYPE, await services.flows.pause(_name(request, "name")))


@asks(operation=lambda s: s.flows.resume, answers=wire.ResourceManifest)
async def _resume(services: Services, request: Request) -> object:
    """Resumes a paused flow, and returns the Flow."""
    return await operations.read(services, FLOW_TYPE, await services.flows.resume(_name(request, "name")))


@asks(answers=bytes, media_type=OCTETS)
async def _evidence(services: Services, request: Request) -> object:
    """Returns a bundle of evidence."""
    found = await services.trust.evidence(_name(request, "id"))
    kind = "application/octet-stream"
    return FileResponse(found, media_type=kind) if isinstance(found, Path) else Response(found, media_type=kind)


@asks(FOLLOW, answers=wire.TaskState, stream=wire.TaskState)
async def _task(services: Services, request: Request) -> object:
    """Returns the state of a task with its result, or follows it until its end."""
    if flag(request, "follow"):
        return await lines(services.tasks.follow(_name(request, "id")))
    return await services.tasks.get(_name(request, "id"))


@asks(
    Parameter("deep", "flag", "Also read all that is stored, as a stream."),
    Parameter("each", "flag", "Each result as it is there, as a stream."),
    answers=Sequence[wire.Probe],
    stream=wire.Probe,
)
async def _doctor(services: Services, request: Request) -> object:
    """Probes the node, and reports what is wrong and what to do."""
    deep = flag(request, "deep")
    if deep or flag(request, "each"):
        return LineStream(services.about.examine(deep=deep))
    return await services.about.doctor()


@asks(
    KIND, Parameter("kept", "flag", "Only what is kept, as a list."),
    Parameter("since", "number", "The sequence number that the stream goes on from."),
    Parameter("log", "text", "The log that `since` is of, or empty: a bookmark, which names it, comes first."),
    answers=Sequence[wire.EventView], stream=wire.EventView,
)  # fmt: skip
async def _events(services: Services, request: Request) -> object:
    """Streams events of the node, or lists those that are kept."""
    kinds = known_kinds(request.query_params.getlist("kind"))
    if flag(request, "kept"):
        return await services.events.kept(kinds)
    since, log = number(request, "since", None), request.query_params.get("log")
    return LineStream(services.events.follow(since, kinds, log))


@asks(
    MANY, FOLLOW, Parameter("task", "text", "Only lines of this task."),
    Parameter("level", "text", "Only lines of this level and those above."),
    Parameter("part", "text", "Only lines of this part of the daemon."),
    answers=Sequence[wire.LogLineView], stream=wire.LogLineView,
)  # fmt: skip
async def _log_lines(services: Services, request: Request) -> object:
    """Lists the newest lines of the daemon's log, or follows it."""
    asked, limit = request.query_params, MANY.number(request) or MAX_ROWS
    filter_ = LineFilter(asked.get("task", ""), asked.get("level", ""), asked.get("part", ""))
    if filter_.task:
        await services.tasks.get(filter_.task)
    if flag(request, "follow"):
        return LineStream(services.log_lines.follow(filter_, limit))
    return await services.log_lines.last(filter_, limit)


@asks(takes=wire.QueryRequest, answers=bytes, media_type=FRAMES)
async def _query(services: Services, request: Request) -> object:
    """Answers a query in SQL as frames: what is read, the rows in Arrow, the end."""
    return FrameStream(partial(services.queries.answer, await body(request, wire.QueryRequest)))


@asks(takes=wire.SlicesRequest, answers=bytes, media_type=FRAMES)
async def _slices(services: Services, request: Request) -> object:
    """Gives the files of a dataset's slices, at the control socket only."""
    if CALLER not in request.scope:
        raise Refused("files are given at the control socket alone", rule="query-slices", hint="ask for its rows")
    return FrameStream(partial(services.queries.slices, await body(request, wire.SlicesRequest)))


@asks(
    WATCH,
    SINCE,
    MANY,
    Parameter("of", "text", "Only of this resource, as TYPE/NAME."),
    _BOOKMARK,
    answers=Sequence[wire.ResourceChange],
    stream=wire.ResourceChange,
)
async def _changes(services: Services, request: Request) -> object:
    """Lists changes of resources, newest first, or follows them."""
    asked, limit = request.query_params, MANY.number(request) or MAX_ROWS
    if is_watch(request):
        since, of, bookmark = since_of(request), asked.get("of"), flag(request, _BOOKMARK.name)
        return stream_of(request)(await services.history.follow(since, of, limit, bookmark=bookmark))
    return await services.history.last(asked.get("of"), limit)


@asks(takes=wire.HoldRenewal, operation=lambda s: s.holds.renew)
async def _renew_hold(services: Services, request: Request) -> object:
    return await services.holds.renew(_name(request, "id"), await body(request, wire.HoldRenewal))


@asks(Parameter("fence", "number", "Of the process that ends an owned hold.", 1), operation=lambda s: s.holds.release)
async def _release_hold(services: Services, request: Request) -> object:
    return await services.holds.release(_name(request, "id"), number(request, "fence", None, 1))


@asks(takes=wire.InvitationText, operation=lambda s: s.networks.accept, answers=wire.ResourceManifest)
async def _accept(services: Services, request: Request) -> object:
    """Joins the network of an invitation, by its text, and returns the Network."""
    joined = await services.networks.accept(await body(request, wire.InvitationText))
    return await operations.read(services, NETWORK_TYPE, joined.name)


def _number(request: Request) -> int:
    text = _name(request, "number")
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise Usage(f"not a number of a rendition: {text[:40]!r}", hint="odfctl get renditions")
    return int(text)


@asks(takes=wire.HandoverRequest, operation=lambda s: s.renditions.hand_over)
async def _hand_over(services: Services, request: Request) -> object:
    asked = await body(request, wire.HandoverRequest)
    return await services.renditions.hand_over(_name(request), _number(request), asked)


@asks(operation=lambda s: s.renditions.abandon)
async def _abandon(services: Services, request: Request) -> object:
    return await services.renditions.abandon(_name(request), _number(request))


_holds = asks(Parameter("dataset", "text", "Only of this dataset."))(
    lambda s, r: s.holds.list(r.query_params.get("dataset"))
)
_explain = asks(Parameter("path", "text", "Of a field: spec.read."))(
    lambda s, r: s.schemas.explain(_name(r, "word"), r.query_params.get("path", ""))
)
_describe = asks(Parameter("profile", "flag", "With statistics of its columns."))(
    lambda s, r: s.datasets.describe(_name(r), profile=flag(r, "profile"))
)
_tail = asks(LIMIT)(lambda s, r: s.datasets.tail(_name(r), _rows(r)))

NODE: Final = f"/node/{VERSION}"
_DATASET: Final = f"/dataset/{VERSION}/datasets/{{ref}}"
_SOURCE: Final = f"/source/{VERSION}/sources/{{name}}"
_MIRROR: Final = f"/net/{VERSION}/mirrors/{{ref}}"
_TOKENS: Final = f"/auth/{VERSION}/tokens"
_KEYS: Final = f"/config/{VERSION}/keys"
_RESOURCE: Final = f"/resource/{VERSION}"

OF_RESOURCES: Final[tuple[tuple[str, str, Ask], ...]] = (
    ("GET", f"{_RESOURCE}/events", _events),
    ("GET", f"{_RESOURCE}/changes", _changes),
    ("GET", f"{_RESOURCE}/types", lambda s, _: s.schemas.types()),
    ("GET", f"{_RESOURCE}/types/{{word}}", _explain),
    ("GET", f"/auth/{VERSION}/self", lambda s, _: s.accounts.me()),
    ("GET", _TOKENS, lambda s, _: s.accounts.tokens()),
    ("POST", _TOKENS, with_body(wire.TokenRequest, lambda s: s.accounts.create_token)),
    ("DELETE", _TOKENS + "/{id}", lambda s, r: s.accounts.revoke_token(_name(r, "id"))),
    ("GET", _KEYS, lambda s, _: s.declarations.secret_key()),
    ("POST", _KEYS + "/rotation", lambda s, _: s.declarations.rotate_secrets()),
    ("GET", _DATASET + "/detail", _describe),
    ("GET", _DATASET + "/snapshot", lambda s, r: s.datasets.snapshot(_name(r))),
    ("GET", _DATASET + "/blocks", _log),
    ("GET", _DATASET + "/blocks/{at}", lambda s, r: s.datasets.block(_name(r), _name(r, "at"))),
    ("GET", _DATASET + "/tail", _tail),
    ("GET", _DATASET + "/schema", lambda s, r: s.datasets.schema(_name(r))),
    ("GET", _DATASET + "/commit-point", lambda s, r: s.datasets.commit_point(_name(r))),
    ("POST", _DATASET + "/ingest", on_dataset(wire.IngestRequest, lambda s: s.flow.ingest)),
    ("PUT", _DATASET + "/watermark", on_dataset(wire.WatermarkRequest, lambda s: s.flow.set_watermark)),
    ("PUT", _DATASET + "/upper", lambda s, r: s.flow.advance(_name(r))),
    ("GET", _DATASET + "/raw", lambda s, r: s.raw.show(_name(r))),
    ("DELETE", _DATASET + "/raw/captures", lambda s, r: s.raw.drop(_name(r))),
    ("POST", _DATASET + "/raw/replay", lambda s, r: s.raw.replay(_name(r))),
    ("POST", _DATASET + "/raw/bind", lambda s, r: s.raw.bind(_name(r))),
    ("POST", _DATASET + "/raw/attest", on_dataset(wire.AttestRawRequest, lambda s: s.raw.attest)),
    ("GET", _DATASET + "/handover", lambda s, r: s.renditions.reading(_name(r))),
    ("GET", _DATASET + "/renditions", lambda s, r: s.renditions.list(_name(r))),
    ("POST", _DATASET + "/renditions", on_dataset(wire.RenditionRequest, lambda s: s.renditions.create)),
    ("POST", _DATASET + "/renditions/{number}/handover", _hand_over),
    ("DELETE", _DATASET + "/renditions/{number}", _abandon),
    ("POST", _DATASET + "/gap", on_dataset(wire.GapRequest, lambda s: s.gaps.run)),
    ("POST", _DATASET + "/correct", on_dataset(wire.CorrectRequest, lambda s: s.flow.correct)),
    ("POST", _DATASET + "/schema", on_dataset(wire.AlterSchemaRequest, lambda s: s.flow.alter_schema)),
    ("POST", _DATASET + "/export", on_dataset(wire.ExportRequest, lambda s: s.flow.export)),
    ("POST", _DATASET + "/verify", on_dataset(wire.VerifyRequest, lambda s: s.verification.verify)),
    ("GET", _DATASET + "/opening", lambda s, r: s.portals.open(_name(r))),
    ("POST", _DATASET + "/audit", on_dataset(wire.AuditRequest, lambda s: s.portals.audit)),
    ("POST", _DATASET + "/prove", on_dataset(wire.ProveRequest, lambda s: s.proving.prove)),
    ("POST", _DATASET + "/rewrite", on_dataset(wire.RewriteRequest, lambda s: s.rewriting.rewrite)),
    ("GET", _DATASET + "/lineage", lambda s, r: s.lineage.graph(_name(r))),
    ("POST", _DATASET + "/lineage", on_dataset(wire.LineageRequest, lambda s: s.lineage.trace)),
    ("GET", _DATASET + "/trust", lambda s, r: s.trust.show(_name(r))),
    ("POST", _DATASET + "/trust/resolve", on_dataset(wire.ResolveRequest, lambda s: s.resolving.resolve)),
    ("GET", _DATASET + "/authority", lambda s, r: s.authority.show_authority(_name(r))),
    ("POST", _DATASET + "/authority", on_dataset(wire.AuthorityRequest, lambda s: s.authority.change_authority)),
    (
        "POST",
        _DATASET + "/authority/draft",
        on_dataset(wire.AuthorityDraftRequest, lambda s: s.authority.draft_authority),
    ),
    ("POST", _DATASET + "/authority/key", lambda s, r: s.authority.dataset_key(_name(r))),
    ("GET", _SOURCE + "/endpoint", lambda s, r: s.endpoints.show(_name(r, "name"))),
    ("POST", _SOURCE + "/ingest", _push),
    ("DELETE", _SOURCE + "/waiting", _drop),
    ("PUT", _MIRROR + "/pause", lambda s, r: s.mirrors.pause(_name(r))),
    ("DELETE", _MIRROR + "/pause", lambda s, r: s.mirrors.resume(_name(r))),
    ("POST", f"/net/{VERSION}/networks/{{name}}/invitations", _invite),
    ("POST", f"/flow/{VERSION}/flows/{{name}}/backfill", _backfill),
    ("POST", f"/flow/{VERSION}/flows/{{name}}/run", _run),
    ("PUT", f"/flow/{VERSION}/flows/{{name}}/pause", _pause),
    ("DELETE", f"/flow/{VERSION}/flows/{{name}}/pause", _resume),
)
"""Endpoints below the path of a resource, or of the context of its type: actions other than declaring it."""

OF_THE_NODE: Final[tuple[tuple[str, str, Ask], ...]] = (
    ("GET", "/status", lambda s, _: s.about.status()),
    ("GET", "/doctor", _doctor),
    ("POST", "/page", lambda s, _: s.page.open()),
    ("GET", "/settings", lambda s, _: s.about.settings()),
    ("GET", "/logs", _log_lines),
    ("GET", "/tasks/{id}", _task),
    ("GET", "/renditions", lambda s, _: s.renditions.list()),
    ("GET", "/unmanaged", lambda s, _: s.unmanaged.list()),
    ("GET", "/unmanaged/{ref}", lambda s, r: s.unmanaged.get(_name(r))),
    ("PUT", "/unmanaged/{ref}/name", on_dataset(wire.AdoptRequest, lambda s: s.unmanaged.adopt)),
    ("DELETE", "/unmanaged/{ref}", lambda s, r: s.unmanaged.delete(_name(r))),
    ("POST", "/uploads", _stage),
    ("POST", "/pull", with_body(wire.PullRequest, lambda s: s.flow.pull)),
    ("POST", "/push", with_body(wire.PushRequest, lambda s: s.pushing.push)),
    ("POST", "/import", with_body(wire.ImportRequest, lambda s: s.flow.import_)),
    ("POST", "/backup", with_body(wire.BackupRequest, lambda s: s.backups.backup)),
    ("POST", "/collect", with_body(wire.CollectRequest, lambda s: s.collection.collect)),
    ("POST", "/publish", with_body(wire.VisibilityRequest, lambda s: s.visibility.publish)),
    ("POST", "/unpublish", with_body(wire.VisibilityRequest, lambda s: s.visibility.unpublish)),
    ("POST", "/share", with_body(wire.ShareRequest, lambda s: s.visibility.share)),
    ("POST", "/query", _query),
    ("POST", "/slices", _slices),
    ("GET", "/holds", _holds),
    ("POST", "/holds", with_body(wire.HoldRequest, lambda s: s.holds.take)),
    ("PUT", "/holds/{id}", _renew_hold),
    ("DELETE", "/holds/{id}", _release_hold),
    ("POST", "/mirrors", with_body(wire.MirrorRequest, lambda s: s.mirrors.add)),
    ("GET", "/publications", lambda s, _: s.publications.list()),
    ("POST", "/publications", with_body(wire.PublishRequest, lambda s: s.publications.publish)),
    ("DELETE", "/publications/{ref}", lambda s, r: s.publications.withdraw(_name(r))),
    ("POST", "/search", with_body(wire.SearchRequest, lambda s: s.search.search)),
    ("GET", "/cards/{ref}", lambda s, r: s.search.card(_name(r))),
    ("GET", "/invitations", lambda s, _: s.networks.invitations()),
    ("POST", "/invitations", with_body(wire.InvitationText, lambda s: s.networks.invitation)),
    ("POST", "/invitations/accept", _accept),
    ("DELETE", "/invitations/{id}", lambda s, r: s.networks.revoke(_name(r, "id"))),
    ("POST", "/peers", _connect),
    ("GET", "/holders", lambda s, _: s.peers.holders()),
    ("GET", "/netcheck", lambda s, _: s.peers.netcheck()),
    ("POST", "/validators/lift", with_body(wire.LiftRequest, lambda s: s.trust.lift)),
    ("POST", "/signers", with_body(wire.SignRequest, lambda s: s.journal_recovery.sign_again)),
    ("GET", "/policy", lambda s, _: s.policies.policy()),
    ("POST", "/policy/network", with_body(wire.NetworkRulesRequest, lambda s: s.policies.publish_rules)),
    ("POST", "/policy/accept", with_body(wire.AcceptRequest, lambda s: s.policies.accept_rules)),
    ("GET", "/evidence/{id}", _evidence),
    ("POST", "/evidence/{id}", lambda s, r: s.trust.fetch_evidence(_name(r, "id"))),
)
"""Endpoints below ``NODE``: what the node does and sees that is no resource, and further views of resources."""
