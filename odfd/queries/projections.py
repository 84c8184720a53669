"""Defines Projections and stores their tables: a query over datasets whose answer is stored and recomputed.

A table is a Parquet file with a record beside it, which says from what it was computed and the hash of the file. The
record is replaced in one step after its file is durable, so that a reader sees the old table or the new one. Damaged
files are not read: the table is computed again. Used from worker threads.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Final

import msgspec

from chain.errors import Environment, Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.source import SqlQueryStep, TemporalTable
from chain.multihash import Multihash
from chain.repeats import repeated
from chain.store import durable
from odfd.queries.cuts import Cut
from odfd.queries.planning import KeptInput, KeptTable
from odfd.resources import registry
from odfd.resources.manifest import Draft, describe
from odfd.resources.references import refers_to
from odfd.resources.resource import canonical
from odfd.resources.types import NEEDED, ResourceType

TYPE: Final = "Projection"
ENGINE: Final = "duckdb"
MAX_INPUTS: Final = 64
MAX_SQL: Final = 64 * 1024
MAX_RECORD_BYTES: Final = 4 << 20
_ALIAS: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}\Z", re.ASCII)
_FILE: Final = ".parquet"
_RECORD: Final = ".json"
_PART: Final = ".part"
_SAID: Final = ".said"


class ProjectionInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A dataset that a projection reads."""

    dataset_ref: Annotated[
        str,
        describe("The dataset: its name, Dataset:NAME, did:odf:… or the id of its resource."),
        refers_to("Dataset"),
    ]
    alias: Annotated[str, describe("Its name in the query. Default: the dataset's name.")] | None = None

    @property
    def name(self) -> str:
        """The name by which the query reads the dataset."""
        return self.alias or self.dataset_ref.removeprefix("Dataset:")


class SqlProject(msgspec.Struct, frozen=True, kw_only=True, tag="Sql", rename="camel"):
    """The query of a projection."""

    query: (
        Annotated[str, describe("One SELECT over the inputs. current.NAME is the current rows of a changelog.")] | None
    ) = None
    queries: (
        Annotated[
            tuple[SqlQueryStep, ...],
            describe("Instead of query: steps, which later ones read by their alias; the last has none."),
        ]
        | None
    ) = None
    version: Annotated[str, describe("Refused: the node has one version of its engine.")] | None = None
    temporal_tables: (
        Annotated[tuple[TemporalTable, ...], describe("Refused: current.NAME is the current rows of a changelog.")]
        | None
    ) = None
    engine: Annotated[str, describe(f"{ENGINE}, the engine of odfctl sql (default)."), NEEDED] | None = None

    @property
    def sql(self) -> str:
        """The query as one statement."""
        if not self.queries:
            return self.query or ""
        *steps, last = self.queries
        named = ", ".join(f'"{step.alias}" AS ({step.query})' for step in steps)
        return f"WITH {named} SELECT * FROM ({last.query})" if steps else last.query  # noqa: S608  the query's own text


class ProjectionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Declares a table that stores the answer of a query over datasets."""

    inputs: Annotated[tuple[ProjectionInput, ...], describe("The only datasets that the query can read.")]
    project: Annotated[SqlProject, describe("How the table is computed.")]


def check_projection(draft: Draft) -> None:
    """Adds the mistakes of a projection to those of its draft."""
    spec: ProjectionSpec = draft.spec
    if not 0 < len(spec.inputs) <= MAX_INPUTS:
        draft.note("spec.inputs", f"{len(spec.inputs)} inputs", "projection-inputs", f"1 to {MAX_INPUTS}")
    twice = repeated(input_.name.casefold() for input_ in spec.inputs)
    for number, each in enumerate(spec.inputs):
        if each.name.casefold() in twice:
            text = f"{each.name} is the name of two inputs"
            draft.note(f"spec.inputs[{number}]", text, "projection-inputs", "give one an alias")
        if each.alias is not None and not _ALIAS.match(each.alias):
            draft.note(
                f"spec.inputs[{number}].alias", f"{each.alias[:60]!r} is no alias", "projection-alias", "like a_1"
            )
    if spec.project.engine not in (None, ENGINE):
        text = f"projections are computed by {ENGINE}, and not by {spec.project.engine[:60]!r}"
        hint = "write the query for it and leave engine out; a Derivative is computed by an engine of transforms"
        draft.note("spec.project.engine", text, "engine-unavailable", hint)
    _check_query(draft, spec.project)
    if not spec.project.sql.strip() or len(spec.project.sql) > MAX_SQL:
        draft.note(
            "spec.project.query", "no query, or a very long one", "query-size", f"at most {MAX_SQL:,} characters"
        )


def _check_query(draft: Draft, project: SqlProject) -> None:
    if project.query is not None and project.queries is not None:
        draft.note("spec.project.queries", "query is there too", "query-steps", "leave one of them out")
    for number, each in enumerate(project.queries or ()):
        is_last = number == len(project.queries or ()) - 1
        if is_last != (each.alias is None) or (each.alias is not None and not _ALIAS.match(each.alias)):
            text = "the last step has no alias" if is_last else "a step that others read has an alias, like a_1"
            draft.note(f"spec.project.queries[{number}]", text, "query-steps", "{alias: NAME, query: SELECT …}")
    if project.version is not None:
        use = f"leave it out: {ENGINE} is of the version that the node has"
        draft.refuse("spec.project.version", "an engine's version is not chosen here", "dataset/Transform", use)
    if project.temporal_tables is not None:
        use = "current.NAME in the query: the current rows of a changelog"
        draft.refuse("spec.project.temporalTables", f"{ENGINE} has no temporal tables", "dataset/Transform", use)


class RecordedInput(msgspec.Struct, frozen=True, kw_only=True):
    """An input in the record of a table."""

    name: str
    dataset: str
    size: int
    block: str


class TableRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded state of a table."""

    spec: str
    """Fingerprint of the declaration for which it was computed (``fingerprint``)."""
    inputs: tuple[RecordedInput, ...]
    schema: bytes
    rows: int
    size: int
    content: str
    """SHA-256 of the table's file."""
    at: Instant
    """Time at which it was computed."""


class ProjectionStore:
    """The tables of one node, by the ids of their resources."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sound: dict[str, tuple[int, int, int]] = {}

    def find(self, resource_id: str) -> TableRecord | None:
        """Returns the record of the latest table; ``None``: there is none that can be read."""
        try:
            with (self.folder / f"{resource_id}{_RECORD}").open("rb") as file:
                raw = file.read(MAX_RECORD_BYTES + 1)
            record = msgspec.json.decode(raw, type=TableRecord) if len(raw) <= MAX_RECORD_BYTES else None
        except (OSError, msgspec.MsgspecError):
            return None
        return record if record is not None and self._is_sound(resource_id, record) else None

    def table(self, resource_id: str, name: str) -> KeptTable | None:
        """Returns the latest table for a query; ``None``: there is none that can be read."""
        record = self.find(resource_id)
        if record is None or not record.inputs:
            return None
        inputs = tuple(
            KeptInput(
                name=input_.name,
                dataset=DatasetId.parse(input_.dataset),
                cut=Cut(size=input_.size, block=Multihash.parse(input_.block)),
            )
            for input_ in record.inputs
        )
        return KeptTable(name=name, path=self._path(resource_id, record), schema=record.schema, inputs=inputs)

    def part(self, resource_id: str) -> Path:
        """Returns the path at which the next table is written first."""
        return self.folder / f"{resource_id}.{os.urandom(8).hex()}{_PART}"

    def keep(self, resource_id: str, part: Path, record: TableRecord) -> None:
        """Puts a new table in the place of the previous one. Raises Environment."""
        before = self.find(resource_id)
        try:
            durable.sync_file(part)
            durable.rename(part, self._path(resource_id, record))
            # The record comes last: after a crash in between, the previous record and its table are still there.
            with durable.writing(self.folder / f"{resource_id}{_RECORD}", draft=part.with_suffix(_SAID)) as file:
                file.write(msgspec.json.encode(record))
        except OSError as error:
            raise Environment(
                f"cannot keep a table in {self.folder}: {error.strerror}", rule="projection-disk"
            ) from error
        stay = {self._path(resource_id, each).name for each in (before, record) if each is not None}
        for path in list(self.folder.glob(f"{resource_id}.*")):
            if path.suffix != _RECORD and path.name not in stay:  # a query may still read the previous table
                path.unlink(missing_ok=True)

    def sweep(self, living: Collection[str]) -> None:
        """Removes leftovers of a crash: files of projections that no longer exist, and unfinished tables."""
        for path in list(self.folder.iterdir()):
            if path.name.partition(".")[0] not in living or path.suffix in (_PART, _SAID):
                path.unlink(missing_ok=True)

    def remove(self, resource_id: str) -> None:
        """Removes all files of a projection that no longer exists."""
        for path in list(self.folder.glob(f"{resource_id}.*")):
            path.unlink(missing_ok=True)

    def _path(self, resource_id: str, record: TableRecord) -> Path:
        return self.folder / f"{resource_id}.{record.content}{_FILE}"

    def _is_sound(self, resource_id: str, record: TableRecord) -> bool:
        """Whether the table's file has its hash; hashes it the first time and when it changed."""
        path = self._path(resource_id, record)
        with contextlib.suppress(OSError):
            found = path.stat()
            mark = (found.st_ino, found.st_size, found.st_mtime_ns)
            if self._sound.get(path.name) == mark:
                return True
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() == record.content:
                    self._sound = {**self._sound, path.name: mark}
                    return True
        return False


def fingerprint(spec: object) -> str:
    """Returns a hash that differs between declarations."""
    return hashlib.sha256(canonical(spec).encode()).hexdigest()


def spec_of(value: object) -> ProjectionSpec:
    """Decodes a stored spec. Raises Invalid."""
    try:
        return msgspec.convert(value, ProjectionSpec)
    except msgspec.ValidationError as error:
        raise Invalid(f"not a projection: {error}", rule="manifest-type", hint="apply it again") from error


PROJECTION_TYPE: Final = ResourceType(
    names=registry.PROJECTION,
    about="The result of a query over datasets, kept as a table and computed again when they change; it is read as "
    "projection.NAME.",
    spec=ProjectionSpec,
    is_silent=True, follows_datasets=True, is_pruned=True,
    check=check_projection,
    example="""\
$schema: Projection
headers:
  name: warmest
spec:
  inputs:
  - datasetRef: sensors
  project:
    kind: Sql
    query: SELECT max(celsius) AS celsius FROM sensors
""",
)  # fmt: skip
