"""Reports and cares for the node itself: status, doctor, backups."""
