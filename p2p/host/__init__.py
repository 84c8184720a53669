"""Hardens the libp2p host, py-libp2p 0.8.1. All imports of libp2p go through this package, which prepares it.

Every correction of the library is in ``library`` (before its first import) or ``hardening`` (the parts we assemble).
"""

from p2p.host.library import prepare

prepare()
