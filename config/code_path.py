"""Says how another Python finds our packages, where they lie in a folder that no Python looks into by itself.

Installed from the wheel they lie in ``odfd_node/_code``, so that names such as ``config`` are nobody else's (ADR 31).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

PRIVATE: Final = "_code"
"""Name of the folder, in the one package that the wheel installs."""


def code_environment() -> dict[str, str]:
    """For processes that run our modules: the folder of our packages, and that of what they need. Else nothing."""
    code = Path(__file__).parents[1]
    return {"PYTHONPATH": f"{code}:{code.parents[1]}"} if code.name == PRIVATE else {}
