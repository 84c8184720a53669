"""The catalogue of datasets on this node: names, creation from snapshots, and reading of blocks and rows."""
