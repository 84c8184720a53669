"""Parts that every service stands on: the clock, supervised tasks, the board of long work, the service manager."""
