"""Publishes rows of private datasets by declared rules, without the data that they were made from."""
