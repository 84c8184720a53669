"""What can be seen of a running node: its log, and the events that people and programs follow."""
