"""Decides whether a received statement is taken in: limits, signatures, order, epochs. Rules are pure."""
