"""Judges the contents of the trust ledger: verdicts, reach, suspensions, choices between forks, and decisions of the
operator."""
