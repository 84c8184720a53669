"""A dataset as it lies on IPFS: the ODF layout, and beside it the statements that say whose head it is.

::

    refs/head  blocks/  data/  checkpoints/     the ODF directory layout
    trust/head                                  the newest signed head, as it is gossiped
    trust/authority-1 …                         the walk of the authority up to the version that the head names

ADR 0009.
"""

from __future__ import annotations

from typing import Final

from chain.ids import DatasetId

HOME: Final = "/odfd"
"""Where published datasets lie among the daemon's own files."""
TRUST: Final = "trust"
SIGNED_HEAD: Final = f"{TRUST}/head"


def folder_of(dataset: DatasetId) -> str:
    """Among the daemon's own files."""
    return f"{HOME}/{dataset.multibase}"


def authority_file(version: int) -> str:
    return f"{TRUST}/authority-{version}"
