"""One JSON object a line, bounded, at and above the level."""

from __future__ import annotations

import io
import json

import structlog

from odfd.obs import log


def test_json_lines() -> None:
    stream = io.StringIO()
    log.configure("info", "auto", stream)
    logger = structlog.get_logger(room="test")
    logger.debug("unseen")
    logger.info("héllo", blocks=3, query="x" * 10_000)
    try:
        raise ValueError("why")
    except ValueError as error:
        logger.error("failed", exc_info=error)
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first["event"] == "héllo"
    assert (first["level"], first["room"], first["blocks"]) == ("info", "test", 3)
    assert len(first["query"]) < 4100
    assert first["query"].endswith("(10000 characters)")
    assert second["exception"][0]["exc_value"] == "why"


def test_text_for_people() -> None:
    stream = io.StringIO()
    log.configure("warning", "text", stream)
    structlog.get_logger().info("unseen")
    structlog.get_logger().warning("seen", blocks=3)
    assert "seen" in stream.getvalue()
    assert "blocks=3" in stream.getvalue()
    assert "unseen" not in stream.getvalue()
