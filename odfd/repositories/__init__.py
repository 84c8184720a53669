"""Manages repositories by name: places that hold many datasets in the ODF layout, to push to and to pull from."""
