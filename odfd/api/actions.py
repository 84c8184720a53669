"""Serves the operations whose endpoints stream, take or give bytes, or answer with the resource that was acted on.

All other operations declare their paths themselves (``odfd.control.operations``). Resources are read and changed only
at their own paths (``resource_protocol``).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from chain.errors import Refused
from engines.query.frames import MEDIA_TYPE as FRAMES
from odfd.api import resource_operations as operations
from odfd.api.access.requests import Dispatcher
from odfd.api.endpoints import (
    JSON,
    OCTETS,
    SINCE,
    WATCH,
    Endpoint,
    asks,
    is_watch,
    path_part,
)
from odfd.control import wire
from odfd.control.board import BoardTasks, LogEvents, LogService, known_kinds
from odfd.control.endpoint import CALLER
from odfd.control.operations import (
    DEFAULT_ROWS,
    FLOW_PATH,
    KINDS,
    MAX_ROWS,
    NODE_PATH,
    RESOURCE_PATH,
    SOURCE_PATH,
    Parameter,
)
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
from odfd.flows.manifest import FLOW_TYPE
from odfd.obs.log_lines import LineFilter
from odfd.services.flows.service import FlowService
from odfd.services.ingest.ingest_pull import IngestPullService
from odfd.services.ingest.push_endpoints import EndpointService
from odfd.services.maintenance.status import StatusService
from odfd.services.network.mirrors import PeerService
from odfd.services.network.network_types import NETWORK_TYPE, PEER_TYPE
from odfd.services.network.networks import NetworkService
from odfd.services.queries.service import QueryService
from odfd.services.resources.history import HistoryService
from odfd.services.trust.service import TrustService

MANY: Final = Parameter("limit", "number", "Lines at the most.", 1, MAX_ROWS, DEFAULT_ROWS * 5)
_BOOKMARK: Final = Parameter("bookmark", "flag", "With watch: also state how far the log was read, before new changes.")
FOLLOW: Final = Parameter("follow", "flag", "Answer with a stream, which does not end.")


_name = path_part


@asks(
    Parameter("name", "text", "Of the file, for messages."),
    takes=bytes,
    body_types=(OCTETS,),
    operation=IngestPullService.stage,
    answers=wire.Upload,
)
async def _stage(calls: Dispatcher, request: Request) -> object:
    """Uploads a file, for a later ingest."""
    async with aclosing(request.stream()) as chunks:
        return await calls.do(IngestPullService.stage, request.query_params.get("name", "-"), chunks)


@asks(
    Parameter("id", "text", "Id of the push: it counts once, however often it is sent."),
    takes=bytes, body_types=(OCTETS, JSON, "application/x-ndjson", "text/csv"),
    operation=EndpointService.push, answers=wire.PushReceipt, statuses=(201, 202),
)  # fmt: skip
async def _push(calls: Dispatcher, request: Request) -> object:
    """Pushes records to a source; answers 201 once they are committed, 202 if they wait for it."""
    push_id = request.query_params.get("id")
    receipt = await calls.do(EndpointService.push, _name(request, "name"), await whole_body(request), push_id)
    return answer(receipt, 201 if receipt.durable else 202)


@asks(takes=wire.ConnectRequest, operation=PeerService.connect, answers=wire.ResourceManifest)
async def _connect(calls: Dispatcher, request: Request) -> object:
    """Connects to a peer at a multiaddress, and returns the Peer."""
    peer = await calls.do(PeerService.connect, (await body(request, wire.ConnectRequest)).multiaddr)
    return await operations.read(calls, PEER_TYPE, peer)


@asks(takes=wire.FlowRunRequest, operation=FlowService.run, answers=wire.ResourceManifest)
async def _run(calls: Dispatcher, request: Request) -> object:
    """Runs a flow on request, and returns the Flow."""
    id_ = await calls.do(FlowService.run, _name(request, "name"), await body(request, wire.FlowRunRequest))
    return await operations.read(calls, FLOW_TYPE, id_)


@asks(operation=FlowService.pause, answers=wire.ResourceManifest)
async def _pause(calls: Dispatcher, request: Request) -> object:
    """Pauses a flow until it is resumed, and returns the Flow."""
    return await operations.read(calls, FLOW_TYPE, await calls.do(FlowService.pause, _name(request, "name")))


@asks(operation=FlowService.resume, answers=wire.ResourceManifest)
async def _resume(calls: Dispatcher, request: Request) -> object:
    """Resumes a paused flow, and returns the Flow."""
    return await operations.read(calls, FLOW_TYPE, await calls.do(FlowService.resume, _name(request, "name")))


@asks(operation=TrustService.evidence, answers=bytes, media_type=OCTETS)
async def _evidence(calls: Dispatcher, request: Request) -> object:
    """Returns a bundle of evidence."""
    found = await calls.do(TrustService.evidence, _name(request, "id"))
    kind = "application/octet-stream"
    return FileResponse(found, media_type=kind) if isinstance(found, Path) else Response(found, media_type=kind)


@asks(FOLLOW, operation=BoardTasks.get, answers=wire.TaskState, follows=BoardTasks.follow, stream=wire.TaskState)
async def _task(calls: Dispatcher, request: Request) -> object:
    """Returns the state of a task with its result, or follows it until its end."""
    if flag(request, "follow"):
        return await lines(calls.follow(BoardTasks.follow, _name(request, "id")))
    return await calls.do(BoardTasks.get, _name(request, "id"))


@asks(
    Parameter("deep", "flag", "Also read all that is stored, as a stream."),
    Parameter("each", "flag", "Each result as it is there, as a stream."),
    operation=StatusService.doctor,
    answers=Sequence[wire.Probe],
    follows=StatusService.examine,
    stream=wire.Probe,
)
async def _doctor(calls: Dispatcher, request: Request) -> object:
    """Probes the node, and reports what is wrong and what to do."""
    deep = flag(request, "deep")
    if deep or flag(request, "each"):
        return LineStream(calls.follow(StatusService.examine, deep=deep))
    return await calls.do(StatusService.doctor)


@asks(
    KINDS, Parameter("kept", "flag", "Only the kept events, as a list."),
    Parameter("since", "number", "The sequence number after which the stream continues."),
    Parameter("log", "text", "The log of `since`; empty: the first item is a bookmark, which names it."),
    operation=LogEvents.kept, answers=Sequence[wire.EventView], follows=LogEvents.follow, stream=wire.EventView,
)  # fmt: skip
async def _events(calls: Dispatcher, request: Request) -> object:
    """Streams events of the node, or lists those that are kept."""
    kinds = known_kinds(request.query_params.getlist("kind"))
    if flag(request, "kept"):
        return await calls.do(LogEvents.kept, kinds)
    since, log = number(request, "since", None), request.query_params.get("log")
    return LineStream(calls.follow(LogEvents.follow, since, kinds, log))


@asks(
    MANY, FOLLOW, Parameter("task", "text", "Only lines of this task."),
    Parameter("level", "text", "Only lines of this level and those above."),
    Parameter("part", "text", "Only lines of this part of the daemon."),
    operation=LogService.last, answers=Sequence[wire.LogLineView],
    follows=LogService.follow, stream=wire.LogLineView,
)  # fmt: skip
async def _log_lines(calls: Dispatcher, request: Request) -> object:
    """Lists the newest lines of the daemon's log, or follows it."""
    asked, limit = request.query_params, MANY.number(request) or MAX_ROWS
    filter_ = LineFilter(asked.get("task", ""), asked.get("level", ""), asked.get("part", ""))
    if filter_.task:
        await calls.do(BoardTasks.get, filter_.task)
    if flag(request, "follow"):
        return LineStream(calls.follow(LogService.follow, filter_, limit))
    return await calls.do(LogService.last, filter_, limit)


@asks(takes=wire.QueryRequest, operation=QueryService.answer, answers=bytes, media_type=FRAMES)
async def _query(calls: Dispatcher, request: Request) -> object:
    """Answers a query in SQL as frames: what is read, the rows in Arrow, the end."""
    return FrameStream(partial(calls.do, QueryService.answer, await body(request, wire.QueryRequest)))


@asks(takes=wire.SlicesRequest, operation=QueryService.slices, answers=bytes, media_type=FRAMES)
async def _slices(calls: Dispatcher, request: Request) -> object:
    """Gives the files of a dataset's slices, at the control socket only."""
    if CALLER not in request.scope:
        raise Refused("files are given at the control socket alone", rule="query-slices", hint="ask for its rows")
    return FrameStream(partial(calls.do, QueryService.slices, await body(request, wire.SlicesRequest)))


@asks(
    WATCH,
    SINCE,
    MANY,
    Parameter("of", "text", "Only of this resource, as TYPE/NAME."),
    _BOOKMARK,
    operation=HistoryService.last,
    answers=Sequence[wire.ResourceChange],
    follows=HistoryService.follow,
    stream=wire.ResourceChange,
)
async def _changes(calls: Dispatcher, request: Request) -> object:
    """Lists changes of resources, newest first, or follows them."""
    asked, limit = request.query_params, MANY.number(request) or MAX_ROWS
    if is_watch(request):
        since, of, bookmark = since_of(request), asked.get("of"), flag(request, _BOOKMARK.name)
        return stream_of(request)(await calls.do(HistoryService.follow, since, of, limit, bookmark=bookmark))
    return await calls.do(HistoryService.last, asked.get("of"), limit)


@asks(takes=wire.InvitationText, operation=NetworkService.accept, answers=wire.ResourceManifest)
async def _accept(calls: Dispatcher, request: Request) -> object:
    """Joins the network of an invitation, by its text, and returns the Network."""
    joined = await calls.do(NetworkService.accept, await body(request, wire.InvitationText))
    return await operations.read(calls, NETWORK_TYPE, joined.name)


TABLE: Final[tuple[tuple[str, str, Endpoint], ...]] = (
    ("GET", f"{RESOURCE_PATH}/events", _events),
    ("GET", f"{RESOURCE_PATH}/changes", _changes),
    ("POST", f"{SOURCE_PATH}/ingest", _push),
    ("POST", f"{FLOW_PATH}/run", _run),
    ("PUT", f"{FLOW_PATH}/pause", _pause),
    ("DELETE", f"{FLOW_PATH}/pause", _resume),
    ("GET", f"{NODE_PATH}/doctor", _doctor),
    ("GET", f"{NODE_PATH}/logs", _log_lines),
    ("GET", f"{NODE_PATH}/tasks/{{id}}", _task),
    ("POST", f"{NODE_PATH}/uploads", _stage),
    ("POST", f"{NODE_PATH}/query", _query),
    ("POST", f"{NODE_PATH}/slices", _slices),
    ("POST", f"{NODE_PATH}/invitations/accept", _accept),
    ("POST", f"{NODE_PATH}/peers", _connect),
    ("GET", f"{NODE_PATH}/evidence/{{id}}", _evidence),
)
