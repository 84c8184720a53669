"""The process: its command line, its parts joined, its start, signals and end."""
