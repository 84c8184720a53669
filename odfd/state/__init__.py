"""What a node keeps on disk and how its parts are set: the state directory, crash recovery, settings by component."""
