"""Executes a transaction of a transform: views of inputs, the query, changing tables, handovers and replays."""
