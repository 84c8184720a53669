"""Runs the engine process on its machine: Java, the JVM, Spark sessions, clusters, limits. Handles no requests."""
