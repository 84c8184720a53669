"""Finds the kind of a source by its fetch step and options: one of the format's here, any other by an entry point.

A package adds a kind by an entry point of the group ``odfd.sources``, which names a subclass of ``Source``; odfd's own
kinds that ODF does not have do the same. Its module is imported when a source of the kind is met.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
import trio

from chain.errors import Invalid
from chain.model.events import SetPollingSource
from chain.model.fetch_options import BUCKET, KINDS, RULE, SFTP, FetchOptions, Plugin, fetch_options
from chain.model.source import FetchFilesGlob, FetchStep, FetchUrl
from odfd.ingest.fetch.container import ContainerSource
from odfd.ingest.fetch.evm import EthereumSource
from odfd.ingest.fetch.files import FilesSource
from odfd.ingest.fetch.ftp import FtpSource
from odfd.ingest.fetch.http_pages import HttpSource
from odfd.ingest.fetch.mqtt import MqttSource
from odfd.ingest.fetch.source import AnySource, FetchJob, FetchOutcome, tag_of, url_of, web_step
from odfd.ingest.fetch.url import UrlSource
from odfd.ingest.settings import IngestSettings
from odfd.runtime.extensions import SOURCES, load_extension

_FTP: Final = "Ftp"
_ROWS: Final[Mapping[str, type[AnySource]]] = {
    "Url": UrlSource,
    "FilesGlob": FilesSource,
    "Container": ContainerSource,
    "Mqtt": MqttSource,
    "EthereumLogs": EthereumSource,
    "Http": HttpSource,
    _FTP: FtpSource,
}
_BUCKETS: Final = [f"{store}{form}" for store in ("s3", "gs", "az") for form in ("", "+http", "+https")]
_SCHEMES: Final[Mapping[type[FetchUrl | FetchFilesGlob], Mapping[str, str]]] = {
    FetchUrl: {"sftp": SFTP},
    FetchFilesGlob: {"sftp": SFTP, "ftp": _FTP, "ftps": _FTP, **dict.fromkeys(_BUCKETS, BUCKET)},
}
"""Kinds that have no name in manifests: a step of the format stands for them, with a URL of a scheme."""


def source_of(step: FetchStep, options: FetchOptions | None) -> AnySource:
    """Returns the source of a step and its options.

    Raises Refused for a kind that is not installed, Invalid for options that its kind does not have. Blocking.
    """
    if isinstance(step, FetchUrl) and isinstance(options, Plugin):
        return _plugin_source(step, options)
    kind = _kind(step, options)
    row = _ROWS.get(kind) or _load(kind)
    if options is None:
        return row(step, None if row.options_type is None else row.options_type())
    if row.options_type is None or not isinstance(options, row.options_type):
        raise row.misfit(step, options)
    return row(step, options)


def polled_source(polled: SetPollingSource) -> AnySource:
    """Returns the source that a dataset polls. Raises as ``source_of``."""
    return source_of(polled.fetch, fetch_options(polled.read.schema))


async def fetch(step: FetchStep, job: FetchJob) -> FetchOutcome:
    """Fetches by the kind of the step. Raises as ``source_of``, and the faults of that kind."""
    source = await trio.to_thread.run_sync(source_of, step, job.options)
    return await source.fetch(job)


def check_fetch(step: FetchStep, settings: IngestSettings, options: FetchOptions | None = None) -> None:
    """Checks a step before a fetch. Raises Refused, Invalid. Blocking."""
    source_of(step, options).check(settings)


def address_of(step: FetchStep) -> str:
    """Returns the place that rows of a step are from, for people, whatever kinds are installed."""
    return _ROWS[tag_of(step)](step, None).address


def _kind(step: FetchStep, options: FetchOptions | None) -> str:
    if not isinstance(step, FetchUrl | FetchFilesGlob):
        return tag_of(step)
    if isinstance(step, FetchUrl) and options is not None and tag_of(options) in KINDS:
        return tag_of(options)
    scheme, mark, _ = url_of(step).partition("://")
    return _SCHEMES[type(step)].get(scheme if mark else "", tag_of(step))


def _plugin_source(step: FetchUrl, plugin: Plugin) -> AnySource:
    """Returns a source of another package's kind. Raises Refused, Invalid."""
    row = _load(plugin.source)
    try:
        options = None if row.options_type is None else msgspec.convert(plugin.options, row.options_type)
    except msgspec.ValidationError as error:
        raise Invalid(f"options of {plugin.source}: {error}", rule=RULE, hint="see what its package says") from error
    if row.options_type is None and plugin.options:
        raise Invalid(f"sources of kind {plugin.source} have no options", rule=RULE, hint="leave them out")
    return row(web_step(step), options)


def _load(kind: str) -> type[AnySource]:
    """Raises Refused for a kind that is not installed."""
    row: type[AnySource] = load_extension(SOURCES, kind, f"sources of kind {kind}", "source-kind")
    return row
