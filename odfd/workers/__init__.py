"""Background work of a node: head signing, cosigning, publication, repair, garbage collection, and the engine."""
