"""The Spark engine: a process of its own that reads slices, runs SQL and writes slices; it never sees a chain."""
