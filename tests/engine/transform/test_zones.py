"""Local calendars by the JVM's own rules: bounds are what its functions do, for zones with every kind of oddity."""

from __future__ import annotations

import random

import pytest

from engines.spark.analysis.monotone import DAY, SECOND, Floor, FloorMonths, LocalFloor, Zone
from engines.spark.sql.time_patterns import zones_in

pytestmark = pytest.mark.engine
ZONES = (
    "America/New_York", "America/St_Johns", "America/Sao_Paulo", "Asia/Kolkata", "Australia/Lord_Howe", "Europe/Dublin",
    "Pacific/Apia", "Africa/Cairo", "Asia/Manila", "Europe/Paris",
)  # fmt: skip
KNOWN: dict[str, Zone] = {}
UNITS = {"DAY": Floor(DAY), "WEEK": Floor(7 * DAY, 4 * DAY), "MONTH": FloorMonths(1), "YEAR": FloorMonths(12)}
PLAIN = ("America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Europe/Dublin", "Europe/Paris")
"""Where no clock was ever put back over midnight in the years looked at."""


@pytest.mark.parametrize("unit", UNITS)
def test_bounds_are_what_spark_does(spark, unit):
    rng = random.Random(unit)
    texts = [f"to_utc_timestamp(x, '{zone}')" for zone in ZONES]
    known = zones_in(spark, texts, KNOWN)
    assert set(known) == set(ZONES)
    rows = []
    for zone in ZONES:
        changes = [moment for moment in known[zone].moments if -60 * 365 * DAY < moment < 200 * 365 * DAY]
        near = [
            rng.choice(changes) + rng.choice([-DAY, -3_600, -1, 0, 1, 59, 3_600]) * SECOND
            for _ in range(60 * bool(changes))
        ]
        rows += [
            (zone, time) for time in [*near, *(rng.randrange(-60 * 365 * DAY, 228 * 365 * DAY) for _ in range(60))]
        ]
    spark.createDataFrame(rows, "zone string, t bigint").createOrReplaceTempView("times")
    local = "date_trunc('{unit}', from_utc_timestamp(timestamp_micros(t), '{zone}'))"
    start = "when '{zone}' then to_utc_timestamp(" + local + ", '{zone}')"
    cases = " ".join(start.format(unit=unit, zone=zone) for zone in ZONES)
    for zone, time, start in spark.sql(f"select zone, t, unix_micros(case zone {cases} end) from times").collect():
        low, high = (LocalFloor(known[zone], UNITS[unit], high)(time) for high in (False, True))
        assert low <= start <= high, (zone, time)
        assert low == high or zone not in PLAIN or time >= known[zone].until, (zone, time)


def test_names_that_are_no_zones_are_left_alone(spark):
    texts = [
        "select to_utc_timestamp(x, 'Nowhere/Town')",
        "select 'Europe/Rome'",
        'from_utc_timestamp(x, "Asia/Tokyo")',
    ]
    known = {}
    assert set(zones_in(spark, texts, known)) == {"Asia/Tokyo"}
    assert zones_in(spark, texts, known)["Asia/Tokyo"] is known["Asia/Tokyo"]
