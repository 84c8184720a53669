"""Judges the contents of the ledger: verdicts, reach, suspensions,
the choice between forks, and a person's decisions."""
