"""Carries out a transaction of a transform: views of inputs, the query, tables that are kept up, handovers, replays."""
