"""Makes a running node observable: its log, metrics and traces, and the events that operators and programs follow."""
