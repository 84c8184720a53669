"""Seeds of simulated worlds: few in each run, always the same ones, and as many others as a person asks for.

``ODFD_SIM_SEEDS`` says how many, ``ODFD_SIM_FIRST`` which is the first, and ``ODFD_SIM_SEED`` is one alone. So many
thousand are run in slices that share no seed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

BATCH = 25
"""Seeds of one test, since a test costs more than a small world."""


def seeds(usual: int) -> range:
    one = os.environ.get("ODFD_SIM_SEED")
    if one:
        return range(int(one), int(one) + 1)
    first = int(os.environ.get("ODFD_SIM_FIRST", "0"))
    return range(first, first + int(os.environ.get("ODFD_SIM_SEEDS", str(usual))))


def examples(usual: int) -> int:
    """Number of examples of a property over worlds that Hypothesis draws: as many as seeds are asked for."""
    return int(os.environ.get("ODFD_SIM_SEEDS", str(usual)))


def batches(usual: int) -> list[range]:
    """The same in parts, each of which a test gets."""
    every = seeds(usual)
    return [every[at : at + BATCH] for at in range(0, len(every), BATCH)]


@contextmanager
def named(seed: int) -> Iterator[None]:
    """Adds the seed to the exception of a world, as a test of several seeds does not have it in its name."""
    try:
        yield
    except Exception as error:
        error.add_note(f"ODFD_SIM_SEED={seed}")
        raise
