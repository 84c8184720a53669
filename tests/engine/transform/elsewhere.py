"""Prints the digests of ``test_layout`` from a Spark of its own: ``elsewhere.py FOLDER JSON``.

JSON: ``{"cores": 2, "heap": "512m", "master": null, "rows": 12, "settings": {}, "interpreted": []}``, of which the last
are names of queries. Tells besides how much was spilled to disk and how many executors had work, so that a test knows
that what it asked for took place.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark.sql import SparkSession

from engines.spark.runtime.cluster import Cluster
from engines.spark.runtime.java import find_archive, find_java, install_folder
from engines.spark.runtime.session import SessionOptions, start_session, stop_session
from engines.spark.sql import views


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
    folder, request = Path(sys.argv[1]), json.loads(sys.argv[2])
    folder.mkdir()
    laboratory, layout = load("conftest"), load("test_layout")
    vars(views)["FEW"] = -1  # executors read slices themselves
    # How work is spread has a place of its own only on a cluster.
    cluster = Cluster(request["master"], settings=request["settings"]) if request["master"] else None
    archive = find_archive(install_folder(), find_java(os.environ, folder))
    options = SessionOptions(folder, request["cores"], request["heap"], quick=True, archive=archive, cluster=cluster)
    spark = start_session(options)
    try:
        lab = laboratory.Lab(spark, folder)
        before = _work(spark)
        interpreted = layout.LAYOUTS[layout.INTERPRETED]
        digests = {
            name: layout.digest(lab, name, interpreted if name in request["interpreted"] else {}, request["rows"])
            for name in layout.QUERIES
        }
        executors = sum(done > before.get(name, 0) for name, done in _work(spark).items())
        told = {"digests": digests, "spilled": layout.spilled(spark), "executors": executors}
        sys.stdout.write(json.dumps(told) + "\n")
    finally:
        stop_session(spark)


def _work(spark: SparkSession) -> dict[str, int]:
    """Tasks done by each executor, the driver's own included."""
    context: Any = spark.sparkContext
    found = context._jsc.sc().statusStore().executorList(True)
    return {found.apply(at).id(): found.apply(at).totalTasks() for at in range(found.size())}


if __name__ == "__main__":
    main()
