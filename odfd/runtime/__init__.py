"""What long-running programs need: clocks, supervision, tasks, reconcile loops, locks by key, HTTP, systemd."""
