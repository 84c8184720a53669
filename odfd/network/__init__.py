"""This node among others: what it gives, what it admits, and the networks it has joined."""
