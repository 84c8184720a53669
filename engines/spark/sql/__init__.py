"""Turns SQL texts into analysed plans: checks a text before Spark analyses it, and makes views over slices."""
