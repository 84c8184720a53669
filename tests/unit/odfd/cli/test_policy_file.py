"""What a file of a network's policy says becomes a request, each part in its place."""

from __future__ import annotations

from pathlib import Path

import msgspec

from odfd.cli.commands.trust import rules_of
from odfd.control import wire

KEY = "did:key:z6Mkqi1cNkNci6HXwDxeeS1aP1neHbnW4CDve788zZwKPkR9"
GROUPS = f'groups = [{{name = "one", keys = ["{KEY}"]}}]\n'


def test_validators_and_witnesses_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "network.toml"
    file.write_text(
        f'use = "data"\n[validators]\nf = 0\n{GROUPS}[witness]\nquorum = 1\n{GROUPS}[fresh]\nmax-stale = "7d"\n'
    )
    expected = wire.NetworkRulesRequest(
        use="data", f=0, groups={"one": (KEY,)}, max_stale="7d",
        witness=wire.WitnessRulesRequest(quorum=1, groups={"one": KEY}),
    )  # fmt: skip
    assert msgspec.json.encode(rules_of(str(file))) == msgspec.json.encode(expected)
