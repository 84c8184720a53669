"""Answers that are proven: signed by who answered, and rechecked by another node, and from folders without one."""

from __future__ import annotations

import base64
import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import trio

from chain.errors import Invalid, Refused
from chain.statements import answer as statements
from odfd.cli.new_file import NewFile
from odfd.cli.offline import answer_recheck
from odfd.cli.session import Session
from odfd.cli.sql.proof_file import prove
from odfd.control import wire
from worlds.node_world import Node, World

AIRLINES = Path(__file__).parents[1] / "golden" / "kamu" / "airlines"
SQL = "select carrier, name from current.airlines where carrier < 'B' order by name"


class Asked:
    """A client that is served by a node of this process."""

    def __init__(self, alice: Node) -> None:
        self._alice = alice

    def frames(self, call: Any, _meanwhile: object = None) -> Any:
        from contextlib import nullcontext

        from engines.query.frames import AnswerFrameReader

        said = bytearray()

        async def take(data: bytes) -> None:
            said.extend(data)

        trio.from_thread.run(self._alice.api.queries.answer, call.request, take)
        return nullcontext(AnswerFrameReader().feed(bytes(said)))


def session(alice: Node) -> Session:
    made = Session(Namespace(output="json", quiet=True, verbose=False, socket=None))
    made._client = Asked(alice)  # type: ignore[assignment]
    return made


async def taken(node: Node, name: str) -> None:
    await node.done(node.api.flow.import_(wire.ImportRequest(source=str(AIRLINES), as_name=name)))


async def test_an_answer_is_proven_and_rechecked(world: World, tmp_path: Path, capfd: Any) -> None:
    file = tmp_path / "answer.json"
    async with world.running("alice") as alice, world.running("bob") as bob:
        await taken(alice, "airlines")
        await taken(bob, "carriers")
        request = wire.QueryRequest(sql=SQL)

        def write() -> Any:
            return prove(Asked(alice), request, "ndjson", NewFile(file))  # type: ignore[arg-type]

        answered = await trio.to_thread.run_sync(write)
        shown = [json.loads(line)["carrier"] for line in capfd.readouterr().out.splitlines()]
        assert shown == sorted(shown)
        assert len(shown) == answered.rows > 2
        proven = answer_recheck.read(str(file))
        assert proven is not None
        assert proven.signers == (alice.home.keys.node_key().did,)
        assert [(pin.name, pin.sequence_number, pin.standing) for pin in proven.predicate.pins] == [
            ("airlines", 6, "data")
        ]
        view = await trio.to_thread.run_sync(lambda: answer_recheck.run(session(bob), proven, ()))
        assert (view["result"], view["reason"]) == ("confirmed", ""), "under another name"
        assert "confirmed" in answer_recheck.text(view)

        lie = forged(alice, proven)
        view = await trio.to_thread.run_sync(lambda: answer_recheck.run(session(bob), lie, ()))
        assert (view["result"], view["row"], view["said"][1]) == ("refuted", 1, "Nobody's Airline")
        assert "Nobody's Airline" in answer_recheck.text(view)

        with pytest.raises(Refused, match="first"):
            await alice.api.queries.answer(wire.QueryRequest(sql="select first(name) from airlines", prove=True), taken)
        await bob.api.declarations.delete("Dataset", "carriers")
        view = await trio.to_thread.run_sync(lambda: answer_recheck.run(session(bob), proven, ()))
        assert view["result"] == "unable"
        assert "airlines" in view["reason"]
    document = json.loads(file.read_text())
    document["rows"] = base64.b64encode(b"ARROW1").decode()
    file.write_text(json.dumps(document))
    with pytest.raises(Invalid):
        answer_recheck.read(str(file))


def forged(alice: Node, proven: Any) -> Any:
    """The same, signed over other rows."""
    import msgspec
    import pyarrow as pa

    from chain.data.logical_hash import logical_hash

    rows = proven.rows.to_pylist()
    rows[1]["name"] = "Nobody's Airline"
    table = pa.Table.from_pylist(rows, proven.rows.schema)
    predicate = msgspec.structs.replace(proven.predicate, logical_hash=str(logical_hash(table)))
    predicate, signers = statements.unseal(statements.seal(predicate, alice.home.keys.node_key()))
    return answer_recheck.ProvenAnswer(predicate, signers, table)


def test_folders_tell_without_a_daemon(tmp_path: Path) -> None:
    """The statement of a node that is gone."""
    from odfd.cli.offline.folder_queries import ask_folders

    proof, rows = ask_folders(wire.QueryRequest(sql="select 1 as n", prove=True), [str(AIRLINES)], tmp_path / "a")
    proven = answer_recheck.ProvenAnswer(*statements.unseal(json.dumps(proof).encode()), rows)
    made = Session(Namespace(output="json", quiet=True, verbose=False, socket=str(tmp_path / "none")))
    assert answer_recheck.run(made, proven, [str(AIRLINES)])["result"] == "confirmed"
    view = answer_recheck.run(made, proven, ())
    assert (view["result"], "--from" in view["reason"]) == ("unable", True)
