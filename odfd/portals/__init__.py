"""Publishes rows of private datasets by declared rules, without what they were made of."""
