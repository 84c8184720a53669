"""Whether a statement of others is taken in: limits, signatures, order, epochs. Rules are pure."""
