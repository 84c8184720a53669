"""``trust recheck`` on files that need no engine: what is refused, what is incomplete, what is proven on the spot."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import msgspec
import pytest

from odfd.cli.main import main
from odfd.trust.evidence.bundle import BundleReader, write

GOLDEN = Path(__file__).parents[2] / "golden" / "trust"
LIE = (GOLDEN / "lie.odfe").read_bytes()


def run(capsys: pytest.CaptureFixture[str], file: Path) -> tuple[int, str, str]:
    code = main(["trust", "recheck", str(file), "-o", "json"])
    out, err = capsys.readouterr()
    return code, out, err


def flipped() -> bytes:
    with tarfile.open(fileobj=io.BytesIO(LIE)) as archive:
        at = archive.getmembers()[-1].offset_data + 5
    return LIE[:at] + bytes([LIE[at] ^ 1]) + LIE[at + 1 :]


@pytest.mark.parametrize(
    ("raw", "rule"),
    [
        (b"garbage", "bundle-file"),
        (b"", "bundle-file"),
        (LIE[:5000], "bundle-file"),
        (LIE + b"tail", "bundle-file"),
        (flipped(), "bundle-object"),
        (b'{"type":"x"}', "proof"),
        (b"{" + b" " * 70_000, "file-size"),
    ],
)
def test_what_is_refused(raw: bytes, rule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.odfe").write_bytes(raw)
    code, out, err = run(capsys, tmp_path / "bad.odfe")
    assert (code, out) == (5, "")
    assert f"(rule {rule})" in err or json.loads(err[err.index("{") :])["rule"] == rule
    assert "bad.odfe" in err
    assert "Traceback" not in err


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, tmp_path / "none.odfe")
    assert (code, out) == (5, "")
    assert "none.odfe" in err


def test_an_incomplete_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reader = BundleReader(io.BytesIO(LIE), "lie")
    contents = {listed.hash: b"".join(pieces) for listed, pieces in reader.objects()}
    rest = tuple(each for each in reader.manifest.objects if each.sequence_number != 0)
    out = io.BytesIO()
    write(msgspec.structs.replace(reader.manifest, objects=rest), lambda each: io.BytesIO(contents[each.hash]), out)
    (tmp_path / "part.odfe").write_bytes(out.getvalue())
    code, told, _ = run(capsys, tmp_path / "part.odfe")
    answer = json.loads(told)
    assert (code, answer["result"]) == (5, "incomplete")
    assert "is not in the file" in answer["reason"]


@pytest.mark.parametrize(("name", "kind"), [("fork.json", "fork"), ("double-vote.json", "double-vote")])
def test_a_proof_is_checked_on_the_spot(name: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, told, _ = run(capsys, GOLDEN / name)
    answer = json.loads(told)
    assert (code, answer["result"], answer["kind"]) == (0, "confirmed", kind)
    assert len(answer["accused"]) == 1
