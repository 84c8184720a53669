"""Wire formats of replication: frames, and the messages of the three stream protocols. Specified in ADR 0002.

Pure values and codecs. Nothing here reads a socket, keeps a connection or knows what the bytes mean to a dataset.
"""
