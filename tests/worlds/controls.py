"""The control of a job that nobody cancels."""

from __future__ import annotations


class NeverCancelled:
    """A control whose caller waits to the end."""

    def check(self) -> None: ...

    def progress(self) -> None: ...
