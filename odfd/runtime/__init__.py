"""Provides the base of long-running programs: clocks, supervision, tasks, reconcile loops, locks, HTTP, systemd."""
