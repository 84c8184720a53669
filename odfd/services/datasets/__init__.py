"""Creates, changes, shows, verifies, rewrites and deletes datasets."""
