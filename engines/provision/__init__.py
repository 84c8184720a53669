"""Keeps engines ready: starts them in the best sandbox, watches them, replaces dead ones, stops idle ones."""
