"""What is loaded before a person has an answer: each of these would take longer than most answers do."""

from __future__ import annotations

import subprocess
import sys

import pytest

CLI = "import odfd.cli.main, odfd.control.client, odfd.cli.commands.{0}"


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        (CLI.format("sql"), ("pyarrow", "numpy", "trio", "shutil", "traceback", "odfd.control.wire.trust")),
        (CLI.format("reading"), ("pyarrow", "numpy", "trio", "shutil", "traceback", "odfd.control.wire.trust")),
        ("import engines.query.worker", ("pandas", "trio", "pyarrow.compute", "pyarrow.parquet")),
    ],
)
def test_few_modules_are_loaded(code: str, heavy: tuple[str, ...]) -> None:
    shown = f"import sys\n{code}\nprint([name for name in {heavy!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", shown], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"


def test_a_query_needs_neither_numpy_nor_pandas() -> None:
    """``engines.query`` forbids them."""
    code = "import sys; sys.modules['numpy'] = sys.modules['pandas'] = None\nimport engines.query.worker"
    subprocess.run([sys.executable, "-c", code], check=True)
