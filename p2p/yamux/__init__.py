"""Implements yamux 1.0.0 without I/O: many flow-controlled byte streams over one ordered connection.

Wire-compatible with the specification of hashicorp/yamux and with the libp2p implementations in Go, JavaScript and
Rust. The machine reads neither sockets nor clocks; ``p2p.host.muxer`` feeds it and sends its output.
"""
