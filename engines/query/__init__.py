"""SQL over slices: a statement is judged, then answered by DuckDB in a confined process that serves nothing else.

Knows files, columns and views; no datasets, chains or nodes. ``judge``, ``temporal`` and ``frames`` are pure;
``reader`` is the node's side, ``answering`` and ``__main__`` run inside the process.
"""
