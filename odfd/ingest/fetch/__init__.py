"""Sources of data: where bytes come from, and how to know whether there is anything new."""
