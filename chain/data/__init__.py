"""Rows: their logical hash, Parquet slices, and ODF schemas as Arrow sees them; no Python loop per row, no chains."""
