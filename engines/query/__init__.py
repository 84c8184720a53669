"""Answers SQL over slices: checks a statement, then runs it with DuckDB in a confined process of its own.

Knows files, columns and views; no datasets, chains or nodes. ``statement_check``, ``temporal`` and ``frames`` are pure;
``reader`` is the node's side; ``worker``, ``duckdb_session`` and ``__main__`` run inside the process.
"""
