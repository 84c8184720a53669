"""A node that was installed without the engine: what its daemon loads does not need Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LOADS = """
import sys
for name in ("pyspark", "py4j", "pandas", "grpc"):
    sys.modules[name] = None
import odfd.api.services, odfd.cli.main, odfd.daemon.main, odfd.daemon.wiring, odfd.node.assembly, odfd.node.features
"""


@pytest.mark.slow
def test_a_daemon_starts_without_spark() -> None:
    done = subprocess.run([sys.executable, "-c", LOADS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
