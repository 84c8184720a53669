"""The engine process on its machine: Java, the JVM and its Spark session, clusters, settings, limits; no requests."""
