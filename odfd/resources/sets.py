"""Defines sets of values that other resources read: VariableSets and SecretSets, and the sealing of secrets. Pure.

Each value is also a resource, which its set makes and owns: it can be found, labelled and watched, and does not hold
the value. A secret is written as text, or sealed: ``{value: JWE, contentEncoding: jwe}``. Only sealed ones are stored.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, Final, Protocol

import msgspec

from chain.codec.bind import found
from chain.codec.yaml_tree import Node
from chain.errors import Environment
from chain.model.wire import Extra
from odfd.resources import registry
from odfd.resources.manifest import Draft, describe
from odfd.resources.owners import OwnedPart
from odfd.resources.references import reference_key, refers_to
from odfd.resources.resource import Resource
from odfd.resources.types import JsonSchema, Remarks, ResourceType

KEY: Final = re.compile(r"[A-Za-z_][\w.-]{0,127}\Z", re.ASCII)
MAX_KEYS: Final = 256
MAX_VALUE_BYTES: Final = 64 * 1024
MAX_SEALED_BYTES: Final = 128 * 1024
JWE: Final = "jwe"
_TEXTS: Final = msgspec.Meta(extra_json_schema={"additionalProperties": {"type": "string"}, "maxProperties": MAX_KEYS})


_SECRET: Final[JsonSchema] = {
    "type": ["string", "object"],
    "properties": {"value": {"type": "string"}, "contentEncoding": {"const": JWE}},
    "required": ["value"],
    "additionalProperties": False,
}
SECRET_FORMS: Final = msgspec.Meta(extra_json_schema=_SECRET)
"""The schema of one secret: a text, or an object with its value."""
_SECRETS: Final = msgspec.Meta(extra_json_schema={"additionalProperties": _SECRET, "maxProperties": MAX_KEYS})


class VariableSetSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Values by name."""

    variables: Annotated[Extra, describe("Texts by name: at most 256, of 64 KiB each."), _TEXTS]


class SecretSetSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Secret values by name; they are never shown."""

    secrets: Annotated[
        Extra, describe("Texts, or {value, contentEncoding: jwe}, by name: at most 256, of 64 KiB each."), _SECRETS
    ]


class VariableSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One value of a VariableSet, which declares it."""

    set: Annotated[str, describe("The VariableSet that contains the value."), refers_to("VariableSet")]
    key: Annotated[str, describe("The name of the value in the set.")]


class SecretSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One value of a SecretSet, which declares it."""

    set: Annotated[str, describe("The SecretSet that contains the value."), refers_to("SecretSet")]
    key: Annotated[str, describe("The name of the value in the set.")]


def prepare_set(spec: Node, remarks: Remarks) -> Node:
    """Reads a value that is written ``{value: TEXT}`` as its text; another encoding than ``jwe`` is refused."""
    if not isinstance(spec.value, dict):
        return spec
    fields = dict(spec.value)
    for part in _VALUES.values():
        values = fields[part].value if part in fields else None
        if isinstance(values, dict):
            read = {key: plain_value(each, f"spec.{part}.{key}", remarks) for key, each in values.items()}
            fields[part] = Node(fields[part].line, read)
    return Node(spec.line, fields)


def plain_value(node: Node, path: str, remarks: Remarks) -> Node:
    """Returns the text of ``{value: TEXT}``; what is sealed, or is neither, as it is."""
    if not isinstance(node.value, dict) or "value" not in node.value:
        return node
    encoding = node.value.get("contentEncoding")
    if encoding is not None and encoding.value != JWE:
        text = f"a value is plain, or encoded as {JWE}"
        remarks.refuse(f"{path}.contentEncoding", encoding.line, text, "config/Secret", f"contentEncoding: {JWE}")
        return Node(node.line, "")
    return node if encoding is not None or node.value.keys() != {"value"} else node.value["value"]


def elements(owner: Resource) -> Iterator[OwnedPart]:
    """Yields a resource for each value of a set, named ``NAME#KEY``, which is no name that people can give."""
    for key in sorted(names_in(owner.type, owner.spec)):
        yield OwnedPart(
            type=owner.type.removesuffix("Set"), part=key, name=f"{owner.name}#{key}",
            refers=reference_key(owner.name, owner.type), spec={"set": f"{owner.type}:{owner.name}", "key": key},
        )  # fmt: skip


_VALUES: Final[Mapping[str, str]] = {"VariableSet": "variables", "SecretSet": "secrets"}
"""The member of a spec that holds the values, by type."""


def names_in(type_: str, spec: Any) -> frozenset[str]:
    """Returns the names of the values of a set; empty for another type."""
    return frozenset(spec[_VALUES[type_]]) if type_ in _VALUES else frozenset()


class SecretSealer(Protocol):
    """Seals and opens values, each bound to one place."""

    def is_current(self, sealed: str) -> bool: ...
    def binding_of(self, sealed: str) -> str: ...

    def seal(self, text: str, binding: str) -> str: ...
    def open(self, sealed: str, bindings: Collection[str]) -> OpenedSecret: ...


class OpenedSecret(Protocol):
    """A secret that was opened; ``reveal`` returns its text."""

    def reveal(self) -> str: ...


def check_secrets(draft: Draft) -> None:
    """Adds a mistake to a draft for each wrong secret. No message shows a value."""
    values: dict[str, object] = draft.spec.secrets
    texts: dict[str, object] = {}
    for key, value in values.items():
        path = f"spec.secrets.{key}"
        texts[key] = check_secret(draft, path, value)
    check_values(draft, "spec.secrets", texts, most=MAX_SEALED_BYTES)


def check_secret(draft: Draft, path: str, value: object) -> str:
    """Adds a mistake to a draft for a wrong secret; returns its text, which is empty then. No message shows it."""
    if isinstance(value, dict):
        if set(value) not in ({"value"}, {"value", "contentEncoding"}) or value.get("contentEncoding", JWE) != JWE:
            hint = "a text, or {value: …, contentEncoding: jwe}"
            draft.note(path, "expected a text or a sealed value", "secret-value", hint)
        value = value.get("value")
    if not isinstance(value, str):
        draft.note(path, "expected text", "manifest-type", "put it in quotes")
        return ""
    return value


def sealed_values(sealed: str, spec: Any) -> Mapping[str, Any]:
    """Returns the secrets in a spec, sealed or not, by key. ``sealed``: as a ``ResourceType`` says it."""
    field, _, each = sealed.partition(".")
    value = spec.get(field)
    if value is None:
        return {}
    return value if each else {field: value}


def with_values(sealed: str, spec: Any, values: Mapping[str, Any]) -> Any:
    """Returns a spec with these secrets in place of its own."""
    field, _, each = sealed.partition(".")
    return {**spec, **({field: values} if each else values)}


def binding(resource_id: str, key: str) -> str:
    """Returns the binding of a sealed value: one key of one resource."""
    return f"{resource_id}#{key}"


def named_binding(name: str, key: str) -> str:
    """Returns the binding of a value that was sealed before the set had an id: by the name of its set."""
    return f"SecretSet|{name.casefold()}#{key}"


def sealed_secrets(
    given: Mapping[str, Any], held: Mapping[str, Any], of: tuple[str, str], keys: SecretSealer, *, dry_run: bool
) -> dict[str, Any]:
    """Returns the sealed values; unchanged ones keep their sealed text. Raises Invalid for foreign seals.

    A dry run makes no key, and only marks the values that would be sealed as changed.

    ``of``: the id and the name of the set. A value that was sealed for the name is sealed again for the id, so that it
    cannot be opened elsewhere, even if another set gets the name.
    """
    resource_id, name = of
    kept: dict[str, Any] = {}
    for key, value in given.items():
        place = binding(resource_id, key)
        if isinstance(value, dict) and "contentEncoding" not in value:
            value = value["value"]
        if not isinstance(value, str):
            text = keys.open(value["value"], (place, named_binding(name, key))).reveal()
            value = value if keys.binding_of(value["value"]) == place else text
        if isinstance(value, str):
            before = held.get(key)
            # Each sealing gives another text: without this, every apply of the same file would be a change.
            if before is not None and _is(before["value"], value, place, keys):
                kept[key] = before
            else:
                text = "(sealed when it is applied)" if dry_run else keys.seal(value, place)
                kept[key] = {"value": text, "contentEncoding": JWE}
        else:
            kept[key] = value
    return kept


def renewed_secrets(values: Mapping[str, Any], resource_id: str, keys: SecretSealer) -> dict[str, Any]:
    """Seals values of a former key again to the current one. Raises Environment if a key is lost."""
    renewed = {}
    for key, held in values.items():
        place = binding(resource_id, key)
        if not keys.is_current(held["value"]):
            held = {**held, "value": keys.seal(keys.open(held["value"], (place,)).reveal(), place)}
        renewed[key] = held
    return renewed


def _is(sealed: str, text: str, place: str, keys: SecretSealer) -> bool:
    """Whether a sealed value holds this text; false if its key is lost."""
    try:
        return keys.open(sealed, (place,)).reveal() == text
    except Environment:
        return False


def check_variables(draft: Draft) -> None:
    """Adds a mistake to a draft for each wrong variable."""
    check_values(draft, "spec.variables", draft.spec.variables)


def check_values(draft: Draft, path: str, values: dict[str, object], most: int = MAX_VALUE_BYTES) -> None:
    if len(values) > MAX_KEYS:
        draft.note(path, f"{len(values)} values", "set-limit", f"at most {MAX_KEYS}; write a second set")
    for key, value in values.items():
        if not KEY.match(key):
            draft.note(f"{path}.{key}", f"{key[:60]!r} is no name of a value", "set-key", "like apiKey or API_KEY")
        if not isinstance(value, str):
            hint = "put it in quotes" if isinstance(value, int | float) else ""
            draft.note(f"{path}.{key}", f"expected text, found {found(value)}", "manifest-type", hint)
        elif len(value.encode()) > most:
            draft.note(f"{path}.{key}", f"larger than {most >> 10} KiB", "set-limit")


VARIABLE_SET_TYPE: Final = ResourceType(
    names=registry.VARIABLE_SET,
    about="Values for other resources: a dataset's source reads the set with the dataset's name.",
    spec=VariableSetSpec, prepare=prepare_set, parts=elements,
    is_pruned=True,
    check=check_variables,
    example="""\
$schema: VariableSet
headers:
  name: sensors
  labels: {env: prod}
spec:
  variables:
    host: sensors.example.org
""",
)  # fmt: skip

SECRET_SET_TYPE: Final = ResourceType(
    names=registry.SECRET_SET,
    about="Values that no output shows. They are encrypted when applied, and decrypted for sources "
    "of the dataset with the set's name.",
    spec=SecretSetSpec, prepare=prepare_set, parts=elements, sealed="secrets.*",
    is_silent=True, is_pruned=True,
    check=check_secrets,
    example="""\
$schema: SecretSet
headers:
  name: sensors
spec:
  secrets:
    apiKey: s3cr3t-of-the-house
    signing: whsec_bm90IGEgc2VjcmV0IG9mIGFueWJvZHkgYXQgYWxs
""",
)  # fmt: skip

VARIABLE_TYPE: Final = ResourceType(
    names=registry.VARIABLE, spec=VariableSpec, is_derived=True,
    about="One value of a VariableSet, without the value; named NAME#KEY.",
    instead="apply the VariableSet that has it: odfctl edit variableset NAME",
)  # fmt: skip

SECRET_TYPE: Final = ResourceType(
    names=registry.SECRET, spec=SecretSpec, is_derived=True,
    about="One value of a SecretSet, without the value; named NAME#KEY.",
    instead="apply the SecretSet that has it: odfctl edit secretset NAME",
)  # fmt: skip
