"""Answers queries in SQL: of the owner and of others, over what policy serves; keeps projections."""
