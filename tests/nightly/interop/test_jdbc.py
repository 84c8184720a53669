"""Arrow's JDBC driver, by which DBeaver and Tableau ask: a Java program of its own against a node in this process."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import trio

from config import model
from worlds import foreign, node_world
from worlds.eventually import ENGINE_START, became

pytestmark = pytest.mark.e2e

ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000", "2024-01-03T00:00:00Z,Wels,62000")
PROGRAM = """
import java.sql.*;
public class Ask {
  static void say(String text) { System.out.println(text); }
  public static void main(String[] words) throws Exception {
    try (Connection connection = DriverManager.getConnection(words[0])) {
      DatabaseMetaData known = connection.getMetaData();
      say("product " + known.getDatabaseProductName());
      try (ResultSet each = known.getTables(null, null, "%", null)) {
        while (each.next()) say("table " + each.getString(2) + "." + each.getString(3)); }
      try (ResultSet each = known.getColumns(null, "current", "cities", "p%")) {
        while (each.next()) say("column " + each.getString(4) + " " + each.getInt(5)); }
      try (ResultSet each = known.getPrimaryKeys(null, null, "cities")) {
        while (each.next()) say("key " + each.getString(4)); }
      try (Statement asked = connection.createStatement();
           ResultSet each = asked.executeQuery("select count(*) n, max(event_time) t from cities as at '2024-01-02'")) {
        while (each.next()) say("count " + each.getLong("n") + " " + each.getTimestamp("t").toInstant()); }
      String text = "select city, population from cities where city > ? and population < ?::bigint order by city";
      try (PreparedStatement asked = connection.prepareStatement(text)) {
        for (String first : new String[] {"Graz", "Linz"}) {
          asked.setString(1, first);
          asked.setString(2, "250000");
          try (ResultSet each = asked.executeQuery()) {
            while (each.next()) say("row " + each.getString(1) + " " + each.getLong(2)); } } }
      try (Statement asked = connection.createStatement()) { asked.executeQuery("select * from towns"); }
      catch (SQLException error) { say("error " + error.getMessage()); }
      try (Statement asked = connection.createStatement();
           ResultSet each = asked.executeQuery("select range from range(100000000000)")) {
        each.next();
        asked.cancel();
        while (each.next()) { }
        say("ended"); }
      catch (SQLException error) { say("cancelled"); }
      System.in.read(); } } }
"""


@pytest.mark.slow
async def test_the_jdbc_driver_asks(tmp_path: Path) -> None:
    if not (java := shutil.which("java")) or not shutil.which("javac"):
        pytest.skip("no JDK is installed: Arrow's JDBC driver cannot be run")
    driver = await trio.to_thread.run_sync(foreign.jdbc_driver)
    program = tmp_path / "Ask.java"
    program.write_text(PROGRAM)
    world = node_world.World(tmp_path)
    async with world.running("alice", private=True, flight=model.Flight(listen=("127.0.0.1:0",))) as alice:
        world.write("alice", "a.csv", *ROWS)
        await alice.apply(node_world.ROOT, node_world.DERIVED)
        await alice.pull()
        await alice.publish("cities")
        place = alice.parts.doors["flight"].urls[0].removeprefix("grpc://")
        url = f"jdbc:arrow-flight-sql://{place}?useEncryption=false&user=anonymous&password=anonymous"
        command = [java, "--add-opens=java.base/java.nio=ALL-UNNAMED", "-cp", str(driver), str(program), url]
        said = b""
        with trio.fail_after(ENGINE_START):
            process = await trio.lowlevel.open_process(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            try:
                async for piece in process.stdout:
                    said += piece
                    if b"cancel" in said:
                        # Its connection stays until it is told to end; its query does not.
                        await became(lambda: alice.parts.readers._turns.borrowed_tokens == 0)
                        await process.stdin.aclose()
            finally:
                process.kill()
                await process.wait()
    world.close()
    *lines, refused, ended = said.decode().splitlines()
    assert lines == [
        "product odfd",
        "table null.cities",
        "table current.cities",
        "column population -5",
        "key offset",
        "count 2 2024-01-02T00:00:00Z",
        "row Linz 210000",
        "row Wels 62000",
        "row Wels 62000",
    ]
    assert "no dataset 'towns' here" in refused
    assert "Traceback" not in refused
    assert ended == "cancelled"
