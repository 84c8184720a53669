"""A server of our own that answers as Google's storage does by XML: versions, conditions of writes, lists in pages.

Of others, no server was found that takes writes of this protocol.
"""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import secrets
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from worlds.http_served import HttpServer, serving

EMAIL = "writer@project.iam.example"


@cache
def _private() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@cache
def service_account() -> str:
    """The file that Google would make of whoever may write."""
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key = _private().private_bytes(*form).decode()
    return json.dumps({"type": "service_account", "client_email": EMAIL, "private_key": key, "private_key_id": "k1"})


class StoredVersion(NamedTuple):
    content: bytes
    version: int

    @property
    def tag(self) -> str:
        return f'"{hashlib.md5(self.content, usedforsecurity=False).hexdigest()}"'


class Cloud:
    """Buckets that anybody reads, and who has the key writes."""

    def __init__(self) -> None:
        self.address = ""
        self.buckets: dict[str, dict[str, StoredVersion]] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.page = 1000
        self.ignores_conditions = False
        self._versions = 1_700_000_000_000_000
        self._lock = threading.Lock()

    def new_bucket(self, name: str) -> str:
        """Its URL as a repository."""
        self.buckets[name] = {}
        return f"gs+{self.address}/{name}"

    def write(self, bucket: str, key: str, content: bytes, condition: str | None) -> StoredVersion | None:
        """``None``: the condition does not hold."""
        with self._lock:
            files = self.buckets[bucket]
            there = files[key].version if key in files else 0
            if condition is not None and int(condition) != there and not self.ignores_conditions:
                return None
            self._versions += 1
            files[key] = StoredVersion(content, self._versions)
            return files[key]


def is_signed(given: str) -> bool:
    """Whether a token is one that the service account signed."""
    try:
        signed, _, signature = given.removeprefix("Bearer ").rpartition(".")
        _private().public_key().verify(_bytes(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        claims = json.loads(_bytes(signed.partition(".")[2]))
    except (InvalidSignature, ValueError):
        return False
    return bool(claims["iss"] == claims["sub"] == EMAIL and claims["exp"] - claims["iat"] <= 3600)


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cloud: Cloud

    def do_GET(self) -> None:
        bucket, key, asked = self._asked()
        files = self.cloud.buckets.get(bucket)
        if files is None:
            self._say(404, b"<Error><Code>NoSuchBucket</Code></Error>")
        elif not key:
            self._say(200, self._listed(files, asked))
        elif key not in files:
            self._say(404, b"<Error><Code>NoSuchKey</Code></Error>")
        elif self.headers.get("If-Match", files[key].tag) != files[key].tag:
            self._say(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        else:
            self._say_file(files[key])

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        bucket, key, asked = self._asked()
        content = self._body()
        if not self._may_write():
            return
        if "uploadId" in asked:
            self.cloud.parts[asked["uploadId"]][int(asked["partNumber"])] = content
            self._say(200, b"", ETag=f'"{asked["partNumber"]}"')
            return
        done = self.cloud.write(bucket, key, content, self.headers.get("x-goog-if-generation-match"))
        if done is None:
            self._say(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        else:
            self._say(200, b"", ETag=done.tag, x_goog_generation=str(done.version))

    def do_POST(self) -> None:
        """In parts: the library sends what comes from an iterator so."""
        bucket, key, asked = self._asked()
        self._body()
        if not self._may_write():
            return
        if "uploads" in asked:
            name = secrets.token_hex(8)
            self.cloud.parts[name] = {}
            told = f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>"
            self._say(200, told.encode())
            return
        parts = self.cloud.parts.pop(asked["uploadId"])
        done = self.cloud.write(bucket, key, b"".join(parts[each] for each in sorted(parts)), None)
        assert done is not None
        told = f"<CompleteMultipartUploadResult><ETag>{escape(done.tag)}</ETag></CompleteMultipartUploadResult>"
        self._say(200, told.encode(), x_goog_generation=str(done.version))

    def do_DELETE(self) -> None:
        bucket, key, _ = self._asked()
        if self._may_write():
            there = self.cloud.buckets[bucket].pop(key, None) is not None
            self._say(204 if there else 404, b"")

    def _asked(self) -> tuple[str, str, dict[str, str]]:
        parts = urllib.parse.urlsplit(self.path)
        bucket, _, key = urllib.parse.unquote(parts.path).lstrip("/").partition("/")
        return bucket, key, dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _may_write(self) -> bool:
        may = is_signed(self.headers.get("Authorization", ""))
        if not may:
            self._say(403, b"<Error><Code>AccessDenied</Code></Error>")
        return may

    def _listed(self, files: dict[str, StoredVersion], asked: dict[str, str]) -> bytes:
        after = max(asked.get("start-after", ""), asked.get("continuation-token", ""))
        keys = [key for key in sorted(files) if key.startswith(asked.get("prefix", "")) and key > after]
        page = keys[: self.cloud.page]
        each = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(files[key].content)}</Size><ETag>{escape(files[key].tag)}</ETag>"
            f"<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
            for key in page
        )
        more = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if len(page) < len(keys) else ""
        return f"<ListBucketResult>{each}{more}</ListBucketResult>".encode()

    def _say_file(self, file: StoredVersion) -> None:
        told = {"ETag": file.tag, "x_goog_generation": str(file.version)}
        told["Last_Modified"] = "Mon, 01 Jan 2024 00:00:00 GMT"
        start, _, end = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
        if not start:
            self._say(200, file.content, **told)
            return
        part = file.content[int(start) : int(end) + 1 if end else None]
        told["Content_Range"] = f"bytes {start}-{int(start) + len(part) - 1}/{len(file.content)}"
        self._say(206, part, **told)

    def _say(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def google_served() -> Iterator[Cloud]:
    cloud = Cloud()
    with serving(HttpServer(type("Handler", (Answers,), {"cloud": cloud}))) as server:
        cloud.address = server.url
        yield cloud
