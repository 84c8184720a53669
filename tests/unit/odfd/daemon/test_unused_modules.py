"""Modules that a daemon never uses, or not before it works with rows, stay out of its memory at the start."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOADED = """
import sys
from odfd.daemon.unused_modules import lean_imports
with lean_imports():
    from odfd.daemon import wiring
from odfd.daemon.main import _services
from chain.struct_types import learn_struct_types
_services(), learn_struct_types()
from odfd.network.membership import load_libp2p
load_libp2p()
import p2p.driver.replication, p2p.host.host
print(*sorted({names} & set(sys.modules)), "httpx" in sys.modules, "libp2p" in sys.modules)
"""
NEVER = {
    "rich",
    "click",
    "pygments",
    "dns",
    "charset_normalizer",
    "httpx._main",
    "greenlet",
    "pycparser",
    "duckdb",
    "pyspark",
}
LATER = {"numpy", "pyarrow", "pyarrow.lib", "pyarrow.fs", "pandas", "grpc"}


@pytest.mark.slow
def test_a_daemon_with_a_host_loads_none_of_them() -> None:
    """A stray ``import pyarrow`` at the top of a module costs an idle node 46 MiB: take it from chain.libraries."""
    program = LOADED.replace("{names}", repr(NEVER | LATER))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


@pytest.mark.slow
def test_arrow_works_and_finds_no_pandas() -> None:
    """Without the refusal, the first ``pa.array`` of a process imports pandas if it is installed, as it is here."""
    program = """
import sys
from odfd.daemon.unused_modules import refuse_pandas
refuse_pandas()
from chain.libraries import np, pa, pc
print(pa.array([1, None]).null_count, pc.sum(pa.array(np.arange(3))), pa.table({"a": [1]}).to_pylist())
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["1 3 [{'a': 1}]", "False"]
