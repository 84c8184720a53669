"""Publishes rows of private datasets by a rule."""
