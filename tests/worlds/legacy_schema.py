"""Schemas in the form that old chains hold: the Schema table of an Arrow IPC message, as a buffer of its own."""

from __future__ import annotations

import struct

import pyarrow as pa


def legacy(schema: pa.Schema) -> bytes:
    """What ``rawArrowSchema`` holds: the message's header, re-rooted."""
    message = schema.serialize().to_pybytes()[8:]
    root = struct.unpack_from("<I", message)[0]
    vtable = root - struct.unpack_from("<i", message, root)[0]
    header = root + struct.unpack_from("<H", message, vtable + 8)[0]
    table = header + struct.unpack_from("<I", message, header)[0]
    return struct.pack("<I", table) + bytes(message[4:])
