"""Keeps slices of datasets in volumes: on another disk, or in a bucket."""
