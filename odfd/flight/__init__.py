"""Lets Arrow Flight SQL be spoken: takes connections, and answers what the process that speaks it asks."""
