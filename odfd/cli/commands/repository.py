"""``repo``, ``push``: manage named repositories of many datasets, and push datasets to them."""

from __future__ import annotations

import argparse
from pathlib import Path

from odfd.cli import formatting, kinds
from odfd.cli.command import Commands, argument
from odfd.cli.commands.apply import apply_texts, manifest_text
from odfd.cli.kinds import OR_PATTERN, datasets_meant
from odfd.cli.progress import submit
from odfd.cli.session import Session
from odfd.cli.table import WHOLE, TableColumn, render
from odfd.control import calls, wire
from odfd.errors import ExitCode, Usage
from odfd.resources import registry

commands = Commands()
repo = commands.group(
    "repo",
    description="A repository is a folder here, in a bucket, on a web server, an SFTP server or IPFS. It has many "
    "datasets in the ODF layout, each in a folder of its name. odfctl push NAME --to REPO writes to it, "
    "odfctl pull REPO/NAME reads from it.",
    example="add archive file:///srv/odf",
)


@repo.add(
    "add",
    argument("name", metavar="NAME"),
    argument(
        "url",
        metavar="URL|DIR",
        help="file://…, https://…, s3://BUCKET/FOLDER, gs://BUCKET/FOLDER, az://ACCOUNT/CONTAINER/FOLDER, "
        "s3+https://HOST/BUCKET/FOLDER, sftp://USER@HOST/FOLDER, ipns://NAME or ipfs://CID",
    ),
    argument(
        "--credentials",
        metavar="SECRETSET",
        help="the SecretSet with the keys of a bucket, which is asked unsigned without it; or of a user of SFTP",
    ),
    argument("--region", metavar="REGION", help="region of a bucket of S3 (us-east-1)"),
    argument("--host-key", metavar="KEY", help="public key of an SFTP server, as ssh-keyscan shows it"),
    help="give a repository a name on this node",
    description="Give a repository a name on this node. It is a resource: odfctl apply takes a manifest of one too.",
    example="archive file:///srv/odf",
)
def _add(session: Session, args: argparse.Namespace) -> int:
    url = args.url if "://" in args.url else Path(args.url).expanduser().resolve().as_uri()
    said = {"url": url, "credentials": args.credentials, "region": args.region, "hostKey": args.host_key}
    spec = {key: value for key, value in said.items() if value is not None}
    manifest = {"$schema": "Repository", "headers": {"name": args.name}, "spec": spec}
    return apply_texts(session, (manifest_text(session, "repo add", manifest),))


@repo.add("list", help="list repositories")
def _list(session: Session, _: argparse.Namespace) -> None:
    kinds.REPOSITORY.show_all(session, kinds.REPOSITORY.all(session), "no repository yet: odfctl repo add NAME URL")


@repo.add(
    "remove",
    argument("name", metavar="NAME"),
    help="forget a repository; its content stays",
    description="Forget a repository. Its content stays, and so do the datasets that were pulled from it.",
    example="archive",
)
def _remove(session: Session, args: argparse.Namespace) -> None:
    gone = session.client.do(calls.resources_delete(registry.REPOSITORY, args.name))
    session.answer(gone, lambda row: f"{row.name} is no longer known; the data at {row.spec['url']} stays")


@commands.add(
    "push",
    argument("refs", nargs="*", metavar="NAME", help=OR_PATTERN),
    argument("--all", action="store_true", help="all published datasets"),
    argument(
        "--to", metavar="REPO[/NAME]", help="the repository, or REPO/NAME; not needed if there is only one repository"
    ),
    argument(
        "--private",
        action="store_true",
        help="also unpublished datasets: every reader of the repository can then read them",
    ),
    description="Push datasets to a repository: first new objects, then blocks, then the head, which is replaced only "
    "if no other push replaced it meanwhile. An interrupted push resumes where it stopped.",
    epilog="example:  odfctl push nyc.flights --to archive\n\n"
    "exit code 4: a dataset is private, or the repository is not written",
)
def _push(session: Session, args: argparse.Namespace) -> int:
    if bool(args.refs) == args.all:
        raise Usage("say what to push: names of datasets, or --all", hint="odfctl push NAME --to REPOSITORY")
    request = wire.PushRequest(refs=datasets_meant(session, args.refs), all=args.all, to=args.to, private=args.private)
    done = submit(session, calls.pushing_push(request), wire.PushResult)
    session.answer(done, lambda done: render(_COLUMNS, done.items))
    code = ExitCode.OK
    for item in done.value.items:
        if item.fault is not None:
            code = max(code, session.failure(item.ref, item.fault.fault()))
    if any(item.outcome == "private" for item in done.value.items):
        session.remark("what is private was not pushed: odfctl publish NAME, or --private")
    return code


_COLUMNS: tuple[TableColumn[wire.PushItem], ...] = (
    TableColumn("NAME", lambda item: item.ref),
    TableColumn("DONE", lambda item: item.outcome),
    TableColumn("BLOCKS", lambda item: f"+{item.blocks:,}" if item.blocks else formatting.NOTHING, right=True),
    TableColumn("OBJECTS", lambda item: f"+{item.objects:,}" if item.objects else formatting.NOTHING, right=True),
    TableColumn("BYTES", lambda item: formatting.size(item.bytes) if item.bytes else formatting.NOTHING, right=True),
    TableColumn("HEAD", lambda item: formatting.digest(item.head)),
    TableColumn("TO", lambda item: item.place, most=WHOLE),
)
