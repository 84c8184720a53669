"""Declares the values of the format: events, blocks, schemas; frozen and typed. Codecs are derived from them."""
