"""Tokens in a file: read by its owner alone, none that can be guessed, each known as soon as it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from chain.errors import Environment, Refused
from odfd.control.tokens import LEAST, Tokens

TOKEN = "a" * LEAST


def written(tmp_path: Path, text: str, mode: int = 0o600) -> Tokens:
    path = tmp_path / "tokens"
    path.write_text(text)
    path.chmod(mode)
    return Tokens(path, "http.tokens", required=True)


def test_a_token_of_the_file_is_admitted_and_others_are_not(tmp_path: Path) -> None:
    tokens = written(tmp_path, f"# of the house\n\nann {TOKEN}\n")
    assert tokens.admits(TOKEN)
    for wrong in ("", TOKEN + "a", TOKEN[1:], f"ann {TOKEN}", "\ud800" * LEAST):
        with pytest.raises(Refused) as caught:
            tokens.admits(wrong)
        assert caught.value.rule == "http-tokens"
    (tmp_path / "tokens").write_text(f"ben {TOKEN}b\n")
    assert tokens.admits(TOKEN + "b")
    with pytest.raises(Refused):
        tokens.admits(TOKEN)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_file_that_others_may_read_or_write_admits_nobody(tmp_path: Path, mode: int) -> None:
    with pytest.raises(Environment, match="others may read") as caught:
        written(tmp_path, f"ann {TOKEN}\n", mode).admits(TOKEN)
    assert "chmod 600" in caught.value.hint


@pytest.mark.parametrize("line", [f"ann {'a' * (LEAST - 1)}", "ann", f"ann {TOKEN} more", "ann "])
def test_a_line_without_a_token_that_is_long_enough_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(Environment, match="line 2"):
        written(tmp_path, f"ben {TOKEN}\n{line}\n").admits(TOKEN)
