"""What people want of the node, kept as events: datasets by name, mirrors, networks. Knows no concrete kind."""
