"""What follows from what is kept: verdicts, reach, suspensions, the choice between forks, decisions of a person."""
