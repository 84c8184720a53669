"""Decodes text in the encoding that a read step declares to UTF-8, and guesses the encoding of other text.

Nothing is guessed to be read: a guess is for the message, and whoever reads it declares it.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from charset_normalizer import from_bytes

from chain.errors import Invalid
from chain.model.source import ReadCsv, ReadJson, ReadNdJson, ReadStep
from engines.spark.ingest.unpack import CHUNK, SourceFile, Unpacking, write

RULE: Final = "read-encoding"
UTF8: Final = "utf-8"
_WINDOWS: Final = "cp1252"
"""Named first of all that make the same text of a sample, or letters of few bytes: most such files are in it."""
_FEW: Final = 32
"""Bytes that are no ASCII, of which statistics tell nothing."""
SAMPLE: Final = 64 << 10
"""Bytes around the first that is no UTF-8, by which an encoding is guessed."""
_TEXTS: Final = re.compile(
    r"ascii|utf-(?:8|8-sig|(?:16|32)(?:-[bl]e)?)|iso8859-\d+|cp\d+|koi8-[rtu]|mac-\w+|big5\w*|gb\w+|hz|euc_\w+|"
    r"shift_jis\w*|iso2022_\w+|johab|tis-620|ptcp154|kz1048|hp-roman8"
)
"""Names, as Python has them, of encodings of text. Others of its codecs are something else."""


def codec_of(encoding: str | None) -> str:
    """Raises Invalid for an encoding that is not known."""
    try:
        name = codecs.lookup(encoding or UTF8).name
    except (LookupError, ValueError):
        name = ""
    if not _TEXTS.fullmatch(name):
        raise Invalid(
            f"encoding {encoding!r} is not known",
            rule=RULE,
            hint="write utf8, utf-16, latin-1, cp1252, shift_jis or another name of an encoding of text",
        )
    return UTF8 if name in ("ascii", "utf-8-sig") else name


def encoding_of(step: ReadStep) -> str | None:
    return step.encoding if isinstance(step, ReadCsv | ReadJson | ReadNdJson) else None


def decoded(source: SourceFile, encoding: str | None, target: Path, growth: Unpacking) -> SourceFile:
    """The same text in UTF-8, at ``target`` if it is not so already. Raises Invalid with the line."""
    codec = codec_of(encoding)
    if codec == UTF8:
        return source
    write(target, _recoded(source, codec), growth)
    return SourceFile(target, source.name)


def _recoded(source: SourceFile, codec: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(codec)()
    lines, more = 0, True
    with source.path.open("rb") as file:
        while more:
            data = file.read(CHUNK)
            more = bool(data)
            try:
                text = decoder.decode(data, final=not more)
            except UnicodeError as error:
                raise _undecodable(error, source.name, codec, lines) from error
            lines += text.count("\n")
            yield text.encode("utf-8", "surrogatepass")


def _undecodable(error: UnicodeError, name: str, codec: str, lines: int) -> Invalid:
    what = str(error)
    if isinstance(error, UnicodeDecodeError):
        lines += error.object[: error.start].decode(codec, "replace").count("\n")
        what = f"byte {error.object[error.start]:#04x} begins no character"
    hint = "is another encoding meant, or is the file cut off?"
    return Invalid(f"not {codec}: {what}", rule=RULE, hint=hint, place=f"{name}:{lines + 1}")


def guess(data: bytes) -> str | None:
    """The encoding that text which is no UTF-8 looks like, by what stands around the first byte that is none."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        around = data[max(0, error.start - SAMPLE // 2) : error.start + SAMPLE // 2]
        others = bytes(each for each in around if each > 127)
        if len(others) < _FEW and _is_letters(others):
            return _WINDOWS
        found = from_bytes(around).best()
        if found is None:
            return None
        return _WINDOWS if _same(around, found.encoding, _WINDOWS) else found.encoding
    return None


def _is_letters(data: bytes) -> bool:
    try:
        return data.decode(_WINDOWS).isalpha()
    except UnicodeDecodeError:
        return False


def _same(data: bytes, one: str, other: str) -> bool:
    """Whether both encodings make the same text of it."""
    try:
        return data.decode(one) == data.decode(other)
    except UnicodeDecodeError:
        return False


def told_guess(fault: Invalid, sources: list[SourceFile]) -> Invalid:
    """A fault of text that is no UTF-8, with the encoding that its file looks like."""
    source = next((each for each in sources if fault.place.startswith(f"{each.name}:")), None)
    if fault.rule != RULE or not fault.message.startswith("not UTF-8") or source is None:
        return fault
    found = _guess_of(source.path)
    if found is None:
        return fault
    hint = f"it looks like {found}: say `encoding: {found}` in the read step, and see with odfctl ingest --preview"
    return Invalid(fault.message, rule=fault.rule, hint=hint, place=fault.place)


def _guess_of(path: Path) -> str | None:
    """By the first stretch of a file that is no UTF-8."""
    decoder = codecs.getincrementaldecoder(UTF8)()
    before = b""
    with path.open("rb") as file:
        while data := file.read(CHUNK):
            try:
                decoder.decode(data)
            except UnicodeDecodeError:
                return guess(before[-SAMPLE:].partition(b"\n")[2] + data + file.read(SAMPLE))
            before = data
    return None
