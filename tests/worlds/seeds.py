"""Seeds of simulated worlds: few in each run, always the same ones, and as many others as a person asks for.

``ODFD_SIM_SEEDS`` says how many, ``ODFD_SIM_FIRST`` which is the first, and ``ODFD_SIM_SEED`` is one alone. So many
thousand are run in slices that share no seed.
"""

from __future__ import annotations

import os

BATCH = 25
"""Seeds of one test, since a test costs more than a small world."""


def seeds(usual: int) -> range:
    one = os.environ.get("ODFD_SIM_SEED")
    if one:
        return range(int(one), int(one) + 1)
    first = int(os.environ.get("ODFD_SIM_FIRST", "0"))
    return range(first, first + int(os.environ.get("ODFD_SIM_SEEDS", str(usual))))


def batches(usual: int) -> list[range]:
    """The same in parts, each of which a test gets."""
    every = seeds(usual)
    return [every[at : at + BATCH] for at in range(0, len(every), BATCH)]
