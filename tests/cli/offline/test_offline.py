"""Commands on files, as a person runs them: what is printed, what JSON holds, how it ends. No daemon is there."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from odfd.cli.main import main

GOLDEN = Path(__file__).parents[2] / "golden"
KAMU = GOLDEN / "kamu"
BLOCKS = sorted(file for folder in KAMU.iterdir() if folder.is_dir() for file in (folder / "blocks").iterdir())


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    code, out, err = run(capsys, *words, "-o", "json")
    assert (code, err) == (0, "")
    return json.loads(out)


@pytest.mark.parametrize("block", BLOCKS[::7], ids=lambda file: file.name[-6:])
def test_a_block_shown_and_encoded_is_the_same_block(
    block: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, shown, _ = run(capsys, "block", "show", block, "-o", "yaml")
    assert code == 0
    (tmp_path / "b.yaml").write_text(shown)
    made = answer(capsys, "block", "encode", tmp_path / "b.yaml", "-O", tmp_path / "b.block")
    assert (tmp_path / "b.block").read_bytes() == block.read_bytes()
    assert made["hash"] == block.name
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


def test_block_json_is_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    block = BLOCKS[0]
    assert answer(capsys, "block", "hash", block) == {"hash": block.name}
    told = answer(capsys, "block", "show", block)
    assert told["kind"] == "MetadataBlock"
    assert (told["hash"], told["manifestVersion"], told["size"]) == (block.name, 3, block.stat().st_size)
    assert {"systemTime", "sequenceNumber", "event"} <= told["content"].keys()
    code, out, _ = run(capsys, "block", "show", block)
    assert code == 0
    assert yaml.safe_load(out)["content"]["event"]["kind"] == told["content"]["event"]["kind"]


def test_a_block_of_a_folder_is_found_by_number_and_by_hash(capsys: pytest.CaptureFixture[str]) -> None:
    head = (KAMU / "flights" / "refs" / "head").read_text()
    told = answer(capsys, "block", "show", f"{KAMU / 'flights'}@{head}")
    assert told["hash"] == head
    number = told["content"]["sequenceNumber"]
    assert answer(capsys, "block", "hash", f"{KAMU / 'flights'}@#{number}") == {"hash": head}
    for place in (f"{KAMU / 'flights'}@#{number + 1}", f"{KAMU / 'nowhere'}@#0"):
        code, out, err = run(capsys, "block", "show", place)
        assert (code, out) == (5, ""), err


@pytest.mark.parametrize("name", ["mixed-500-1.parquet", "structs-7-0.parquet", "ints-0-0.parquet"])
def test_data_hash_is_the_contract(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    index = json.loads((GOLDEN / "arrow-digest" / "index.json").read_text())
    file = GOLDEN / "arrow-digest" / name
    told = answer(capsys, "data", "hash", file)
    assert told.keys() == {"physicalHash", "logicalHash", "size", "records"}
    assert told["logicalHash"] == index[name]["logicalHash"]
    assert told["records"] == index[name]["records"]
    assert told["size"] == file.stat().st_size
    assert told["physicalHash"].startswith("f1620")


def test_data_show_tells_columns_and_rows(capsys: pytest.CaptureFixture[str]) -> None:
    file = GOLDEN / "arrow-digest" / "mixed-500-1.parquet"
    told = answer(capsys, "data", "show", file, "-n", "3")
    assert told["records"] == 500
    assert len(told["rows"]) == 3
    assert {"name": "amount", "type": "Decimal(12, 2)", "optional": True} in told["columns"]
    code, out, _ = run(capsys, "data", "show", file, "-n", "0")
    assert code == 0
    assert "Timestamp(Millisecond, UTC)" in out


@pytest.mark.parametrize("folder", sorted(each for each in KAMU.iterdir() if each.is_dir()), ids=lambda each: each.name)
def test_golden_datasets_verify(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = answer(capsys, "verify", folder)
    assert told.keys() == {"ref", "datasetId", "head", "blocks", "level", "ok", "checked", "failures"}
    counts = {"blocks", "slices", "bytes", "transforms", "remembered", "notHeld", "toCome"}
    assert told["checked"].keys() == {*counts, "portal"}
    assert (told["ok"], told["level"], told["failures"]) == (True, "data", [])
    assert told["head"] == (folder / "refs" / "head").read_text()


def test_a_failure_ends_with_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(KAMU / "places", copy)
    (slice_,) = (copy / "data").iterdir()
    slice_.write_bytes(slice_.read_bytes()[:-1] + b"?")
    code, out, _ = run(capsys, "verify", copy, "-o", "json")
    told = json.loads(out)
    assert (code, told["ok"]) == (1, False)
    assert told["failures"][0].keys() == {"block", "rule", "message", "expected", "actual"}
    assert told["failures"][0]["block"].keys() == {"hash", "sequenceNumber"}
    code, out, _ = run(capsys, "verify", copy)
    assert code == 1
    assert "slice-physical-hash" in out
    assert run(capsys, "verify", copy, "--level", "chain")[0] == 0
    assert run(capsys, "verify", copy, "--from", "#9")[0] == 5


@pytest.mark.parametrize(
    "words, code, says",
    [
        (["verify", "./not-there"], 5, "there is no folder"),
        (["verify", str(KAMU), "--from", "x"], 2, "not a block number"),
        (["verify", str(KAMU), "--level", "deep"], 2, "invalid choice"),
        (["block", "show", "not-there"], 5, "not there"),
        (["block", "show", str(KAMU)], 5, "a folder"),
        (["block", "hash", str(GOLDEN / "README.md")], 5, "error"),
        (["block", "encode", str(GOLDEN / "README.md"), "-O", "/tmp/never"], 5, "README.md"),
        (["block"], 2, "required"),
        (["data", "hash", str(GOLDEN / "README.md")], 5, "not a readable Parquet file"),
        (["data", "hash", "not-there"], 5, "not there"),
        (["data", "show", str(GOLDEN / "README.md"), "-n", "many"], 2, "not a number"),
    ],
)
def test_mistakes_get_one_message_and_a_code(
    words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended, out, err = run(capsys, *words)
    assert ended == code
    assert out == ""
    assert says in err
    assert "Traceback" not in err


def test_a_target_in_no_folder_is_a_usage_fault(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, shown, _ = run(capsys, "block", "show", BLOCKS[0], "-o", "yaml")
    (tmp_path / "b.yaml").write_text(shown)
    code, _, err = run(capsys, "block", "encode", tmp_path / "b.yaml", "-O", tmp_path / "no" / "b")
    assert code == 2
    assert "cannot write" in err
    assert "no/b:" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["verify", str(KAMU / "flights")], ["data", "hash", str(GOLDEN / "arrow-digest" / "lists-7-1.parquet")]]
)
def test_hashing_and_verifying_do_not_load_pandas(words: list[str]) -> None:
    """Half a second at every start, for nothing."""
    program = (
        f"import sys; from odfd.cli.main import main; code = main({words!r}); sys.exit(code or 'pandas' in sys.modules)"
    )
    tree = Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", program], cwd=tree, stdout=subprocess.DEVNULL).returncode == 0


@pytest.mark.parametrize(
    ("column", "shown"),
    [
        (pa.array([-(10**14) * 5, None], pa.timestamp("ms", "UTC")), ["-13875-08-18T23:06:40Z", None]),
        (pa.array([1000, None], pa.timestamp("ms", "Nowhere/Here")), ["1970-01-01T00:00:01Z", None]),
        (pa.array([2**31 - 1], pa.date32()), ["a value of date32[day] that cannot be shown"]),
        (pa.array([{"at": 10**17}], pa.struct([("at", pa.timestamp("ms", "UTC"))])), None),
    ],
)
def test_times_beyond_the_calendar_are_shown(
    column: pa.Array, shown: list[str | None] | None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pq.write_table(pa.table({"at": column}), tmp_path / "far.parquet")
    rows = answer(capsys, "data", "show", tmp_path / "far.parquet")["rows"]
    assert len(rows) == len(column)
    if shown is not None:
        assert [row[0] for row in rows] == shown
