"""Opens buckets of S3 and of servers that speak its protocol, by obstore.

Of an error only its kind is told: texts of the library quote answers of servers, URLs and what was signed. Where a
store is asked, its caller says how long.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from obstore.store import S3Credential, S3Store

KEYS: Final = ("accessKeyId", "secretAccessKey", "sessionToken")
"""Names of the credentials; the last is optional."""
CHUNK: Final = 1 << 20
RETRIES: Final = 4
RETRY_SECONDS: Final = 60.0
CONNECT_SECONDS: Final = 10.0
REQUEST_SECONDS: Final = 300.0
_CODE: Final = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
_STATUS: Final = re.compile(r"status code: (\d{3})\b")


def open_store(
    bucket: str, endpoint: str, region: str, credentials: Mapping[str, str], *, prefix: str = "", by_host: bool = False
) -> S3Store:
    """Opens a bucket. Without credentials requests are unsigned; the daemon's environment is never read for any.

    ``by_host``: the endpoint is the bucket's own, as Amazon's are.
    """
    from obstore.store import S3Store

    key, secret, token = (credentials.get(each) for each in KEYS)

    def provide() -> S3Credential:
        """Given as a whole: of what is given in parts, the missing ones come from the environment."""
        return {"access_key_id": key or "", "secret_access_key": secret or "", "token": token, "expires_at": None}

    return S3Store(
        bucket,
        prefix=prefix or None,
        endpoint=endpoint,
        region=region,
        virtual_hosted_style_request=by_host,
        client_options={
            "allow_http": endpoint.startswith("http://"),
            "connect_timeout": f"{CONNECT_SECONDS:g}s",
            "timeout": f"{REQUEST_SECONDS:g}s",
        },
        retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
        skip_signature=not credentials,
        credential_provider=provide if credentials else None,
    )


def kind_of(error: Exception) -> str:
    """Returns the kind of an answer, and nothing of its text."""
    text = str(error)
    found = [match[1] for match in (_STATUS.search(text), _CODE.search(text)) if match is not None]
    return " ".join(found) or "no answer"
