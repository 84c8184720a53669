"""What the control API can ask of the node, done by the rooms below. One module a family; no rules of their own."""
