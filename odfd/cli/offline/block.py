"""``block``: shows block files as manifests, hashes them, and encodes manifests as blocks."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, Final

from chain.codec.blocks import MAX_BLOCK, decode_block, encode_block
from chain.codec.manifest import block_to_builtins, parse_manifests
from chain.errors import Invalid
from chain.model.block import Block, MetadataBlock
from chain.multihash import Multihash
from chain.store.layout import DirectoryChain
from chain.yaml_text import render_yaml
from odfd.cli.command import REPLACE, Commands, argument
from odfd.cli.new_file import NewFile
from odfd.cli.offline import files
from odfd.cli.session import Session
from odfd.control import calls

_MAX_MANIFEST: Final = 4 * MAX_BLOCK
_OF_DATASET: Final = re.compile(r"(?P<ref>.+)@(?:#(?P<number>\d+)|(?P<hash>[fFzu][0-9A-Za-z_-]+))\Z", re.ASCII)

_BLOCKS: Final = "the folder blocks of a dataset holds them; odfctl data show FILE is for slices"


commands = Commands()
block = commands.group(
    "block",
    description="Blocks of metadata as files or in folders (†: no daemon needed), or of a dataset by REF@#N.",
    example="show ./flights/blocks/f1620…\nshow nyc.flights@#3 -o yaml > third.yaml\nencode third.yaml -O third.block",
)


@block.add(
    "show",
    argument(
        "block", metavar="FILE|DIR@#N|REF@#N", help="a file, - for standard input, or a block of a folder or a dataset"
    ),
    help="print a block as its manifest",
    example="nyc.flights@#3",
)
def _show(session: Session, args: argparse.Namespace) -> None:
    session.show(_detail(session, args.block), _text)


@block.add(
    "hash",
    argument(
        "block", metavar="FILE|DIR@#N|REF@#N", help="a file, - for standard input, or a block of a folder or a dataset"
    ),
    help="print the hash of a block",
    example="FILE",
)
def _hash(session: Session, args: argparse.Namespace) -> None:
    session.show({"hash": _detail(session, args.block)["hash"]}, lambda answer: str(answer["hash"]))


@block.add(
    "encode",
    argument("manifest", metavar="MANIFEST.yaml", help="a MetadataBlock manifest, - for standard input"),
    argument("-O", "--output-file", metavar="FILE", required=True, help="file for the block's bytes"),
    REPLACE,
    help="make the block that a manifest describes",
    description="Takes what `block show -o yaml` prints, and gives back the same bytes.",
    example="seed.yaml -O seed.block",
)
def _encode(session: Session, args: argparse.Namespace) -> None:
    source = "standard input" if args.manifest == "-" else args.manifest
    file = NewFile(args.output_file, replace=args.replace)
    raw = files.read_limited(args.manifest, _MAX_MANIFEST, "manifest")
    try:
        manifests = parse_manifests(raw.decode(), source)
    except UnicodeDecodeError as error:
        raise Invalid(f"{source} is not text in UTF-8", rule="manifest-text", place=source) from error
    blocks = [(one, one.content) for one in manifests if isinstance(one.content, MetadataBlock)]
    if len(blocks) != 1 or len(manifests) != 1:
        raise Invalid(
            f"{source} holds {len(manifests)} manifests, of which {len(blocks)} are blocks",
            rule="manifest-kind",
            hint="it must hold one MetadataBlock, as `odfctl block show -o yaml` prints it",
        )
    manifest, content = blocks[0]
    block = encode_block(content, manifest.version)
    file.write(block.raw)
    answer = {**_beside(block), "file": args.output_file}
    session.show(answer, lambda made: f"{made['hash']}  {made['file']}")


def _detail(session: Session, named: str) -> dict[str, Any]:
    """Returns the description of a block: from a file or a folder, or from the daemon for a dataset's block."""
    of_dataset = _OF_DATASET.match(named)
    if of_dataset is None:
        raw = files.read_limited(named, MAX_BLOCK, "block")
        try:
            return describe(decode_block(raw))
        except Invalid as fault:
            what = "standard input" if named == "-" else named
            raise Invalid(
                f"{what} is not a block of metadata: {fault.message}", rule=fault.rule, hint=fault.hint or _BLOCKS
            ) from fault
    if files.is_directory(of_dataset["ref"]):
        return describe(_of_directory(of_dataset["ref"], of_dataset["number"], of_dataset["hash"]))

    at = of_dataset["number"] or of_dataset["hash"]
    detail = session.client.do(calls.datasets_block(of_dataset["ref"], at)).value
    beside = {"hash": detail.hash, "manifestVersion": detail.manifest_version, "size": detail.size}
    if detail.former_epoch is not None:
        beside["formerEpoch"] = detail.former_epoch
    if detail.shard is not None:
        beside["shard"] = detail.shard
    return _describe(detail.manifest_version, detail.manifest, beside, detail.unknown_fields)


def _of_directory(directory: str, number: str | None, name: str | None) -> Block:
    chain = DirectoryChain(files.dataset(directory))
    return chain.block_at(int(number)) if number is not None else chain.block_by_hash(Multihash.parse(name or ""))


def describe(block: Block) -> dict[str, Any]:
    """Returns ``{kind, version, content, hash, manifestVersion, size}``: the contract of ``block show``.

    Also ``unknownFields``, if a newer schema wrote fields for which this version has no names.
    """
    return _describe(block.version, block_to_builtins(block), _beside(block), block.unknown_fields)


def _describe(version: int, content: dict[str, Any], beside: dict[str, Any], unknown: Sequence[str]) -> dict[str, Any]:
    shown = {"kind": "MetadataBlock", "version": version, "content": content, **beside}
    return {**shown, "unknownFields": list(unknown)} if unknown else shown


def _beside(block: Block) -> dict[str, Any]:
    return {"hash": str(block.hash), "manifestVersion": block.version, "size": len(block.raw)}


def _text(detail: dict[str, Any]) -> str:
    head = f"# {detail['hash']}\n# {detail['size']:,} bytes, manifest version {detail['manifestVersion']}\n"
    if (epoch := detail.get("formerEpoch")) is not None:
        head += f"# of the history of epoch {epoch}, which a later one dropped\n"
    if unknown := detail.get("unknownFields"):
        head += f"# of a newer schema, not shown: {', '.join(unknown)}\n"
    return head + render_yaml({name: detail[name] for name in ("kind", "version", "content")})
