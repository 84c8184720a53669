"""Stores what people want of the node, as events: datasets by name, mirrors, networks. Knows no concrete kind."""
