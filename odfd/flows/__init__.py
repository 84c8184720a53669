"""Schedules pulls of datasets, and records their outcomes."""
