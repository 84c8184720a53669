"""Engines kept warm: started on first use in the best sandbox, watched, replaced when they die, stopped when idle."""
