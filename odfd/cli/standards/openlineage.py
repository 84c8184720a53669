"""Writes transactions of a derived dataset as run events of OpenLineage: reads the blocks, and builds the events.

A transaction is a run, the dataset's transform its job. The chain has one time for a transaction, so START and COMPLETE
of its run have the same time. Datasets are named by their ids, which are the same on every node; local names are
symlinks. Facets that begin with ``odf_`` are ours. Spec: OpenLineage 2-0-2.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from chain.errors import Invalid
from odfd import __version__
from odfd.cli import kinds
from odfd.control import calls, wire

if TYPE_CHECKING:
    from odfd.control.client import ControlClient

NAMESPACE: Final = "odf"
LOCAL: Final = "odfd"
"""Namespace of names that datasets have only on this node."""
PRODUCER: Final = f"urn:odfd:{__version__}"
_SPEC: Final = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/"
_FACETS: Final = "https://openlineage.io/spec/facets/"
_PAGE: Final = 500
"""Blocks of one request."""
_RUNS: Final = uuid.uuid5(uuid.NAMESPACE_URL, "https://opendatafabric.org/runs")


class TransactionRuns:
    """The newest transactions of one dataset. Raises Invalid for a root, which has no runs."""

    def __init__(self, client: ControlClient, ref: str, limit: int) -> None:
        self._client, self._ref = client, ref
        view = kinds.dataset_view(client, ref)
        if view.kind == "root":
            raise Invalid(
                f"{view.name} is a source dataset: nothing derives it", rule="lineage-events",
                hint=f"odfctl lineage {view.name} names what is derived from it",
            )  # fmt: skip
        graph = client.do(calls.lineage_graph(ref)).value
        names = {node.id: node.ref for node in graph.nodes if not node.ref.startswith("did:")}
        self._about = Derivation(view, names)
        self._blocks = self._newest("ExecuteTransform", limit + 1)
        self.left_out = len(self._blocks) > limit
        """Whether there are older transactions."""
        self._blocks = self._blocks[:limit][::-1]
        self._transforms = self._newest("SetTransform", None)
        self._known: dict[str, dict[str, Any]] = {}

    def events(self) -> Iterator[dict[str, Any]]:
        """Yields the events, oldest first."""
        for block in self._blocks:
            yield from run_events(self._about, self._detail(block.hash), self._transform_at(block.sequence_number))

    def _transform_at(self, number: int) -> dict[str, Any]:
        declared = next((transform for transform in self._transforms if transform.sequence_number < number), None)
        if declared is None:
            raise Invalid(f"block #{number} runs a transform that no block before it sets", rule="lineage-events")
        if declared.hash not in self._known:
            transform: dict[str, Any] = self._detail(declared.hash).manifest["event"]["transform"]
            self._known[declared.hash] = transform
        return self._known[declared.hash]

    def _detail(self, block: str) -> wire.BlockDetail:
        return self._client.do(calls.datasets_block(self._ref, block)).value

    def _newest(self, kind: str, most: int | None) -> list[wire.BlockView]:
        """Returns the newest blocks with such an event, newest first. ``most``: how many; ``None``: all."""
        found: list[wire.BlockView] = []
        before = None
        while most is None or len(found) < most:
            limit = _PAGE if most is None else min(_PAGE, most - len(found))
            page = self._client.do(calls.datasets_log(self._ref, kind=[kind], limit=limit, before=before)).value
            found += page
            if len(page) < limit:
                break
            before = str(page[-1].sequence_number)
        return found


class Derivation(NamedTuple):
    """The facts that are common to all runs of one dataset."""

    dataset: wire.DatasetView
    names: Mapping[str, str]
    """Local names of datasets, by id."""


def run_events(about: Derivation, block: wire.BlockDetail, transform: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Builds START and COMPLETE of the run whose result is ``block``, an ExecuteTransform.

    ``transform``: the query in force at the block, as in its SetTransform. A run has the same id on each node.
    """
    content = block.manifest
    event = content["event"]
    run = {"runId": str(uuid.uuid5(_RUNS, block.hash))}
    job = {"namespace": NAMESPACE, "name": about.dataset.id, "facets": _job_facets(transform)}
    begun = {"eventTime": content["systemTime"], "producer": PRODUCER, "schemaURL": _SPEC + "RunEvent", "job": job}
    done = {
        "run": {**run, "facets": {"odf_transaction": _facet("RunFacet", _transaction(about, block))}},
        "inputs": [_input(about, each) for each in event["queryInputs"]],
        "outputs": [_output(about, block)],
    }
    return [
        {"eventType": "START", **begun, "run": run, "inputs": [], "outputs": []},
        {"eventType": "COMPLETE", **begun, **done},
    ]


def _job_facets(transform: Mapping[str, Any]) -> dict[str, Any]:
    steps = transform.get("queries") or [{"query": transform.get("query", "")}]
    query = ";\n".join(f"-- {step['alias']}\n{step['query']}" if step.get("alias") else step["query"] for step in steps)
    kind = {"processingType": "BATCH", "integration": "ODF", "jobType": "TRANSFORM"}
    return {
        "sql": _standard("1-1-0/SQLJobFacet", {"query": query, "dialect": transform["engine"]}),
        "jobType": _standard("2-0-4/JobTypeJobFacet", kind),
    }


def _transaction(about: Derivation, block: wire.BlockDetail) -> dict[str, Any]:
    number, rely_on = block.manifest["sequenceNumber"], about.dataset.rely_on
    return _without_none(
        {
            "block": block.hash,
            "prevBlock": block.manifest.get("prevBlockHash"),
            "sequenceNumber": number,
            "watermark": block.manifest["event"].get("newWatermark"),
            "isReliedOn": None if rely_on is None else number < rely_on.blocks,
            "standing": None if rely_on is None else rely_on.fact or None,
        }
    )


def _input(about: Derivation, read: Mapping[str, Any]) -> dict[str, Any]:
    facets = _dataset_facets(about, read["datasetId"], read.get("newBlockHash") or read.get("prevBlockHash"))
    cut = {name: read[name] for name in ("prevBlockHash", "newBlockHash", "prevOffset", "newOffset") if name in read}
    return {
        "namespace": NAMESPACE,
        "name": read["datasetId"],
        "facets": facets,
        "inputFacets": {"odf_interval": _facet("InputDatasetFacet", cut)},
    }


def _output(about: Derivation, block: wire.BlockDetail) -> dict[str, Any]:
    data = block.manifest["event"].get("newData")
    counts = {"rowCount": 0, "size": 0, "fileCount": 0}
    facets: dict[str, Any] = {}
    if data is not None:
        interval = data["offsetInterval"]
        counts = {"rowCount": interval["end"] - interval["start"] + 1, "size": data["size"], "fileCount": 1}
        facets["odf_slice"] = _facet("OutputDatasetFacet", data)
    facets["outputStatistics"] = _standard("1-0-2/OutputStatisticsOutputDatasetFacet", counts)
    dataset = about.dataset.id
    return {
        "namespace": NAMESPACE,
        "name": dataset,
        "facets": _dataset_facets(about, dataset, block.hash),
        "outputFacets": facets,
    }


def _dataset_facets(about: Derivation, dataset: str, version: str | None) -> dict[str, Any]:
    facets: dict[str, Any] = {}
    if version is not None:
        facets["version"] = _standard("1-0-1/DatasetVersionDatasetFacet", {"datasetVersion": version})
    if name := about.names.get(dataset):
        link = {"namespace": LOCAL, "name": name, "type": "TABLE"}
        facets["symlinks"] = _standard("1-0-1/SymlinksDatasetFacet", {"identifiers": [link]})
    return facets


def _standard(path: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Builds a facet of the standard: ``1-1-0/SQLJobFacet``."""
    return {"_producer": PRODUCER, "_schemaURL": f"{_FACETS}{path}.json#/$defs/{path.partition('/')[2]}", **fields}


def _facet(kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Builds a facet of our own; the standard's schema of its kind allows any fields."""
    return {"_producer": PRODUCER, "_schemaURL": _SPEC + kind, **fields}


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
