"""Reports on and maintains the node itself: status, doctor, backups."""
