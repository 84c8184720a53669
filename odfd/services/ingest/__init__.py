"""Brings rows into datasets by Sources, pushes and pulls; keeps gaps, quarantined records and captured bytes."""
