"""Reads the manifest of a Source, which declares where records of root datasets come from, apart from chains. Pure.

It has the same steps as a polling source in a chain. Its variables are declared under ``config``; it can use no others.

A query that only names columns means the same in every engine's SQL: RFC-018's examples write such queries for an
engine that a node may not have. Any other is left to the engine that it names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import msgspec

from chain.codec.bind import Mistake, plain, plain_of
from chain.codec.short_forms import carrying_read_options
from chain.codec.yaml_tree import Node
from chain.errors import Invalid
from chain.model.events import SetPollingSource
from chain.model.source import (
    FetchStep,
    FetchUrl,
    MergeAppend,
    MergeStrategy,
    PrepStep,
    ReadStep,
    Transform,
)
from chain.model.wire import Extra
from odfd.ingest.endpoint import HmacSignature, RestEndpoint, StandardWebhooks, check_header, secret_name
from odfd.ingest.trigger import check_trigger
from odfd.resources import registry
from odfd.resources.manifest import VARIABLE, Draft, describe
from odfd.resources.references import ANY, SETS, reference_key, refers_to
from odfd.resources.types import OWN, Remarks, ResourceType

ENGINE: Final = "spark"
"""The engine that runs such a query, whichever it names."""
_NAME: Final = r"(`[^`\n]{1,128}`|[A-Za-z_]\w{0,127})"
_ITEM: Final = re.compile(rf"\s*{_NAME}(?:\s+as\s+{_NAME})?\s*", re.IGNORECASE)
_SELECT: Final = re.compile(r"\s*select\s+(.+?)\s+from\s+input\s*;?\s*\Z", re.IGNORECASE | re.DOTALL)
_VALUES: Final = frozenset(
    {
        "all", "current_catalog", "current_date", "current_database", "current_role", "current_schema", "current_time",
        "current_timestamp", "current_timezone", "current_user", "distinct", "false", "localtime", "localtimestamp",
        "null", "rowid", "session_user", "sysdate", "true", "user",
    }
)  # fmt: skip
"""Words that are values, or no names, in the SQL of some engine."""


def renamed_columns(query: str) -> Mapping[str, str] | None:
    """Returns the columns of ``input`` that a query takes, each with its new name; ``None`` for any other query."""
    found = _SELECT.match(query)
    if found is None:
        return None
    columns: dict[str, str] = {}
    for item in found[1].split(","):
        column = _ITEM.fullmatch(item)
        if column is None or column[1].casefold() in _VALUES or column[1] in columns:
            return None
        columns[column[1].strip("`")] = (column[2] or column[1]).strip("`")
    return columns


def of_any_engine(transform: Transform | None) -> Mapping[str, str] | None:
    """Returns the columns of a transform that names another engine and that any engine computes; else ``None``."""
    if transform is None or transform.engine.lower() == ENGINE or transform.queries or transform.temporal_tables:
        return None
    return renamed_columns(transform.query or "")


def ours(
    transform: Transform | None, merge: MergeStrategy, columns: Mapping[str, str]
) -> tuple[Transform | None, MergeStrategy]:
    """Returns both for our engine: keys of the merge that are columns of the input get their names after the query."""
    assert transform is not None
    return msgspec.structs.replace(transform, engine=ENGINE, version=None), _keys_named(merge, columns)


def _keys_named(merge: MergeStrategy, columns: Mapping[str, str]) -> MergeStrategy:
    said = msgspec.structs.asdict(merge)  # each field of a merge strategy is a list of columns
    return msgspec.structs.replace(merge, **{key: rename_keys(names, columns) for key, names in said.items() if names})


def rename_keys(keys: tuple[str, ...], columns: Mapping[str, str]) -> tuple[str, ...]:
    """Returns keys by the names of columns after the query; one that is a name then stays."""
    after = set(columns.values())
    return tuple(key if key in after else columns.get(key, key) for key in keys)


MAX_CONFIG: Final = 64
ENDPOINT: Final = "RestEndpoint"
EVM_LOGS: Final = "EvmLogs"
"""RFC-018's word for the fetch step that the chain calls EthereumLogs."""
_TRIGGER: Final = "trigger."
_CONFIG: Final = re.compile(r"config\.(\w+)(\s*\|\|\s*'[^']*')?")
_VALUE: Final = re.compile(r"(\$\{\{\s*)config\.(\w+)")


class SourceSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A source of records, and the steps that turn them into rows."""

    config: (
        Annotated[
            Extra,
            describe("SecretSet:SET#KEY or VariableSet:SET#KEY by name; read as config.NAME."),
            refers_to(ANY),
        ]
        | None
    ) = None
    ingress: (
        Annotated[
            FetchStep | RestEndpoint,
            describe("The fetch step, as in a polling source. Default: an endpoint to push to."),
        ]
        | None
    ) = None
    prepare: Annotated[tuple[PrepStep, ...], describe("Steps between fetch and read.")] | None = None
    read: Annotated[ReadStep, describe("The read step.")]
    preprocess: Annotated[Transform, describe("A query over the rows that were read.")] | None = None
    merge: Annotated[MergeStrategy, describe("The merge strategy. Default: Append.")] | None = None
    keep_raw: (
        Annotated[bool, describe("Whether the bytes of all records that datasets take are captured."), OWN] | None
    ) = None
    vocab: Annotated[Extra, describe("Refused: a dataset has its vocabulary in its chain.")] | None = None


class ConfigValue(msgspec.Struct, frozen=True):
    """A reference to a value of a SecretSet or VariableSet that a Source reads."""

    set: str
    """Key of the reference to the set, as ``odfd.resources.references.reference_key`` formats it."""
    key: str


def prepare(spec: Node, remarks: Remarks) -> Node:
    """Expands short forms of the read step into those of the format, as in a Dataset."""
    if not isinstance(spec.value, dict):
        return spec
    fields = dict(spec.value)
    remarks.warnings.extend(_remarks(fields))
    ingress = fields.pop("ingress", None)
    if ingress is not None and isinstance(ingress.value, dict) and ingress.value.get("kind") is not None:
        word = ingress.value["kind"]
        if word.value == EVM_LOGS:
            ingress = Node(ingress.line, {**ingress.value, "kind": Node(word.line, "EthereumLogs")})
    kind = ingress.value.get("kind") if ingress is not None and isinstance(ingress.value, dict) else None
    found: list[Mistake] = []
    if ingress is None or (kind is not None and kind.value == ENDPOINT):
        made = carrying_read_options(Node(spec.line, {**fields, "fetch": _stand_in(spec.line)}), found)
        remarks.mistakes.extend(
            Mistake(f"spec.{each.path}", each.line, each.message, each.rule, each.hint) for each in found
        )
        assert isinstance(made.value, dict)
        kept = {key: child for key, child in made.value.items() if key != "fetch"}
        return Node(spec.line, kept if ingress is None else {**kept, "ingress": ingress})
    made = carrying_read_options(Node(spec.line, {**fields, "fetch": ingress}), found)
    for each in found:
        path = each.path.replace("fetch", "ingress", 1) if each.path.startswith("fetch") else each.path
        remarks.mistakes.append(Mistake(f"spec.{path}", each.line, each.message, each.rule, each.hint))
    assert isinstance(made.value, dict)
    changed = {("ingress" if key == "fetch" else key): child for key, child in made.value.items()}
    return Node(spec.line, changed)


def _remarks(fields: Mapping[str, Node]) -> Iterator[str]:
    """Yields what is said of a query that names another engine and only names columns, and of keys by former names."""
    said = {key: plain(fields[key]) for key in ("preprocess", "merge") if key in fields}
    query = said.get("preprocess")
    if not isinstance(query, dict) or not isinstance(query.get("query"), str) or query.get("queries"):
        return
    engine, columns = str(query.get("engine", "")), renamed_columns(query["query"])
    if columns is None or engine.lower() in ("", ENGINE):
        return
    yield f"spec.preprocess: engine {engine} is read as {ENGINE}, as the query only names columns"
    merge = said.get("merge")
    keys = merge.get("primaryKey") if isinstance(merge, dict) else None
    for key in keys if isinstance(keys, list) else ():
        (after,) = rename_keys((str(key),), columns)
        if after != key:
            yield f"spec.merge.primaryKey: {key} is read as {after}, its name after preprocess"


def _stand_in(line: int) -> Node:
    return Node(line, {"kind": Node(line, "Url"), "url": Node(line, "")})


def endpoint_of(spec: SourceSpec) -> RestEndpoint | None:
    """Returns the endpoint of a Source; ``None`` if the Source is fetched."""
    if spec.ingress is None:
        return RestEndpoint()
    return spec.ingress if isinstance(spec.ingress, RestEndpoint) else None


def check_source_resource(draft: Draft) -> None:
    """Checks a Source and adds what is wrong to the mistakes of the draft."""
    spec: SourceSpec = draft.spec
    config = spec.config or {}
    endpoint = endpoint_of(spec)
    if spec.vocab is not None:
        use = (
            "metadata of the Dataset: {kind: SetVocab, eventTimeColumn: NAME}, and columns of such names in preprocess"
        )
        draft.refuse("spec.vocab", "a Source has no vocabulary of its own here", "source/SourceSpec", use)
    if endpoint is not None and spec.prepare:
        draft.note("spec.prepare", "pushed data is not prepared", "source-endpoint", "push it as it is read")
    if endpoint is not None and endpoint.signature is not None:
        _check_signature(draft, endpoint.signature)
    elif endpoint is not None and config:
        draft.note("spec.config", "an endpoint without a signature reads no values", "source-endpoint", "leave it out")
    if endpoint is not None and endpoint.buffer is not None and endpoint.buffer.buffer_size == 0:
        draft.note("spec.ingress.buffer.bufferSize", "a buffer of no records", "number-range", "1 or more")
    if len(config) > MAX_CONFIG:
        draft.note("spec.config", f"{len(config)} values", "source-config", f"at most {MAX_CONFIG}")
    for name, text in config.items():
        draft.attempt(f"spec.config.{name}", config_value, text if isinstance(text, str) else str(text))
    for path, text in _texts(plain_of(spec).get("ingress", {}), "spec.ingress"):
        for found in VARIABLE.findall(text):
            if found.startswith(_TRIGGER) and endpoint is None:
                continue
            known = _CONFIG.fullmatch(found)
            if known is None or (known[1] not in config and known[2] is None):
                draft.note(
                    path, f"unknown variable {found[:60]!r}", "source-variable", "a Source reads config.NAME of its own"
                )
    if endpoint is None:
        _check_trigger(draft, spec)


def _check_trigger(draft: Draft, spec: SourceSpec) -> None:
    polled = polling_source(spec)
    draft.attempt("spec.ingress", lambda _: check_trigger(polled.fetch, polled.read), "")


def _check_signature(draft: Draft, signature: StandardWebhooks | HmacSignature) -> None:
    path = "spec.ingress.signature"
    draft.attempt(f"{path}.secret", secret_name, signature.secret)
    if isinstance(signature, HmacSignature):
        for key, text in (("header", signature.header), ("idHeader", signature.id_header)):
            if text is not None:
                draft.attempt(f"{path}.{key}", check_header, text)


def config_value(text: str) -> ConfigValue:
    """Parses ``SecretSet:SET#KEY``. Raises Invalid."""
    type_, _, rest = text.partition(":")
    name, _, key = rest.partition("#")
    if type_ not in SETS or not key:
        hint = "write SecretSet:NAME#KEY or VariableSet:NAME#KEY"
        raise Invalid(f"{text[:120]!r} names no value of a set", rule="source-config", hint=hint)
    return ConfigValue(reference_key(name, type_), key)


def polling_source(spec: SourceSpec) -> SetPollingSource:
    """Returns the Source as a chain's source, with values read from ``env``; an endpoint's fetch step is unused."""
    fetch: FetchStep = FetchUrl(url=ENDPOINT) if endpoint_of(spec) is not None else _rename_variables(spec.ingress)
    merge: MergeStrategy = MergeAppend() if spec.merge is None else spec.merge
    columns, preprocess = of_any_engine(spec.preprocess), spec.preprocess
    if columns is not None:
        preprocess, merge = ours(preprocess, merge, columns)
    return SetPollingSource(fetch=fetch, prepare=spec.prepare, read=spec.read, preprocess=preprocess, merge=merge)


def _rename_variables(value: Any) -> Any:
    """Replaces ``${{ config.X }}`` by ``${{ env.X }}`` in all texts."""
    match value:
        case str():
            return _VALUE.sub(r"\1env.\2", value)
        case tuple():
            return tuple(map(_rename_variables, value))
        case msgspec.Struct():
            parts = {name: _rename_variables(getattr(value, name)) for name in value.__struct_fields__}
            return msgspec.structs.replace(value, **parts)
        case _:
            return value


def _texts(value: Any, path: str) -> list[tuple[str, str]]:
    match value:
        case str():
            return [(path, value)]
        case Mapping():
            return [found for key, each in value.items() for found in _texts(each, f"{path}.{key}")]
        case list() | tuple():
            return [found for at, each in enumerate(value) for found in _texts(each, f"{path}[{at}]")]
        case _:
            return []


SOURCE_TYPE: Final = ResourceType(
    names=registry.SOURCE,
    about="A source of records of source datasets, stored apart from their chains, for flows and odfctl pull.",
    spec=SourceSpec,
    prepare=prepare,
    own_kinds=frozenset({"EthereumLogs"}),
    is_silent=True,
    check=check_source_resource,
    example="""\
$schema: Source
headers:
  name: ca.bankofcanada
spec:
  config: {apiKey: "SecretSet:sensors#apiKey"}
  ingress:
    kind: Url
    url: https://example.org/fx.csv
    headers:
    - {name: X-Key, value: "${{ config.apiKey }}"}
  read: {kind: Csv, header: true}
  merge: {kind: Ledger, primaryKey: [date]}
""",
)
