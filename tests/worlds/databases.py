"""Databases of each kind for tests: a file of SQLite, and a real PostgreSQL on loopback where it is installed."""

from __future__ import annotations

import os
import pwd
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, NamedTuple

import pymysql
import pytest
from adbc_driver_postgresql import dbapi

from worlds import leaks
from worlds.certificates import certified
from worlds.ports import free_port

PASSWORD = "p@ss/word:1"
"""With all that has a meaning in a URL."""


class Served(NamedTuple):
    """``url`` has the password as a variable; ``run`` executes statements as the database's owner.

    MariaDB has a certificate for 127.0.0.1, ``certificate.pem`` of the folder.
    """

    url: str
    folder: Path
    kind: str

    def run(self, *statements: str) -> None:
        if self.kind == "sqlite":
            with closing(sqlite3.connect(self.folder / "base.sqlite")) as base:
                base.executescript(";".join(statements))
                base.commit()
            return
        if self.kind == "mysql":
            with pymysql.connect(unix_socket=f"{self.folder}/s", user="root", database="shop", autocommit=True) as base:
                for each in statements:
                    base.cursor().execute(each)
            return

        connected = dbapi.connect(owner(self.folder), autocommit=True)
        # It makes a pipe to itself, for signals, at its first call, and keeps it.
        with leaks.keep("ADBC"), connected as base, base.cursor() as cursor:
            for each in statements:
                cursor.execute(each)


def sqlite_served(folder: Path) -> Served:
    sqlite3.connect(folder / "base.sqlite").close()
    return Served(f"sqlite://{folder / 'base.sqlite'}", folder, "sqlite")


def owner(folder: Path) -> str:
    return f"postgresql://owner@/postgres?host={folder}&port={(folder / 'port').read_text()}"


def _programs() -> Path | None:
    found = shutil.which("initdb")
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return Path(found).resolve().parent if found else next(iter(folders), None)


@contextmanager
def postgres_served() -> Iterator[Served]:
    """Skips the test by name where PostgreSQL is not installed (Debian: postgresql)."""
    programs = _programs()
    if programs is None:
        pytest.skip("postgresql is not installed")
    with tempfile.TemporaryDirectory(prefix="odfd-pg-") as folder:
        yield from _running(programs, Path(folder))


def _running(programs: Path, folder: Path) -> Iterator[Served]:
    user = _user()
    home = folder / "base"
    home.mkdir()
    if user is not None:
        for each in (folder, home):
            shutil.chown(each, user)
    run: dict[str, Any] = {"user": user, "cwd": folder, "env": {"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]}}
    made: list[Any] = [programs / "initdb", "-D", home, "-U", "owner", "-A", "trust", "-E", "UTF8", "--no-sync"]
    subprocess.run(made, check=True, capture_output=True, **run)
    rules = "local all owner trust\nhost all reader 127.0.0.1/32 scram-sha-256\n"
    (home / "pg_hba.conf").write_text(rules)
    port = free_port()
    (folder / "port").write_text(str(port))
    settings = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": folder, "fsync": "off"}
    words = [f"-c{name}={value}" for name, value in settings.items()]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([programs / "postgres", "-D", home, *words], stdout=log, stderr=log, **run)
    try:
        served = Served(f"postgresql://reader:${{{{ env.DB }}}}@127.0.0.1:{port}/postgres", folder, "postgresql")
        _until_ready(programs, folder, port)
        served.run(
            f"CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'",
            "ALTER DEFAULT PRIVILEGES GRANT SELECT, INSERT ON TABLES TO reader",
        )
        yield served
    finally:
        process.terminate()
        process.wait()


@contextmanager
def mysql_served() -> Iterator[Served]:
    """Skips the test by name where MariaDB is not installed (Debian: mariadb-server)."""
    server, install = (shutil.which(each, path=f"{os.environ['PATH']}:/usr/sbin") for each in _MARIA)
    if server is None or install is None:
        pytest.skip("mariadb-server is not installed")
    with tempfile.TemporaryDirectory(prefix="odfd-my-") as name:
        yield from _maria(server, install, Path(name))


_MARIA = ("mariadbd", "mariadb-install-db")


def _maria(server: str, install: str, folder: Path) -> Iterator[Served]:
    user = "mysql" if os.getuid() == 0 else None
    if user is not None:
        shutil.chown(folder, user)
    words = ["--no-defaults", f"--datadir={folder}/base"]
    plain = ["--auth-root-authentication-method=normal", "--skip-test-db", *([f"--user={user}"] if user else [])]
    subprocess.run([install, *words, *plain], check=True, capture_output=True)
    port = free_port()
    words += [f"--socket={folder}/s", f"--port={port}", "--bind-address=127.0.0.1", f"--pid-file={folder}/pid"]
    words += ["--innodb-flush-log-at-trx-commit=0", "--skip-name-resolve"]
    certificate, key = certified(folder, "db.example", addresses=[IPv4Address("127.0.0.1")])
    if user is not None:
        shutil.chown(key, user)
    words += [f"--ssl-cert={certificate}", f"--ssl-key={key}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([server, *words], stdout=log, stderr=log, user=user, cwd=folder)
    try:
        _ready(folder)
        served = Served(f"mysql://reader:${{{{ env.DB }}}}@127.0.0.1:{port}/shop", folder, "mysql")
        served.run(
            f"CREATE USER reader@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'",
            "GRANT SELECT, INSERT, DELETE ON shop.* TO reader@'127.0.0.1'",
        )
        yield served
    finally:
        process.terminate()
        process.wait()


def _ready(folder: Path) -> None:
    """Makes the database as soon as the server takes connections."""
    for _ in range(200_000):
        if not (folder / "s").exists():
            os.sched_yield()
            continue
        try:
            with pymysql.connect(unix_socket=f"{folder}/s", user="root") as base:
                base.cursor().execute("CREATE DATABASE shop")
            return
        except pymysql.MySQLError:
            continue
    raise AssertionError((folder / "log").read_text())


def _until_ready(programs: Path, folder: Path, port: int) -> None:
    """``psql`` itself waits for nothing; each try takes as long as it takes to be refused."""
    asked: list[str | Path] = [programs / "pg_isready", "-q", "-h", folder, "-p", str(port)]
    for _ in range(2000):
        if subprocess.run(asked, check=False).returncode == 0:
            return
    raise AssertionError((folder / "log").read_text())


def _user() -> str | None:
    """PostgreSQL refuses to run as root."""
    if os.getuid():
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return "nobody"
