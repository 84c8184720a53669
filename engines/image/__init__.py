"""The engine image: built to the same digest from the same inputs, unpacked and checked with no tool but Python."""
