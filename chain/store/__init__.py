"""Where chains and objects are kept: the ports and their implementations."""
