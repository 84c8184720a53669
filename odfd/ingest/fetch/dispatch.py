"""Chooses the fetcher for a source's kind, to fetch from it or to check its step before a fetch."""

from __future__ import annotations

import trio

from chain.errors import Invalid
from chain.model.fetch_options import (
    RULE,
    BucketAccess,
    ContainerAccess,
    FetchOptions,
    HttpRequest,
    KafkaTopic,
    ServerEvents,
    SftpAccess,
    SqlQuery,
)
from chain.model.source import FetchContainer, FetchEthereumLogs, FetchFilesGlob, FetchMqtt, FetchStep, FetchUrl
from odfd.ingest.fetch.base import FetchJob, FetchOutcome
from odfd.ingest.fetch.bucket import check_bucket, fetch_bucket
from odfd.ingest.fetch.container import check_container, fetch_container
from odfd.ingest.fetch.evm import check_evm, fetch_evm
from odfd.ingest.fetch.files import check_files, fetch_files
from odfd.ingest.fetch.ftp import check_ftp_files, fetch_ftp, is_ftp
from odfd.ingest.fetch.http_pages import check_http, fetch_http
from odfd.ingest.fetch.kafka import check_kafka, fetch_kafka
from odfd.ingest.fetch.mqtt import check_mqtt, fetch_mqtt
from odfd.ingest.fetch.sftp import check_sftp, fetch_sftp, is_sftp
from odfd.ingest.fetch.sql import check_sql, fetch_sql
from odfd.ingest.fetch.sse import check_sse, fetch_sse
from odfd.ingest.fetch.url import check_url, fetch_url
from odfd.ingest.settings import IngestSettings
from odfd.runtime.buckets import is_bucket


async def fetch(step: FetchStep, job: FetchJob) -> FetchOutcome:
    """Fetches with the fetcher for the kind of step. Raises the faults of that fetcher."""
    match step:
        case FetchUrl() if isinstance(job.options, SqlQuery):
            return await fetch_sql(step, job.options, job)
        case FetchUrl() if isinstance(job.options, KafkaTopic):
            return await fetch_kafka(step, job.options, job)
        case FetchUrl() if isinstance(job.options, HttpRequest):
            return await fetch_http(step, job.options, job)
        case FetchUrl() if isinstance(job.options, ServerEvents):
            return await fetch_sse(step, job.options, job)
        case FetchUrl(url=place) | FetchFilesGlob(path=place) if is_sftp(place):
            return await fetch_sftp(step, _sftp_access(job.options), job)
        case FetchFilesGlob() if is_ftp(step.path):
            return await fetch_ftp(step, job)
        case FetchFilesGlob() if is_bucket(step.path):
            return await fetch_bucket(step, _access(job.options), job)
        case FetchFilesGlob():
            return await trio.to_thread.run_sync(fetch_files, step, job)
        case FetchUrl():
            return await fetch_url(step, job)
        case FetchMqtt():
            return await fetch_mqtt(step, job)
        case FetchEthereumLogs():
            return await fetch_evm(step, job)
        case FetchContainer():
            return await fetch_container(step, _container_access(job.options), job)


def check_fetch(step: FetchStep, settings: IngestSettings, options: FetchOptions | None = None) -> None:
    """Checks a step before a fetch. Raises Refused, Invalid. Blocking."""
    match step:
        case FetchUrl() if isinstance(options, SqlQuery):
            check_sql(step, options, settings)
        case FetchUrl() if isinstance(options, KafkaTopic):
            check_kafka(step, options, settings)
        case FetchUrl() if isinstance(options, HttpRequest):
            check_http(step, options, settings)
        case FetchUrl() if isinstance(options, ServerEvents):
            check_sse(step, settings)
        case FetchUrl(url=place) | FetchFilesGlob(path=place) if is_sftp(place) and isinstance(
            options, SftpAccess | None
        ):
            check_sftp(step, _sftp_access(options), settings)
        case FetchFilesGlob() if is_bucket(step.path) and isinstance(options, BucketAccess | None):
            check_bucket(step, _access(options), settings)
        case FetchContainer() if isinstance(options, ContainerAccess | None):
            check_container(step, _container_access(options), settings)
        case FetchFilesGlob() if isinstance(options, BucketAccess):
            raise Invalid(
                f"{step.path} is no bucket, and has neither region nor keys",
                rule=RULE,
                hint="write path: s3://BUCKET/FOLDER/*.csv, or gs:// or az://, or leave them out",
            )
        case _ if options is not None:
            raise Invalid(
                f"a step of kind {step.__struct_config__.tag} has no options",
                rule=RULE,
                hint="see odfctl docs sources",
            )
        case FetchFilesGlob() if is_ftp(step.path):
            check_ftp_files(step, settings)
        case FetchFilesGlob():
            check_files(step, settings)
        case FetchUrl():
            check_url(step, settings)
        case FetchMqtt():
            check_mqtt(step, settings)
        case FetchEthereumLogs():
            check_evm(step, settings)


def _access(options: FetchOptions | None) -> BucketAccess:
    return options if isinstance(options, BucketAccess) else BucketAccess()


def _sftp_access(options: FetchOptions | None) -> SftpAccess:
    return options if isinstance(options, SftpAccess) else SftpAccess()


def _container_access(options: FetchOptions | None) -> ContainerAccess:
    return options if isinstance(options, ContainerAccess) else ContainerAccess()
