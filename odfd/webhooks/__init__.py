"""Notifies declared URLs of changes of datasets."""
