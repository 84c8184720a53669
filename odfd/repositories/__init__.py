"""Keeps repositories by name: places of many datasets in the ODF layout, to push to and to pull from."""
