"""How far the parsing of files is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from chain.model.source import ReadNdJson
from engines.contract import EngineProgress
from engines.request_control import RequestControl
from engines.spark.ingest.parse import SourceFile, parse_sources


class Looking(RequestControl):
    """Looks how far the work is before it begins and when it is done."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[EngineProgress] = []

    @contextmanager
    def measuring(self, measure: Callable[[], EngineProgress]) -> Iterator[None]:
        with super().measuring(measure):
            self.seen.append(self.how_far())
            yield
            self.seen.append(self.how_far())


def test_bytes_of_ranges_that_are_parsed_count(tmp_path: Path) -> None:
    sources = []
    for number in range(3):
        path = tmp_path / f"{number}.ndjson"
        path.write_text('{"a": 1}\n' * 10)
        sources.append(SourceFile(path, path.name))
    control = Looking()
    folder = tmp_path / "parts"
    folder.mkdir()

    def no_session() -> None:
        raise AssertionError("small texts need no Spark")

    assert parse_sources(no_session, sources, ReadNdJson(), folder, {}, control) is not None  # type: ignore[arg-type]
    assert control.seen == [
        EngineProgress(bytes_read=0, bytes_total=270),
        EngineProgress(bytes_read=270, bytes_total=270),
    ]
    assert control.how_far() == EngineProgress()
