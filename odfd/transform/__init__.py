"""Derived datasets: plan a transaction as a value, execute it on an engine, commit it exactly once, replay it."""
