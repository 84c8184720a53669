"""The page ``docs/performance.md``: the ratios of the last release, of ``bench/figures.json``."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from itertools import groupby
from typing import Final

from bench import guard
from bench.__main__ import ROWS

HEAD: Final = """# Performance

See what odfd costs, compared with the least that the same work can cost. Each ratio is our cost divided by the other
side's, of two neighbours in one run: 1 is equal, less is better. `min..max` are the rounds of that run. The costs of
both sides are the machine's; the ratio is what another machine repeats.

```sh
make bench                    # all rows; T='verify mirror' measures these
make bench T=--guard          # names rows that got worse by a fifth since these figures
```

"""


def page(made: str) -> str:
    """Returns the page; ``made`` is the line that says how it is generated."""
    figures = guard.read()
    machine = figures.machine
    by_command = sorted(figures.rows.items(), key=lambda item: list(ROWS).index(item[1].command))
    return (
        f"{HEAD}{made} Measured on an otherwise idle machine: {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory'] / 2**30:.0f} GiB, Python {machine['python']}.\n"
        + "".join(_section(command, dict(rows)) for command, rows in groupby(by_command, lambda item: item[1].command))
    )


def _section(command: str, rows: dict[str, guard.Figure]) -> str:
    return f"\n## {command}\n\n{_summary(command)}\n\n" + "\n".join(_table(rows)) + "\n"


def _summary(command: str) -> str:
    """The first paragraph of the measurement's docstring."""
    measure = getattr(importlib.import_module(ROWS[command]), f"measure_{command}")
    said = (measure.__doc__ or "").split("\n\n")[0]
    return " ".join(said.split()).replace("``", "`")


def _table(rows: dict[str, guard.Figure]) -> Iterator[str]:
    yield "| what | ratio | min..max | goal | ours | against |"
    yield "|---|--:|---|---|---|---|"
    for name, row in rows.items():
        middle, least, most = row.ratio
        spread = f"{least:.2f}..{most:.2f}"
        yield (f"| **{name}**: {row.measures} | {middle:.2f} | {spread} | {row.goal} | {row.ours} | {row.against} |")
