"""Levels of isolation for a process that runs strangers' queries: each one tried before it is believed."""
