"""Plans where an engine finds its files: replaces host paths of a request by the engine's, and lists the links to make.

An engine sees two folder trees for its whole life, one to read and one to write. Each transaction has a folder of the
same name in both; inputs appear in the first under their own names, outputs come out of the second. Pure: a plan is a
value, ``engines.staging`` carries it out. Paths in messages are converted back, so that people read host paths.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final, Generic, TypeVar

import msgspec

from engines.contract import (
    IngestBatchRequest,
    InputBlock,
    MigrateRequest,
    ProvenanceRequest,
    RawQueryRequest,
    RawQueryView,
    TransformRequest,
    TransformRequestInput,
)

Q = TypeVar("Q")
NAME_DIGITS: Final = 32
"""Hex digits of a transaction's folder: 128 bits of its identity."""
DATA: Final = "data"
QUARANTINE: Final = "quarantine"
CHECKPOINT: Final = "checkpoint"


@dataclass(frozen=True, slots=True)
class SandboxView:
    """The two trees as the engine sees them: absolute paths on its side of the sandbox."""

    inputs: PurePosixPath
    outputs: PurePosixPath


@dataclass(frozen=True, slots=True)
class InputLink:
    """A host file that is to be readable as ``name`` in the transaction's folder of inputs."""

    host: str
    name: str


@dataclass(frozen=True, slots=True)
class Output:
    """A file that the engine writes as ``name`` in its transaction's folder, and its destination ``host``."""

    name: str
    host: str


@dataclass(frozen=True, slots=True)
class IoPlan(Generic[Q]):
    """A request with the engine's paths, and the files that it needs."""

    folder: str
    request: Q
    links: tuple[InputLink, ...]
    outputs: tuple[Output, ...]
    view: SandboxView

    def in_host_terms(self, message: str) -> str:
        """Replaces the engine's paths in a message by the host's."""
        inputs, outputs = self.view.inputs / self.folder, self.view.outputs / self.folder
        if str(inputs) not in message and str(outputs) not in message:
            return message
        pairs = [(str(inputs / link.name), link.host) for link in self.links]
        pairs += [(str(outputs / output.name), output.host) for output in self.outputs]
        for seen, host in sorted(pairs, key=lambda pair: -len(pair[0])):
            message = message.replace(seen, host)
        return message


@dataclass(slots=True)
class _Draft:
    """Collects links while a request is rewritten; one link per file, however often it is named."""

    folder: str
    view: SandboxView
    names: dict[str, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    outputs: list[Output] = field(default_factory=list)

    def input(self, host: str) -> str:
        name = self.names.get(host)
        if name is None:
            name = PurePosixPath(host).name
            if name in self.taken:
                name = f"{len(self.names)}/{name}"
            self.names[host] = name
            self.taken.add(name.partition("/")[0])
        return str(self.view.inputs / self.folder / name)

    def maybe(self, host: str | None) -> str | None:
        return self.input(host) if host else host

    def output(self, name: str, host: str) -> str:
        self.outputs.append(Output(name, host))
        return str(self.view.outputs / self.folder / name)

    def plan(self, request: Q) -> IoPlan[Q]:
        links = tuple(InputLink(host, name) for host, name in self.names.items())
        return IoPlan(self.folder, request, links, tuple(self.outputs), self.view)


def plan_transform(request: TransformRequest, view: SandboxView) -> IoPlan[TransformRequest]:
    draft = _Draft(_folder("transform", request.transaction_id, request.new_data_path), view)
    return draft.plan(
        msgspec.structs.replace(
            request,
            query_inputs=tuple(_input(draft, input_) for input_ in request.query_inputs),
            prev_checkpoint_path=draft.maybe(request.prev_checkpoint_path),
            new_checkpoint_path=draft.output(CHECKPOINT, request.new_checkpoint_path),
            new_data_path=draft.output(DATA, request.new_data_path),
        )
    )


def plan_migrate(request: MigrateRequest, view: SandboxView) -> IoPlan[MigrateRequest]:
    files = [input_.schema_file for input_ in (*request.old_inputs, *request.query_inputs)]
    draft = _Draft(_folder("migrate", None, "\0".join((request.new_checkpoint_path, *files))), view)
    outputs = {}
    if not request.judge_only:
        outputs["new_checkpoint_path"] = draft.output(CHECKPOINT, request.new_checkpoint_path)
        outputs["new_data_path"] = draft.output(DATA, request.new_data_path)
    return draft.plan(
        msgspec.structs.replace(
            request,
            old_inputs=tuple(_input(draft, input_) for input_ in request.old_inputs),
            query_inputs=tuple(_input(draft, input_) for input_ in request.query_inputs),
            prev_checkpoint_path=draft.maybe(request.prev_checkpoint_path) or "",
            **outputs,
        )
    )


def plan_ingest(request: IngestBatchRequest, view: SandboxView) -> IoPlan[IngestBatchRequest]:
    draft = _Draft(_folder("ingest", request.transaction_id, request.new_data_path), view)
    aside = request.quarantine
    if aside is not None:
        aside = msgspec.structs.replace(aside, path=draft.output(QUARANTINE, aside.path))
    return draft.plan(
        msgspec.structs.replace(
            request,
            source_paths=tuple(draft.input(path) for path in request.source_paths),
            prev_data_paths=tuple(draft.input(path) for path in request.prev_data_paths),
            prev_data_bounds=draft.maybe(request.prev_data_bounds),
            new_data_path=draft.output(DATA, request.new_data_path),
            quarantine=aside,
        )
    )


def plan_raw_query(request: RawQueryRequest, view: SandboxView) -> IoPlan[RawQueryRequest]:
    draft = _Draft(_folder("query", None, request.output_data_path), view)
    return draft.plan(
        msgspec.structs.replace(
            request,
            input_data_paths=tuple(draft.input(path) for path in request.input_data_paths),
            output_data_path=draft.output(DATA, request.output_data_path),
            views=request.views and tuple(_view(draft, each) for each in request.views),
        )
    )


def _view(draft: _Draft, view: RawQueryView) -> RawQueryView:
    return msgspec.structs.replace(view, data_paths=tuple(draft.input(path) for path in view.data_paths))


def plan_provenance(request: ProvenanceRequest, view: SandboxView) -> IoPlan[ProvenanceRequest]:
    draft = _Draft(_folder("provenance", request.transaction_id, request.data_path), view)
    return draft.plan(
        msgspec.structs.replace(
            request,
            query_inputs=tuple(_input(draft, input_) for input_ in request.query_inputs),
            data_path=draft.input(request.data_path),
        )
    )


def _input(draft: _Draft, each: TransformRequestInput) -> TransformRequestInput:
    return msgspec.structs.replace(
        each,
        data_paths=tuple(draft.input(path) for path in each.data_paths),
        schema_file=draft.maybe(each.schema_file) or "",
        blocks=None if each.blocks is None else tuple(_block(draft, block) for block in each.blocks),
    )


def _block(draft: _Draft, block: InputBlock) -> InputBlock:
    return msgspec.structs.replace(block, data_path=draft.maybe(block.data_path))


def _folder(kind: str, transaction: str | None, output: str) -> str:
    """Returns the name of the transaction's folder: the same for a retry, so that an engine that still knows the answer
    can give it."""
    return hashlib.sha3_256(f"{kind}\0{transaction or output}".encode()).hexdigest()[:NAME_DIGITS]
