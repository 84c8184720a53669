"""Decides whether a received statement is accepted: limits, signatures, order, epochs. Rules are pure."""
