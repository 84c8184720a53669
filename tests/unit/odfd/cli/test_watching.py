"""Who watches learns how to go on after the daemon went away."""

from __future__ import annotations

import pytest

from odfd.cli.watching import goes_on_from
from odfd.errors import Unreachable


@pytest.mark.parametrize(
    ("since", "told", "hint"),
    [
        (None, "a-7", "odfctl get vs -w --since a-7 goes on where this ended, once the daemon is back"),
        ("a-3", None, "odfctl get vs -w --since a-3 goes on where this ended, once the daemon is back"),
        (None, None, "look"),
    ],
)
def test_the_last_version_that_was_told_goes_on(since: str | None, told: str | None, hint: str) -> None:
    def watch() -> None:
        with goes_on_from("odfctl get vs -w", since) as last:
            last.version = told or last.version
            raise Unreachable("gone", rule="connection", hint="look")

    with pytest.raises(Unreachable) as caught:
        watch()
    assert caught.value.hint == hint
