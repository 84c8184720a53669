"""Judges what the ledger holds: verdicts, reach, suspensions, the choice between forks, and decisions of a person."""
