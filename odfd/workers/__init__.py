"""What runs by itself while the node does: signing heads, cosignatures, publication, repair, garbage collection."""
