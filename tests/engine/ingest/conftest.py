"""Golden behaviour of the reference, and a way to run ingest requests one after another on one dataset."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from chain import instant
from chain.ids import DatasetId
from chain.model.schema import DataSchema
from chain.model.source import MergeStrategy, ReadCsv, ReadStep, SqlQueryStep, Transform, TransformSql
from chain.multihash import Multihash
from engines.contract import IngestBatchRequest, Success, TransformOutcome, Vocab
from engines.request_control import RequestControl
from engines.spark.ingest.run import run_ingest

ANY_TIME = TransformSql(engine="spark", queries=(SqlQueryStep(query="SET odf.ahead = 'any';"),))


@dataclass
class Dataset:
    """A root dataset as the engine sees it: every successful round becomes its history."""

    spark: SparkSession
    folder: Path
    merge: MergeStrategy
    vocab: Vocab = field(default_factory=Vocab)
    schema: DataSchema | None = None
    watermark: instant.Instant | None = None
    slices: list[str] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)
    next_offset: int = 0
    rounds: int = 0

    def ingest(
        self,
        text: str | bytes | list[str],
        read: ReadStep,
        *,
        system_time: str = "2010-01-01T12:00:00Z",
        source_time: str | None = "2000-01-01T12:00:00Z",
        preprocess: Transform | None = None,
        remember: bool = True,
        fills: bool = True,
        needs: bool = False,
        bounded: bool = False,
        null_keys: bool = False,
    ) -> TransformOutcome:
        """``bounded``: event times may not be far ahead of ``system_time``, which is the reference's.

        ``null_keys``: rows may have no value in their primary key, which the reference takes.
        """
        self.rounds += 1
        if preprocess is None and not bounded:
            preprocess = ANY_TIME
        texts = text if isinstance(text, list) else [text]
        sources = [self.folder / f"in-{self.rounds}-{number}.txt" for number in range(len(texts))]
        for source, content in zip(sources, texts, strict=True):
            source.write_bytes(content if isinstance(content, bytes) else content.encode())
        output = self.folder / f"slice-{self.rounds}"
        request = IngestBatchRequest(
            dataset_id=DatasetId.from_public_key(bytes(32)),
            system_time=instant.parse(system_time),
            vocab=self.vocab,
            read=read,
            preprocess=preprocess,
            merge=self.merge,
            source_paths=tuple(map(str, sources)),
            source_event_time=instant.parse(source_time) if source_time else None,
            schema=self.schema,
            prev_data_paths=tuple(self.slices),
            prev_data_hashes=tuple(self.hashes),
            prev_watermark=self.watermark,
            next_offset=self.next_offset,
            new_data_path=str(output),
            source_names=tuple(f"input-{self.rounds}.csv" for _ in sources),
            fills_event_time=fills,
            needs_event_time=needs,
            allows_null_keys=null_keys,
        )
        answer = run_ingest(self.spark, request, RequestControl())
        assert sorted(path.name for path in self.folder.glob("ingest-*")) == [], "scratch was left behind"
        assert output.exists() == (isinstance(answer, Success) and answer.new_offset_interval is not None)
        if isinstance(answer, Success) and remember:
            self._remember(answer, output)
        return answer

    def _remember(self, answer: Success, output: Path) -> None:
        self.schema = self.schema or answer.schema
        self.watermark = answer.new_watermark
        if answer.new_offset_interval is not None:
            assert answer.new_offset_interval.start == self.next_offset
            self.slices.append(str(output))
            self.hashes.append(str(Multihash.sha3_256(output.read_bytes())))
            self.next_offset = answer.new_offset_interval.end + 1

    def last(self) -> pa.Table:
        return pq.read_table(self.slices[-1])

    def rows(self) -> list[list[Any]]:
        """Rows of the newest slice, times as the golden files write them."""
        return [[plain(value) for value in row.values()] for row in self.last().to_pylist()]


def plain(value: Any) -> Any:
    if hasattr(value, "isoformat"):
        text = value.isoformat()
        if "T" not in text:
            return text
        text = text.replace("+00:00", "Z")
        return text[:-4] + "Z" if "." in text else text
    return value


def csv_of(ddl: str, **options: Any) -> ReadCsv:
    return ReadCsv(header=True, ddl_schema=(ddl,), **options)


@pytest.fixture
def dataset(spark: SparkSession, tmp_path: Path) -> Callable[..., Dataset]:
    return lambda merge, **options: Dataset(spark, tmp_path, merge, **options)


@pytest.fixture(scope="session")
def dataset_class() -> type[Dataset]:
    return Dataset


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Any]:
    folder = Path(__file__).parents[2] / "golden" / "ingest"
    return lambda name: json.loads((folder / f"{name}.json").read_text())


@pytest.fixture(scope="session")
def merge_of() -> Callable[[dict[str, Any]], MergeStrategy]:
    def make(spec: dict[str, Any]) -> MergeStrategy:
        kind, keys = next(iter(spec.items()))
        content = {"kind": kind} if keys is None else {"kind": kind, "primaryKey": keys["pk"]}
        return msgspec.convert(content, MergeStrategy)

    return make


@pytest.fixture(scope="session")
def csv_step() -> Callable[..., ReadCsv]:
    return csv_of
