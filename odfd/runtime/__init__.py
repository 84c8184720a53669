"""Building blocks of long-running programs: clocks, supervision, tasks, reconcile loops, keyed locks, HTTP, systemd."""
