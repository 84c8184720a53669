"""Answers queries in SQL: of the node's owner, and of others over what policy serves."""
