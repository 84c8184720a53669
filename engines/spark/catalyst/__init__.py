"""Makes plans and expressions in the JVM that SQL cannot express: types of the format, exact aggregates."""
