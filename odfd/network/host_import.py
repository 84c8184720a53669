"""Imports libp2p, in the thread that a node uses for it when it is first told to listen."""

from __future__ import annotations

from chain.libraries import kept_out


def load_libp2p() -> None:
    """Imports libp2p. Crypto parses C by ``cffi`` where that can be imported, and else has ctypes."""
    with kept_out(("cffi",)):
        import p2p.driver.network  # noqa: F401
