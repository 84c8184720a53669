"""Makes a running node observable: its log, its metrics and traces, and the events that people and programs follow."""
