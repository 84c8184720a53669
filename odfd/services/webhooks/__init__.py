"""Notifies declared URLs about changes of datasets."""
