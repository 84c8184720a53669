"""Makes plans and expressions in the JVM that no SQL text can express: types of the format, exact aggregates."""
