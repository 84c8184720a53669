"""Turns SQL texts into analysed plans: the check before Spark analyses a text, views over slices, and queries."""
