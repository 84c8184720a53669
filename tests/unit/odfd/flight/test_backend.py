"""What the desk of Flight tells whoever gave no token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog

from chain.errors import Environment
from odfd.control.tokens import Tokens
from odfd.flight.backend import FlightBackend

TOKEN = "a-token-of-the-owner"


class _Broken:
    """The store cannot be read."""

    async def answer(self, *_: Any, owner: bool) -> None:
        raise Environment("cannot read /home/alice/odfd/objects/x", rule="object-read")

    def states(self, *, owner: bool) -> list[Any]:
        raise Environment("cannot read /home/alice/odfd/objects/x", rule="object-read")


@pytest.mark.parametrize("path", ["/query", "/datasets"])
async def test_others_are_told_nothing_of_this_machine(path: str, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"alice {TOKEN}\n")
    file.chmod(0o600)
    desk = FlightBackend(_Broken(), Tokens(file, "flight.tokens", required=False), structlog.get_logger())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(desk), base_url="http://desk") as client:

        async def told(token: str) -> str:
            said = await client.post(path, json={"token": token, "request": {"sql": "select 1"}})
            assert said.status_code == 503
            return said.text

        assert "/home/alice" in await told(TOKEN)
        assert "/home/alice" not in await told("")
        file.chmod(0o644)
        assert str(tmp_path) not in await told(TOKEN), "who they are is not known yet"
