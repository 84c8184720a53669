"""Handles rows: their logical hash, Parquet slices, ODF schemas as Arrow types. No Python loop per row."""
