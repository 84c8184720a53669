"""Fetches ``Url`` and ``FilesGlob`` sources of ``sftp://``: one file when it changed, or files that appear, one by one.

A separate process reads from the server, at addresses that were checked here, and verifies the host key that the source
names.
"""

from __future__ import annotations

from chain.errors import Invalid, Refused
from chain.model.fetch_options import SftpAccess
from chain.model.source import FetchFilesGlob, FetchUrl, FromPath
from odfd.ingest.clients.remote_files import PROGRAM, SFTP, Pattern, SftpJob, SftpResult
from odfd.ingest.fetch.fetch_process import TimeLimit, ask
from odfd.ingest.fetch.files import DEFAULT_FORMAT, check_time
from odfd.ingest.fetch.remote_files import outcome_of, pattern_of, reach
from odfd.ingest.fetch.source import ETAG, FetchJob, FetchOutcome, Source, Unchanged, url_of
from odfd.ingest.settings import IngestSettings
from odfd.ingest.templates import (
    TEMPLATE,
    FilledTemplate,
    check_secret,
    check_text,
    check_url_password,
    fill,
    filled_url,
)
from odfd.runtime.extensions import check_client
from odfd.runtime.sftp_address import SftpAddress, is_host_key, sftp_address


class SftpSource(Source[FetchUrl | FetchFilesGlob, SftpAccess]):
    """A file of an SFTP server, or those of a pattern."""

    options_type = SftpAccess

    @property
    def is_asked_anew(self) -> bool:
        return isinstance(self.step, FetchUrl)

    async def fetch(self, job: FetchJob) -> FetchOutcome:
        """Fetches a file, or the next one of a pattern. Raises NotFound, Remote, Refused, Invalid, Environment."""
        self.check(job.settings)
        if isinstance(self.step, FetchUrl) and self.step.cache is not None and job.state is not None:
            return Unchanged()
        url = filled_url(url_of(self.step), job.settings.variables)
        place = _place(url.reveal(), str(url), is_pattern=isinstance(self.step, FetchFilesGlob))
        pattern = pattern_of(self.step, job)
        request = await _request(place, self.options, job, url, pattern)
        time = TimeLimit(job.settings.patience.total, "have it served in smaller files")
        done = await ask(PROGRAM, request, SftpResult, str(url), time)
        return outcome_of(self.step, done, job, str(url), pattern)

    def check(self, settings: IngestSettings) -> None:
        """Checks a step before a fetch. Raises Invalid, Refused if the host key or the client library is missing."""
        text = url_of(self.step)
        check_url_password(text)
        _place(TEMPLATE.sub("x", text), text, is_pattern=isinstance(self.step, FetchFilesGlob))
        settings.check_variables(text)
        if self.options.host_key is None or not is_host_key(self.options.host_key):
            check_text(self.options.host_key or "", "hostKey")
            raise Refused(
                f"{text}: the key of the server is not known"
                if not self.options.host_key
                else "hostKey is no public key",
                rule="sftp-host-key",
                hint="write hostKey: ssh-ed25519 AAAA…, as its owner published it, or as ssh-keyscan HOST shows it",
            )
        if self.options.private_key is not None:
            check_secret(self.options.private_key, "a private key")
            settings.check_variables(self.options.private_key)
        if isinstance(self.step, FetchUrl) and self.step.headers:
            raise Invalid("headers have no meaning for sftp", rule=SFTP, hint="leave them out")
        if isinstance(self.step.event_time, FromPath):
            check_time(self.step.event_time.pattern, self.step.event_time.timestamp_format or DEFAULT_FORMAT)
        check_client("asyncssh", "sources of kind sftp need", "sftp")


async def _request(
    place: SftpAddress, access: SftpAccess, job: FetchJob, url: FilledTemplate, pattern: Pattern | None
) -> SftpJob:
    key = access.private_key
    patience = job.settings.patience
    return SftpJob(
        addresses=await reach(place.host, place.port, job, str(url), SFTP),
        port=place.port,
        host_key=access.host_key or "",
        user=place.user,
        password=place.password,
        private_key=None if key is None else fill(key, job.settings.variables).reveal(),
        path=place.path,
        known=job.value_of(ETAG),
        pattern=pattern,
        connect=patience.connect,
        silence=patience.silence,
        reserve=job.settings.disk_reserve,
        target=str(job.folder / "download"),
        limit=job.settings.max_source_bytes,
    )


def _place(url: str, shown: str, *, is_pattern: bool) -> SftpAddress:
    """Parses a URL or a pattern. Raises Invalid."""
    try:
        return sftp_address(url, is_pattern=is_pattern)
    except Invalid as fault:
        hint = "write sftp://USER:${{ env.NAME }}@HOST/PATH; /~/ begins where the user arrives"
        raise Invalid(f"cannot fetch {shown}: {fault.message}", rule=fault.rule, hint=hint) from None
