"""Imports libp2p late, in the thread that needs it first, because the import takes long."""

from __future__ import annotations

from chain.libraries import kept_out


def load_libp2p() -> None:
    """Imports libp2p. Its crypto library parses C by ``cffi`` if that can be imported, by ctypes otherwise."""
    with kept_out(("cffi",)):
        import p2p.driver.network  # noqa: F401
