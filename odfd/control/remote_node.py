"""Connects to a node on another machine by its URL, token and certificates. Imported when needed."""

from __future__ import annotations

import os
import socket
import stat
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from chain.errors import Environment, Invalid, Refused
from odfd.errors import Unreachable

if TYPE_CHECKING:
    from ssl import SSLContext

MAX_TOKEN_FILE: Final = 4096
_RULE: Final = "node-url"


class RemoteNode(NamedTuple):
    """A node to ask over TCP."""

    url: str
    host: str
    port: int
    is_secure: bool
    token: str
    ca_file: str

    @property
    def headers(self) -> dict[str, str]:
        """The headers of each request."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return {"host": f"{host}:{self.port}", "authorization": f"Bearer {self.token}"}

    def connect(self, patience: float | None) -> socket.socket:
        """Opens a new connection. Raises Unreachable, Refused, Invalid."""
        try:
            connection = socket.create_connection((self.host, self.port), patience)
        except OSError as error:
            hint = "check that it runs there, with api.listen, and that the network permits the connection"
            raise Unreachable(f"no node answers at {self.url}: {error}", rule="connection", hint=hint) from error
        if not self.is_secure:
            return connection
        import ssl

        try:
            return _context(self.ca_file).wrap_socket(connection, server_hostname=self.host)
        except ssl.SSLCertVerificationError as error:
            connection.close()
            text = f"the certificate of {self.url} is not accepted: {error.verify_message}"
            raise Refused(
                text, rule="certificate", hint="--ca-file FILE names those that it is checked against"
            ) from None
        except OSError as error:
            connection.close()
            raise Unreachable(f"{self.url} speaks no TLS: {error}", rule="connection") from error


@cache
def _context(ca_file: str) -> SSLContext:
    """Loads certificate authorities, once for all connections. Raises Invalid."""
    import ssl

    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        text = f"no certificates can be read from {ca_file}: {error.strerror or error}"
        raise Invalid(text, rule="ca-file", hint="a file in PEM") from error


def remote_node(url: str, token_file: str, ca_file: str) -> RemoteNode:
    """Reads URL, token and certificates for a node. Raises Invalid, Environment."""
    hint = "write it like https://node.example:7465"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise Invalid(f"not the URL of a node: {url[:120]!r}", rule=_RULE, hint=hint) from error
    if parts.scheme not in ("http", "https") or not host or parts.username or parts.path.strip("/") or parts.query:
        raise Invalid(f"not the URL of a node: {url[:120]!r}", rule=_RULE, hint=hint)
    is_secure = parts.scheme == "https"
    if not is_secure and host not in ("localhost", "::1") and not host.startswith("127."):
        raise Invalid(f"a token is not sent unencrypted to {host}", rule=_RULE, hint="write https://")
    if not token_file:
        hint = "--token-file FILE, or ODFD_TOKEN_FILE; odfctl token create --out FILE at the node makes one"
        raise Invalid("a node elsewhere asks for a token", rule="token-file", hint=hint)
    return RemoteNode(url, host, port or (443 if is_secure else 80), is_secure, _token(Path(token_file)), ca_file)


def _token(path: Path) -> str:
    """Reads a token. Raises Environment for a file that is unreadable, or open to others; Invalid without a token."""
    try:
        with path.open("rb") as file:
            # Of the open file, since its name may mean another one by now.
            if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise Environment(
                    f"other users may read the token in {path}", rule="token-file", hint=f"chmod 600 {path}"
                )
            text = file.read(MAX_TOKEN_FILE).decode("ascii", "replace").strip()
    except OSError as error:
        hint = "odfctl token create --out FILE at the node makes one"
        raise Environment(f"cannot read {path}: {error.strerror}", rule="token-file", hint=hint) from error
    if not text.isascii() or not text.isprintable() or not text or " " in text:
        raise Invalid(f"there is no token in {path}", rule="token-file", hint="one line: odf_…")
    return text
