"""Builds the engine image to one digest from equal inputs, unpacks and checks it, with no tool but Python."""
