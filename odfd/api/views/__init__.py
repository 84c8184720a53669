"""Makes what is shown of datasets, and keeps it until something that it rests on changes."""
