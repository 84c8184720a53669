"""Values of the format: events, blocks, schemas; frozen, typed, the one declaration that codecs are derived from."""
