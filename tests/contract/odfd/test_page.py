"""``odfctl ui``: the address is told to whoever may use the socket, and to nobody beside."""

from __future__ import annotations

import stat
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest
import trio

from odfd.cli.main import main

ADDRESS = "http://127.0.0.1:7464/#token=secret&"


async def run(served: Any, *words: str) -> int:
    return await trio.to_thread.run_sync(main, ["--socket", str(served.path), "ui", *words])


async def test_it_prints_the_address(serve: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    async with serve() as served:
        assert await run(served) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{ADDRESS}\n"
    assert "good once, for 120 s" in printed.err


@pytest.mark.parametrize("variable", ["XDG_RUNTIME_DIR", "XDG_CACHE_HOME"])
async def test_no_word_that_others_see_holds_the_token(
    serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """A browser is started with the name of a file, which only this user reads; the file before it is gone."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv(variable, str(tmp_path / "mine"))
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: bool(opened.append(url)) or True)
    async with serve() as served:
        assert await run(served, "--open") == 0
        assert await run(served, "--open") == 0
    (place,) = {Path(unquote(urlparse(url).path)) for url in opened}
    assert "secret" not in "".join(opened)
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert 'url=http://127.0.0.1:7464/#token=secret&amp;"' in place.read_text()


async def test_without_a_browser_it_says_what_to_do(
    serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(webbrowser, "open", lambda _: False)
    async with serve() as served:
        assert await run(served, "--open") == 7
    assert "open the printed address by hand" in capsys.readouterr().err


async def test_a_place_that_cannot_be_written_is_told(
    serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))
    async with serve() as served:
        assert await run(served, "--open") == 7
    assert "cannot write" in capsys.readouterr().err
