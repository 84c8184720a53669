"""Values of the format: events, blocks, schemas. Frozen, typed, and the one declaration that every codec is derived from."""
