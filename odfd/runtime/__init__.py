"""Provides what long-running programs need: clocks, supervision, tasks, reconcile loops, locks, HTTP, systemd."""
