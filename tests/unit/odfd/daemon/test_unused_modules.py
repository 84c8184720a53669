"""Modules that a daemon never uses stay out of its memory, and can be imported by whoever does."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from odfd.daemon.unused_modules import UNUSED, kept_out


def test_a_daemon_loads_none_of_them() -> None:
    program = (
        "import sys; from odfd.daemon.main import _services; _services();"
        "print(*sorted({name for name in sys.modules} & {'rich', 'click', 'pygments', 'dns', 'charset_normalizer',"
        " 'httpx._main', 'pyarrow._s3fs', 'pyarrow._hdfs', 'greenlet',"
        " 'duckdb', 'pyspark'}), 'httpx' in sys.modules, 'pyarrow.fs' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


def test_they_can_be_imported_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "this", raising=False)
    with kept_out(["this"]), pytest.raises(ImportError):
        importlib.import_module("this")
    assert "this" not in sys.modules


def test_what_is_loaded_stays() -> None:
    with kept_out(["sys", *UNUSED]):
        import sys as again
    assert again is sys
