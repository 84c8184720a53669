"""Checks transforms and schemas with the engine, before they are recorded."""
