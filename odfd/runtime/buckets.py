"""Opens buckets of S3, of servers that speak its protocol, of Google and of Azure, by obstore.

Of an error only its kind is told: texts of the library quote answers of servers, URLs and what was signed. Where a
store is asked, its caller says how long. Nothing that opens a bucket comes from the daemon's environment: what is not
given as a whole would be completed from there, or by the machine's own role.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from chain.errors import Environment, Invalid
from odfd.runtime.extensions import check_client

if TYPE_CHECKING:
    from obstore.store import AzureCredential, AzureStore, GCSCredential, GCSStore, S3Credential, S3Store

Store: TypeAlias = Literal["s3", "gs", "az"]
KEYS: Final = ("accessKeyId", "secretAccessKey", "sessionToken")
"""Names of the credentials of S3; the last is optional."""
SERVICE_ACCOUNT: Final = "serviceAccountKey"
ACCOUNT_KEY: Final = "accountKey"
SAS_TOKEN: Final = "sasToken"  # noqa: S105  the name of a secret
CREDENTIALS: Final[Mapping[Store, tuple[str, ...]]] = {
    "s3": KEYS,
    "gs": (SERVICE_ACCOUNT,),
    "az": (ACCOUNT_KEY, SAS_TOKEN),
}
"""Names of all credentials of a kind of store."""
WAYS: Final[Mapping[Store, tuple[tuple[str, ...], ...]]] = {
    "s3": (KEYS[:2],),
    "gs": ((SERVICE_ACCOUNT,),),
    "az": ((ACCOUNT_KEY,), (SAS_TOKEN,)),
}
"""Credentials one of whose groups is needed where any is given."""
REGION: Final = "us-east-1"
RULE: Final = "bucket-address"
CHUNK: Final = 1 << 20
RETRIES: Final = 4
RETRY_SECONDS: Final = 60.0
CONNECT_SECONDS: Final = 10.0
REQUEST_SECONDS: Final = 300.0
TOKEN_LIFE: Final = dt.timedelta(minutes=55)
"""Of a token of Google that is made here; an hour is the most that is taken."""
_SCHEME: Final = re.compile(r"(s3|gs|az)(?:\+(https?))?://(.*)\Z", re.DOTALL)
_BUCKET: Final = {
    "s3": re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z"),
    "gs": re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]\Z"),
    "az": re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]\Z"),
}
_MARKS: Final = {"s3": ", - and .", "gs": ", -, _ and .", "az": " and -"}
_ACCOUNT: Final = re.compile(r"[a-z0-9]{3,24}\Z")
_HOST: Final = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?\Z")
_REGION: Final = re.compile(r"[a-z0-9-]{1,40}\Z")
_CODE: Final = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
_STATUS: Final = re.compile(r"status code: (\d{3})\b")
_GOOGLE: Final = "https://www.googleapis.com/auth/devstorage.read_write"


class BucketAddress(NamedTuple):
    """The place of a bucket, and what is named below it."""

    store: Store
    bucket: str
    endpoint: str
    """Where it is asked. Of Azure with the account where the host has not its name."""
    below: str
    """A folder or a pattern of keys; ``""``: all."""
    account: str = ""
    """Of Azure."""
    region: str = ""
    """Of S3."""
    by_host: bool = False
    """The endpoint is the bucket's own, as Amazon's are."""


def is_bucket(url: str) -> bool:
    """Whether a URL has the scheme of a bucket."""
    return _SCHEME.match(url) is not None


def store_of(url: str) -> Store | None:
    """Returns the kind of store by the scheme of a URL."""
    found = _SCHEME.match(url)
    return None if found is None else found[1]  # type: ignore[return-value]  # as the expression has them


def address_of(url: str, region: str | None = None) -> BucketAddress:
    """Parses ``s3://BUCKET/…``, ``gs://BUCKET/…``, ``az://ACCOUNT/CONTAINER/…``, each with ``+https://HOST/`` too.

    Raises Invalid, whose message says only why.
    """
    found = _SCHEME.match(url)
    if found is None:
        raise Invalid("it names no bucket", rule=RULE)
    store: Store = found[1]  # type: ignore[assignment]  # as the expression has them
    web, rest = found[2], found[3]
    if region is not None and store != "s3":
        raise Invalid("a region is of S3", rule=RULE)
    if not _REGION.match(region or REGION):
        raise Invalid("its region is none", rule=RULE)
    host, _, rest = rest.partition("/") if web else ("", "", rest)
    if web and not _HOST.match(host):
        raise Invalid("it names no host", rule=RULE)
    account, _, rest = rest.partition("/") if store == "az" else ("", "", rest)
    if store == "az" and not _ACCOUNT.match(account):
        raise Invalid("it names no account: az://ACCOUNT/CONTAINER", rule=RULE)
    bucket, _, below = rest.partition("/")
    if not _BUCKET[store].match(bucket):
        what = "container" if store == "az" else "bucket"
        raise Invalid(f"it names no {what}: its name is of lower-case letters, digits{_MARKS[store]}", rule=RULE)
    region = (region or REGION) if store == "s3" else ""
    if web:
        endpoint = f"{web}://{host}" + (f"/{account}" if account else "")
    else:
        own = {"s3": f"{bucket}.s3.{region}.amazonaws.com", "gs": "storage.googleapis.com"}
        endpoint = f"https://{own.get(store, f'{account}.blob.core.windows.net')}"
    return BucketAddress(store, bucket, endpoint, below, account, region, store == "s3" and not web)


def open_store(
    at: BucketAddress, credentials: Mapping[str, str], *, prefix: str = ""
) -> S3Store | GCSStore | AzureStore:
    """Opens a bucket. Without credentials requests are unsigned. Raises Invalid for credentials that are none.

    Raises Environment where variables of the library's own, which are not asked for, keep it from opening any; Refused
    without the library.
    """
    check_client("obstore", "buckets need", "bucket")
    from obstore.exceptions import BaseError

    options: dict[str, Any] = {
        "prefix": prefix or None,
        "client_options": {
            "allow_http": at.endpoint.startswith("http://"),
            "connect_timeout": f"{CONNECT_SECONDS:g}s",
            "timeout": f"{REQUEST_SECONDS:g}s",
        },
        "retry_config": {"max_retries": RETRIES, "retry_timeout": dt.timedelta(seconds=RETRY_SECONDS)},
    }
    try:
        return _OPEN[at.store](at, credentials, options)
    except BaseError:
        text = "a bucket cannot be opened: variables like GOOGLE_SERVICE_ACCOUNT of the daemon's environment mislead"
        hint = "take them out of the daemon's environment: only SecretSets open buckets"
        raise Environment(text, rule="bucket-environment", hint=hint) from None


def _open_s3(at: BucketAddress, credentials: Mapping[str, str], options: Mapping[str, Any]) -> S3Store:
    from obstore.store import S3Store

    key, secret, token = (credentials.get(each) for each in KEYS)

    def provide() -> S3Credential:
        """Given as a whole: of what is given in parts, the missing ones come from the environment."""
        return {"access_key_id": key or "", "secret_access_key": secret or "", "token": token, "expires_at": None}

    return S3Store(
        at.bucket,
        endpoint=at.endpoint,
        region=at.region,
        virtual_hosted_style_request=at.by_host,
        skip_signature=not credentials,
        credential_provider=provide if credentials else None,
        **options,
    )


def _open_google(at: BucketAddress, credentials: Mapping[str, str], options: Mapping[str, Any]) -> GCSStore:
    """The provider is given in any case: without one, the library asks the machine's own role before a write."""
    from obstore.store import GCSStore

    return GCSStore(
        at.bucket,
        base_url=at.endpoint,
        skip_signature=not credentials,
        credential_provider=_google_token(credentials[SERVICE_ACCOUNT]) if credentials else _nobody,
        **options,
    )


def _nobody() -> GCSCredential:
    return {"token": "", "expires_at": None}


def _google_token(key: str) -> Callable[[], GCSCredential]:
    """Makes tokens by the key of a service account, signed here: no server is asked for one."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        said = json.loads(key)
        email, name = str(said["client_email"]), str(said.get("private_key_id", ""))
        private = load_pem_private_key(said["private_key"].encode(), None)
        if not isinstance(private, rsa.RSAPrivateKey):
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError, UnsupportedAlgorithm):
        raise Invalid(
            f"{SERVICE_ACCOUNT} is no key of a service account",
            rule="bucket-credentials",
            hint="its value is the whole JSON file that Google makes, with client_email and private_key",
        ) from None

    def provide() -> GCSCredential:
        now = dt.datetime.now(dt.UTC)
        until = now + TOKEN_LIFE
        times = {"iat": int(now.timestamp()), "exp": int(until.timestamp())}
        claims = {"iss": email, "sub": email, "scope": _GOOGLE, **times}
        header = {"alg": "RS256", "typ": "JWT", **({"kid": name} if name else {})}
        signed = b".".join(map(_plain, (header, claims)))
        signature = private.sign(signed, padding.PKCS1v15(), hashes.SHA256())
        return {"token": (signed + b"." + _base64(signature)).decode(), "expires_at": until}

    return provide


def _plain(part: object) -> bytes:
    return _base64(json.dumps(part, separators=(",", ":")).encode())


def _base64(part: bytes) -> bytes:
    return base64.urlsafe_b64encode(part).rstrip(b"=")


def _open_azure(at: BucketAddress, credentials: Mapping[str, str], options: Mapping[str, Any]) -> AzureStore:
    from obstore.store import AzureStore

    key, shared = credentials.get(ACCOUNT_KEY, ""), credentials.get(SAS_TOKEN, "").removeprefix("?")
    try:
        base64.b64decode(key, validate=True)
    except (binascii.Error, ValueError):
        hint = "it is a text in Base64, as the portal of Azure shows it"
        raise Invalid(f"{ACCOUNT_KEY} is no key", rule="bucket-credentials", hint=hint) from None

    def provide() -> AzureCredential:
        if key:
            return {"access_key": key, "expires_at": None}
        return {"sas_token": shared, "expires_at": None}

    return AzureStore(
        at.bucket,
        account_name=at.account,
        endpoint=at.endpoint,
        # Said, since the library would otherwise take it from a variable of the daemon's environment, and ask another
        # host.
        use_emulator=False,
        skip_signature=not credentials,
        credential_provider=provide if credentials else None,
        **options,
    )


_OPEN: Final[
    Mapping[Store, Callable[[BucketAddress, Mapping[str, str], Mapping[str, Any]], S3Store | GCSStore | AzureStore]]
] = {"s3": _open_s3, "gs": _open_google, "az": _open_azure}


def kind_of(error: Exception) -> str:
    """Returns the kind of an answer, and nothing of its text."""
    text = str(error)
    found = [match[1] for match in (_STATUS.search(text), _CODE.search(text)) if match is not None]
    return " ".join(found) or "no answer"


def is_no_bucket(error: Exception) -> bool:
    """Whether a store answered that it has no such bucket."""
    return any(each in str(error) for each in ("NoSuchBucket", "ContainerNotFound"))
