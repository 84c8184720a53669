"""Plans and expressions made in the JVM, which no SQL text can say: types of the format, exact aggregates."""
