"""Prints the digests of ``test_layout`` from a Spark of its own: ``elsewhere.py FOLDER CORES``."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path.cwd()))

from engines.spark.session import SessionOptions, start_session, stop_session


def load(name: str) -> ModuleType:
    """A neighbour of this file, which is no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    folder, cores = Path(sys.argv[1]), int(sys.argv[2])
    folder.mkdir()
    laboratory, layout = load("conftest"), load("test_layout")
    spark = start_session(SessionOptions(scratch=folder, cores=cores, heap="512m"))
    try:
        lab = laboratory.Lab(spark, folder)
        sys.stdout.write(json.dumps({name: layout.digest(lab, name, {}) for name in layout.QUERIES}) + "\n")
    finally:
        stop_session(spark)


if __name__ == "__main__":
    main()
