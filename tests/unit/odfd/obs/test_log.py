"""One JSON object a line, bounded, at and above the level."""

from __future__ import annotations

import errno
import io
import json
import logging

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


class Sometimes(io.StringIO):
    """A stream on a disk that may be full."""

    full = False

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


def test_a_log_that_cannot_be_written_stops_nobody() -> None:
    stream = Sometimes()
    log.configure("info", "json", stream)
    logger = structlog.get_logger()
    logger.info("first")
    stream.full = True
    logger.info("second")
    logger.error("third")
    stream.full = False
    logger.info("fourth")
    logger.info("fifth")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["event"], line.get("unwritten")) for line in lines] == [
        ("first", None),
        ("fourth", 2),
        ("fifth", None),
    ]
    stream.close()
    logger.info("sixth")


def test_parts_have_levels_of_their_own() -> None:
    stream = io.StringIO()
    log.configure("warning", "json", stream, {"odfd.mirrors": "debug", "odfd.mirrors.sync": "error", "events": "info"})
    for module in ("odfd.mirrors.scheduler", "odfd.mirrors.sync", "odfd.services.trust.service", "odfd.mirrorspec"):
        space: dict[str, object] = {"__name__": module, "logger": structlog.get_logger()}
        exec("logger.debug('d'); logger.warning('w'); logger.error('e')", space)
    structlog.get_logger(part="events").info("i")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["part"], line["event"]) for line in lines] == [
        ("odfd.mirrors", "d"),
        ("odfd.mirrors", "w"),
        ("odfd.mirrors", "e"),
        ("odfd.mirrors", "e"),
        ("odfd.services.trust", "w"),
        ("odfd.services.trust", "e"),
        ("odfd.mirrorspec", "w"),
        ("odfd.mirrorspec", "e"),
        ("events", "i"),
    ]


def test_levels_change_at_run_time_also_of_libraries() -> None:
    stream, library = io.StringIO(), logging.getLogger("p2p.host.muxer")
    log.configure("info", "json", stream)
    logger = structlog.get_logger()
    logger.debug("before"), library.info("before")
    log.configure("info", "json", stream, {"p2p": "info", "tests": "debug", __name__.partition(".")[0]: "debug"})
    logger = structlog.get_logger()
    logger.debug("between"), library.info("between")
    log.configure("info", "json", stream)
    structlog.get_logger().debug("after"), library.info("after")
    assert stream.getvalue().count("between") == 2
    assert "before" not in stream.getvalue()
    assert "after" not in stream.getvalue()
