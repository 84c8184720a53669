"""Objects of Azure, at Microsoft's own emulator, and of Google, at a server of ours, as sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio

from chain import instant
from chain.errors import Invalid, NotFound, Refused
from chain.model.events import SourceState
from chain.model.fetch_options import BucketAccess, fetch_options
from chain.model.source import FetchFilesGlob
from odfd.ingest.bucket_objects import decode
from odfd.ingest.consumed_files import ConsumedFiles
from odfd.ingest.fetch.bucket import place_of
from odfd.ingest.fetch.dispatch import fetch
from odfd.ingest.fetch.source import Fetched, FetchJob, Unchanged
from odfd.ingest.settings import IngestSettings
from odfd.repositories.bucket import Bucket, open_bucket
from odfd.repositories.manifest import place_of as repository_at
from odfd.runtime.buckets import address_of, open_store
from worlds.azurite import ACCOUNT, KEY, azurite_served, new_container
from worlds.google import google_served, is_signed, service_account
from worlds.sources import examples, source

pytestmark = pytest.mark.slow  # servers are started
NOW = instant.parse("2050-01-01T12:00:00Z")
EXAMPLES = {store: next(each for each in examples("FilesGlob") if f"{store}://" in each) for store in ("gs", "az")}


class Cloud(NamedTuple):
    store: str
    url: str
    owner: Bucket
    access: BucketAccess
    variables: dict[str, str]

    def fetch(self, folder: Path, pattern: str, state: SourceState | None = None, **more: Any) -> Any:
        (place := folder / str(len(list(folder.iterdir())))).mkdir()
        settings = IngestSettings(staging=place, variables=more.pop("variables", self.variables))
        access, taken = more.pop("access", self.access), more.pop("taken", None)
        job = FetchJob(state=state, now=NOW, folder=place, settings=settings, options=access, taken=taken)
        return trio.run(fetch, FetchFilesGlob(path=more.pop("path", f"{self.url}/{pattern}"), **more), job)


@pytest.fixture(scope="module")
def azurite() -> Iterator[Callable[..., str]]:
    with azurite_served() as address:
        yield partial(new_container, address)


@pytest.fixture(scope="module")
def google() -> Iterator[Callable[[str], str]]:
    with google_served() as cloud:
        cloud.page = 2
        yield cloud.new_bucket


@pytest.fixture(params=["az", "gs"])
def cloud(request: pytest.FixtureRequest) -> Cloud:
    of = {"az": ("azurite", "accountKey", KEY), "gs": ("google", "serviceAccountKey", service_account())}
    made_by, name, key = of[request.param]
    field = {"az": "account_key", "gs": "service_account_key"}[request.param]
    url = request.getfixturevalue(made_by)(f"b{abs(hash(request.node.name)) % 10**12}")
    owner = open_bucket("owner", repository_at(url), {name: key})
    return Cloud(request.param, url, owner, BucketAccess(**{field: "${{ env.KEY }}"}), {"KEY": key})


def test_objects_come_in_the_order_of_their_keys_and_go_on_behind_the_last(cloud: Cloud, tmp_path: Path) -> None:
    for key in ("d/b.csv", "d/a.csv", "d/é ü.csv", "d/sub/c.csv", "d/x.json", "e/a.csv"):
        cloud.owner.put(key, f"1,{key}\n".encode())
    names: list[str] = []
    found: Any = cloud.fetch(tmp_path, "d/*.csv")
    while isinstance(found, Fetched):
        assert found.path.read_text() == f"1,{found.name}\n"
        names.append(found.name)
        found = cloud.fetch(tmp_path, "d/*.csv", found.state)
    assert (names, found) == (["d/a.csv", "d/b.csv", "d/é ü.csv"], Unchanged())


def test_late_objects_are_told(cloud: Cloud, tmp_path: Path) -> None:
    cloud.owner.put("d/b.csv", b"1,b\n")
    last = cloud.fetch(tmp_path, "d/*")
    cloud.owner.put("d/a.csv", b"1,a\n")
    taken, position = ConsumedFiles(), decode(last.state.value)
    taken.add(position.key, instant.parse("2020-01-01T00:00:00Z"), position.tag)
    found = cloud.fetch(tmp_path, "d/*", last.state, taken=taken)
    assert [each.name for each in found.skipped] == ["d/a.csv"]


def test_what_is_not_there_is_told_by_what_it_is(cloud: Cloud, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no object matches"):
        cloud.fetch(tmp_path, "d/*.csv")
    with pytest.raises(NotFound, match="no such bucket"):
        cloud.fetch(tmp_path, "", path=f"{cloud.url}-gone/d/*.csv")


def test_without_keys_what_is_public_is_read_and_nothing_is_written(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables that these libraries read elsewhere open nothing here, nor lead elsewhere."""
    cloud.owner.put("d/b.csv", b"1,b\n")
    for name, value in {
        "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        "AZURE_STORAGE_USE_EMULATOR": "true",
        "AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:9",
        "GOOGLE_BEARER_TOKEN": "of-the-daemon",
        "GOOGLE_SERVICE_ACCOUNT_KEY": service_account(),
        "GOOGLE_BASE_URL": "http://127.0.0.1:9",
    }.items():
        monkeypatch.setenv(name, value)
    assert cloud.fetch(tmp_path, "d/*.csv", access=None).name == "d/b.csv"
    with pytest.raises(Refused, match="refuses this node: 403 A"):
        open_bucket("stranger", repository_at(cloud.url), {}).put("d/c.csv", b"")
    cloud.owner.put("d/c.csv", b"1,c\n")


def test_a_wrong_key_is_told_and_not_shown(tmp_path: Path, azurite: Callable[..., str]) -> None:
    access = BucketAccess(account_key="${{ env.KEY }}")
    at = Cloud("az", azurite("wrong-key", is_public=False), None, access, {"KEY": "d3JvbmdrZXk="})  # type: ignore[arg-type]  # not asked
    with pytest.raises(Refused, match="refuses this node: 403 Auth") as caught:
        at.fetch(tmp_path, "*.csv")
    assert "d3Jv" not in f"{caught.value!r} {caught.value.hint}"
    for key, text in (("account_key", "no:base64"), ("service_account_key", '{"client_email": "s3cr3t"}')):
        url = at.url if key == "account_key" else "gs://bucket"
        with pytest.raises(Invalid, match="is no key") as refused:
            at.fetch(
                tmp_path,
                "",
                path=f"{url}/*.csv",
                access=BucketAccess(**{key: "${{ env.KEY }}"}),
                variables={"KEY": text},
            )
        assert text not in f"{refused.value!r} {refused.value.hint}"


def test_a_token_of_google_is_made_here() -> None:
    store: Any = open_store(address_of("gs://bucket"), {"serviceAccountKey": service_account()})
    given = store.credential_provider()
    assert is_signed(f"Bearer {given['token']}")
    assert not is_signed(f"Bearer {given['token'][:-4]}")


def test_a_variable_that_keeps_all_buckets_shut_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", "/nowhere")
    with pytest.raises(Exception, match="GOOGLE_SERVICE_ACCOUNT of the daemon's environment"):
        open_store(address_of("gs://bucket"), {})


def test_a_store_of_google_that_ignores_conditions_is_refused() -> None:
    with google_served() as cloud:
        cloud.ignores_conditions = True
        at = open_bucket("odd", repository_at(cloud.new_bucket("odd")), {"serviceAccountKey": service_account()})
        with pytest.raises(Refused, match="ignores conditions of writes"):
            at.check_conditions()


@pytest.mark.parametrize("store", ["az", "gs"])
def test_the_examples_of_the_page_are_fetched(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    event = source(EXAMPLES[store])
    assert isinstance(event.fetch, FetchFilesGlob)
    access, place = fetch_options(event.read.schema), place_of(event.fetch.path, None)
    key = {"az": KEY, "gs": service_account()}[store]
    name = {"az": "accountKey", "gs": "serviceAccountKey"}[store]
    url = request.getfixturevalue({"az": "azurite", "gs": "google"}[store])("measurements")
    owner = open_bucket("owner", repository_at(url), {name: key})
    owner.put("daily/a.csv", b"at,station,celsius\n2024-01-01T00:00:00Z,x,1.5\n")
    assert isinstance(access, BucketAccess)
    settings = IngestSettings(staging=tmp_path, variables={"KEY": key})
    job = FetchJob(state=None, now=NOW, folder=tmp_path, settings=settings, options=access)
    step = FetchFilesGlob(path=f"{url}/{place.below}", order=event.fetch.order)
    assert isinstance(trio.run(fetch, step, job), Fetched)


def test_addresses_are_those_of_the_clouds() -> None:
    assert address_of("gs://my_bucket/a/*.csv").endpoint == "https://storage.googleapis.com"
    found = address_of("az://acc0unt/container/a/*.csv")
    assert (found.endpoint, found.bucket, found.below) == (
        "https://acc0unt.blob.core.windows.net",
        "container",
        "a/*.csv",
    )
    found = address_of(f"az+http://127.0.0.1:10000/{ACCOUNT}/container/a")
    assert (found.endpoint, found.account) == (f"http://127.0.0.1:10000/{ACCOUNT}", ACCOUNT)
