"""Makes a running node observable: its log, and the events that people and programs follow."""
