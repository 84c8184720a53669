"""Measures the memory of parsing a file, and the time with unreadable records.

``python -m bench.parsing FORMAT PATH`` prints the peak of memory, as a ratio.

The peak is of resident memory beyond what the process had with its modules loaded, over the bytes of the file.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.measure import CPU, Row, Side, Size, in_turns
from chain.data.ddl import parse_ddl
from chain.model.read_options import ON_ERROR, quarantine_of
from chain.model.schema import DataSchema
from chain.model.source import ReadCsv, ReadGeoJson, ReadJson, ReadNdGeoJson, ReadNdJson, ReadParquet, ReadStep
from engines.spark.ingest import parse, range_tasks

STEPS: dict[str, ReadStep] = {
    "csv": ReadCsv(header=True, infer_schema=True),
    "json": ReadJson(),
    "ndjson": ReadNdJson(),
    "geojson": ReadGeoJson(),
    "ndgeojson": ReadNdGeoJson(),
    "parquet": ReadParquet(),
}
RECORDS = 1 << 12
ENDS = {"json": ("[", "]"), "geojson": ('{"type":"FeatureCollection","features":[', "]}")}


def record(number: int) -> dict[str, object]:
    seconds = f"{number // 60 % 60:02}:{number % 60:02}"
    time = f"2024-01-01T00:{seconds}Z"
    return {"id": number, "event_time": time, "name": f"name {number} {'x' * 40}", "value": number / 7}


def texts(kind: str) -> Iterator[str]:
    for number in itertools.count():
        fields = record(number)
        if kind == "csv":
            yield ",".join(map(str, fields.values() if number else fields)) + "\n"
            continue
        if "geo" in kind:
            point = {"type": "Point", "coordinates": [number / 1e5, 1.5]}
            fields = {"type": "Feature", "geometry": point, "properties": fields}
        yield (",\n" if number and kind in ENDS else "") + json.dumps(fields) + ("" if kind in ENDS else "\n")


def write(kind: str, size: int, path: Path) -> None:
    """Writes repeated copies of some thousands of records, as new ones would take longer than reading them."""
    if kind == "parquet":
        some = pa.Table.from_pylist([record(number) for number in range(RECORDS)])
        whole = pa.concat_tables([some] * (size // 60 // RECORDS + 1)).slice(0, size // 60)
        pq.write_table(whole, path, compression="none", use_dictionary=False)
        return
    begin, end = ENDS.get(kind, ("", ""))
    first, *others = itertools.islice(texts(kind), RECORDS)
    with path.open("w") as file:
        left = size - file.write(begin + first)
        for text in itertools.cycle(others):
            left -= file.write(text)
            if left <= 0:
                break
        file.write(end)


def memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def peak(kind: str, path: Path, folder: Path) -> float:
    """Measures planning the file and parsing its ranges one after the other, as one worker does."""
    first = folder / f"first.{kind}"
    write(kind, 1 << 14, first)
    read(first, STEPS[kind], folder)  # modules are loaded when they are first needed
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    read(path, STEPS[kind], folder)
    return (memory("VmHWM") - before) / path.stat().st_size


def peak_apart(kind: str, size: int, folder: Path) -> float:
    """Measures a file of about ``size`` bytes, in a new process."""
    path = folder / f"source.{kind}"
    write(kind, size, path)
    command = [sys.executable, "-m", "bench.parsing", kind, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    path.unlink()
    return float(done.stdout)


def measure_parsing(size: Size, folder: Path) -> list[Row]:
    """Measures each format against the bytes of its file: large is a document that is parsed in one piece."""
    sizes = {kind: size.pick(4, 152 if kind == "json" else 32) for kind in STEPS}
    return [
        Row(
            name=f"parse {kind}",
            measures=f"memory at the peak of reading a file of {mib} MiB",
            ours=Side(name="one worker", costs=(peak_apart(kind, mib << 20, folder) * (mib << 20),), unit="B"),
            peer=Side(name="the file", costs=(float(mib << 20),), unit="B"),
            goal="<= 6",
        )
        for kind, mib in sizes.items()
    ]


COLUMNS = "id BIGINT NOT NULL, event_time TIMESTAMP, name STRING, value DOUBLE"


def measure_quarantine(size: Size, folder: Path) -> list[Row]:
    """Measures a file with one unreadable record in a hundred, each with another text, against one without."""
    mib = size.pick(1, 8)
    schema = DataSchema(fields=parse_ddl((COLUMNS,)).fields, extra={ON_ERROR: {"quarantine": {"maxRows": 100_000}}})
    rows = []
    for kind, step in (("csv", ReadCsv(header=True, schema=schema)), ("ndjson", ReadNdJson(schema=schema))):
        whole, partly = folder / f"whole.{kind}", folder / f"partly.{kind}"
        write(kind, mib << 20, whole)
        lines = whole.read_text().splitlines()
        for number in range(50, len(lines), 100):
            lines[number] = re.sub(r"\d+", lambda found: f'"no {found[0]}"', lines[number], count=1)
        partly.write_text("\n".join(lines))
        costs = in_turns(lambda: read(partly, step, folder), lambda: read(whole, step, folder), size.pick(1, 5), CPU)  # noqa: B023
        rows.append(
            Row(
                name=f"quarantine {kind}",
                measures=f"one record in a hundred of {mib} MiB set aside, against none",
                ours=Side(name="with bad records", costs=costs[0], unit="s"),
                peer=Side(name="without", costs=costs[1], unit="s"),
                goal="<= 6",
                facts={"records": len(lines), "bad": read(partly, step, folder)},
            )
        )
    return rows


def read(path: Path, step: ReadStep, folder: Path) -> int:
    """Records that were set aside."""
    plan = parse.plan_file(parse.SourceFile(path, path.name), step, parse.read_schema(step))
    return sum(
        range_tasks.parse_to_part(
            range_tasks.RangeTask(
                path=str(path),
                name=path.name,
                span=span,
                format=plan.format,
                schema=plan.schema,
                part=str(folder / "part"),
                quarantine=quarantine_of(step.schema),
            )
        ).bad
        for span in plan.spans
    )


def main(kind: str, path: str) -> None:
    print(peak(kind, Path(path), Path(path).parent))


if __name__ == "__main__":
    main(*sys.argv[1:])
