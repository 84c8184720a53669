"""Encodes the messages of replication: frames, and the stream protocols (docs/spec/replication.md).

Pure values and codecs. Nothing here reads a socket, keeps a connection or knows what the bytes mean to a dataset.
"""
