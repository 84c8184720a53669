"""SQL texts to analysed plans: the gate that judges a text before Spark analyses it, views over slices, and queries."""
