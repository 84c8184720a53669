"""Imports ``msgspec`` for ``odfctl``, which starts often."""

from __future__ import annotations

from chain.libraries import kept_out


def import_msgspec() -> None:
    """Imports it without ``typing_extensions``, which takes as long as ``msgspec`` itself.

    It would use functions of it in place of those of ``typing``, which are equal from Python 3.11 on.
    """
    with kept_out(("typing_extensions",)):
        import msgspec  # noqa: F401
