"""Defines the layout of a published dataset: the ODF layout, and beside it the statements that prove its head.

::

    refs/head  blocks/  data/  checkpoints/     the ODF directory layout
    trust/head                                  the newest signed head, as it is gossiped
    trust/authority-1 …                         the walk of the authority up to the version that the head names
    packs/0 …                                   blocks, many in a file, where a node wrote or serves it (``packs``)

ADR 0009, 0012, 0013.
"""

from __future__ import annotations

from typing import Final

TRUST: Final = "trust"
SIGNED_HEAD: Final = f"{TRUST}/head"
MAX_AUTHORITIES: Final = 256
"""Versions (docs/spec/trust.md#authorities)."""
MAX_STATEMENT: Final = 64 << 10


def authority_file(version: int) -> str:
    return f"{TRUST}/authority-{version}"
