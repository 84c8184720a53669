"""A simulated network that publishes, re-runs, lies, and counts: the real trust code on virtual time."""
