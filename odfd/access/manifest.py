"""Defines the manifests of Accounts and Relations, and turns them into statements. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Annotated, Any, Final

import msgspec

from chain.codec.yaml_tree import Node
from chain.errors import Invalid
from chain.model.wire import Scalar
from odfd.access.callers import AccountCallers
from odfd.access.relations import ADMIN, ANONYMOUS, MEMBER, PUBLIC, ROLE, ROLES, Statement
from odfd.resources import registry
from odfd.resources.label_schemas import ANONYMOUS_READ, PUBLIC_READ
from odfd.resources.manifest import Draft, describe
from odfd.resources.references import ANY, reference_key, refers_to
from odfd.resources.resource import Resource, account_did
from odfd.resources.types import Remarks, ResourceType, annotation_of, beyond

ACCOUNT: Final = "Account"
GROUP: Final = "Group"
RELATIONS: Final = "Relations"
UNIX_CALLERS: Final = "unixCallers"
MAX_STATEMENTS: Final = 10_000
_DID: Final = re.compile(r"did:[a-z0-9]{1,32}:[\w.:%-]{1,256}\Z", re.ASCII)
MAX_CALLERS: Final = 256


class AccountType(Enum):
    """The kind of an account."""

    USER = "User"
    ORGANIZATION = "Organization"


class AccountSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An account, and the callers that act as it."""

    email: Annotated[str, describe("Email address of the account.")]
    account_type: (
        Annotated[AccountType, Scalar("int32"), describe("User (default), or Organization, which has members.")] | None
    ) = None
    display_name: Annotated[str, describe("Name to display.")] | None = None
    avatar_url: Annotated[str, describe("URL of a picture.")] | None = None
    did: Annotated[str, describe("DID by which it is known elsewhere. Default: one that the node gives.")] | None = None


class UnixCallers(msgspec.Struct, frozen=True, kw_only=True):
    """The users and groups that act as an account at the control socket."""

    users: Annotated[tuple[str, ...], describe("Users of this machine, by name or numeric id.")] | None = None
    groups: Annotated[tuple[str, ...], describe("Groups whose members act as the account.")] | None = None


SUBJECTS: Final = f"{ACCOUNT}|{GROUP}"
_WORDS: Final = {ROLE: ROLE, "DatasetRole": ROLE, MEMBER: MEMBER, "Member": MEMBER}
"""Relations by the words for them: our own, and those of RFC-020, which are also the last part of their URIs."""


def relation_of(text: str) -> str:
    """Returns the relation that a word or a URI means; the text itself if it is none."""
    return _WORDS.get(text.rpartition("/")[2], text)


class GroupSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A group, which is what its members make of it."""


class RelationSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A relation of an account or a group to a resource."""

    subject: Annotated[str, describe("Account:NAME, or Group:NAME."), refers_to(SUBJECTS)]
    relation: Annotated[str, describe(f"{ROLE} or DatasetRole, or {MEMBER} or Member (of a Group or an Organization).")]
    value: Annotated[str, describe(f"For a role: {', '.join(ROLES)}.")] | None = None
    object: Annotated[
        str, describe("Dataset:NAME, or Account:NAME for everything that the account owns."), refers_to(ANY)
    ]


class AttributeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """An attribute of a resource for everybody, or of an account."""

    object: Annotated[
        str, describe("Dataset:NAME, or Account:NAME for everything that the account owns."), refers_to(ANY)
    ]
    name: Annotated[
        str,
        describe(
            f"{PUBLIC}: any account can read it. {ANONYMOUS}: any caller can. {ADMIN}: the account is an administrator."
        ),
    ]
    value: Annotated[bool, describe("Whether the attribute holds.")]


class RelationsSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Grants accounts rights on resources. Whoever applies it must own each object; deleting it revokes the rights."""

    relations: (
        Annotated[tuple[RelationSpec, ...], describe("Roles on resources, and members of organizations.")] | None
    ) = None
    attributes: Annotated[tuple[AttributeSpec, ...], describe("Rights of all callers, and administrators.")] | None = (
        None
    )


def prepare_relations(spec: Node, remarks: Remarks) -> Node:
    """Refuses values that RFC-018 permits and that mean nothing here: an attribute holds or not, a role is a text."""
    if not isinstance(spec.value, dict):
        return spec
    fields = dict(spec.value)
    for part, kind, text, use in (
        ("relations", str, "the value of a role is a text", f"value: {' or '.join(ROLES)}"),
        ("attributes", bool, "an attribute holds or does not", "value: true, or value: false"),
    ):
        items = fields[part].value if part in fields else None
        if isinstance(items, list):
            made = [_judge(each, f"spec.{part}[{at}]", (kind, text, use), remarks) for at, each in enumerate(items)]
            fields[part] = Node(fields[part].line, made)
    return Node(spec.line, fields)


def _judge(item: Node, path: str, wanted: tuple[type, str, str], remarks: Remarks) -> Node:
    """Returns a statement without a value of another type than ``wanted``, which is refused."""
    kind, text, use = wanted
    value = item.value.get("value") if isinstance(item.value, dict) else None
    if value is None or value.value is None or isinstance(value.value, kind) or not isinstance(item.value, dict):
        return item
    remarks.refuse(f"{path}.value", value.line, text, f"auth/{'Attribute' if kind is bool else 'Relation'}", use)
    return Node(item.line, {**item.value, "value": Node(value.line, kind())})


def prepare_account(spec: Node, remarks: Remarks) -> Node:
    """Removes a password, which nothing would ever check and nothing stores; adds a warning."""
    if not isinstance(spec.value, dict) or "password" not in spec.value:
        return spec
    text = (
        f"spec.password is passed over, and kept nowhere: an Account is known by its {UNIX_CALLERS} "
        "(odfctl docs access)"
    )
    remarks.warnings.append(text)
    return Node(spec.line, {key: child for key, child in spec.value.items() if key != "password"})


def check_account(draft: Draft) -> None:
    """Checks an Account; adds to the mistakes of its draft."""
    draft.attempt("spec.email", _check_email, draft.spec.email)
    draft.attempt("spec.did", _check_did, draft.spec.did)
    if UNIX_CALLERS in draft.typed:
        draft.attempt(f"headers.annotations.{UNIX_CALLERS}", lambda _: _check_callers(draft.typed[UNIX_CALLERS]), "")


def check_relations(draft: Draft) -> None:
    """Checks a Relations manifest; adds to the mistakes of its draft."""
    spec: RelationsSpec = draft.spec
    relations, attributes = spec.relations or (), spec.attributes or ()
    if len(relations) + len(attributes) > MAX_STATEMENTS:
        draft.note("spec", f"more than {MAX_STATEMENTS:,} statements", "relations-limit", "write several Relations")
        return
    for number, each in enumerate(relations):
        draft.attempt(f"spec.relations[{number}]", lambda _, said=each: _check_relation(said), "")  # type: ignore[misc]
    for number, one in enumerate(attributes):
        draft.attempt(f"spec.attributes[{number}]", lambda _, said=one: _check_attribute(said), "")  # type: ignore[misc]


def _check_did(text: str) -> None:
    if not _DID.match(text):
        raise Invalid(f"{text[:80]!r} is no did", rule="account-did", hint="like did:odf:fed01…, or leave it out")


def _check_email(text: str) -> None:
    name, at, host = text.rpartition("@")
    if not (name and at and host) or len(text) > 254 or any(each.isspace() for each in text):
        raise Invalid("this is no address of mail", rule="account-email", hint="like alice@example.com")


def _check_callers(callers: UnixCallers) -> None:
    several = (*(callers.users or ()), *(callers.groups or ()))
    if len(several) > MAX_CALLERS:
        hint = f"at most {MAX_CALLERS}; name a group"
        raise Invalid(f"{len(several)} users and groups", rule="unix-callers", hint=hint)
    if any(not each or len(each) > 255 or any(sign.isspace() or sign == ":" for sign in each) for each in several):
        raise Invalid("a user or group has a name or a number", rule="unix-callers", hint="users: [alice]")


def _check_relation(said: RelationSpec) -> None:
    relation = relation_of(said.relation)
    if relation == ROLE and (said.value or "").casefold() not in ROLES:
        hint = f"one of {', '.join(ROLES)}"
        text = beyond(f"there is no role {(said.value or '')[:60]!r}", "auth/Relation")
        raise Invalid(text, rule="relation-role", hint=hint)
    if relation == MEMBER and (said.value is not None or not said.object.startswith((f"{ACCOUNT}:", f"{GROUP}:"))):
        hint = f"object: {GROUP}:NAME or {ACCOUNT}:NAME, without a value"
        raise Invalid("one is a member of a group or of an account", rule="relation-member", hint=hint)
    if relation not in (ROLE, MEMBER):
        hint = f"known are {', '.join(_WORDS)}"
        text = beyond(f"the relation {said.relation[:60]!r} has no effect here", "auth/Relation")
        raise Invalid(text, rule="relation-unknown", hint=hint)


def _check_attribute(said: AttributeSpec) -> None:
    if said.name not in (PUBLIC, ANONYMOUS, ADMIN):
        hint = f"known are {PUBLIC}, {ANONYMOUS} and {ADMIN}"
        text = beyond(f"the attribute {said.name[:60]!r} has no effect here", "auth/Attribute")
        raise Invalid(text, rule="attribute-unknown", hint=hint)
    if said.name == ADMIN and not said.object.startswith((f"{ACCOUNT}:", f"{GROUP}:")):
        hint = f"object: {ACCOUNT}:NAME, or {GROUP}:NAME"
        raise Invalid("an administrator is an account, or in a group", rule="attribute-admin", hint=hint)


def statements_of(resource: Resource) -> Iterator[Statement]:
    """Yields the statements of a Relations resource whose references were found; others have no effect."""
    spec = resource.spec or {}
    for each in spec.get("relations") or ():
        subject, object_ = _target(resource, each["subject"], SUBJECTS), _target(resource, each["object"], ANY)
        if subject is not None and object_ is not None:
            role = (each.get("value") or "").casefold()
            yield Statement(object_, relation_of(each["relation"]), subject, role, resource.account)
    for each in spec.get("attributes") or ():
        object_ = _target(resource, each["object"], ANY)
        if object_ is not None and each["value"]:
            yield Statement(object_, each["name"], author=resource.account)


def attributes_of(resource: Resource) -> tuple[Statement, ...]:
    """Returns the statements that the labels of a resource make about it; the account that has it is their author."""
    said = ((PUBLIC, PUBLIC_READ), (ANONYMOUS, ANONYMOUS_READ))
    return tuple(
        Statement(resource.id, name, author=resource.account)
        for name, label in said
        if resource.labels.get(label) is True
    )


def _target(resource: Resource, text: str, type_: str) -> str | None:
    held = resource.references.get(reference_key(text, type_))
    return None if held is None else held.id


def callers_of(accounts: Iterable[Resource]) -> list[AccountCallers]:
    """Returns the users and groups that act as each account, sorted by account name."""
    found = []
    for account in sorted(accounts, key=lambda one: one.name.casefold()):
        said = _callers(account.annotations)
        did = account_did(account.id, account.spec)
        found.append(AccountCallers(account.id, account.name, said.users or (), said.groups or (), did))
    return found


def _callers(annotations: Mapping[str, Any]) -> UnixCallers:
    """Returns the callers in annotations, also if set by hand; unreadable ones name nobody."""
    try:
        return msgspec.convert(annotation_of(annotations, "auth", UNIX_CALLERS) or {}, UnixCallers)
    except msgspec.ValidationError:
        return UnixCallers()


ACCOUNT_TYPE: Final = ResourceType(
    names=registry.ACCOUNT,
    about="An owner of resources, and the users of this machine that act as it (odfctl docs access).",
    spec=AccountSpec,
    prepare=prepare_account,
    annotations={UNIX_CALLERS: UnixCallers},
    check=check_account,
    example="""\
$schema: Account
headers:
  name: alice
  annotations:
    unixCallers: {users: ["4711"]}
spec:
  email: alice@example.com
  displayName: Alice
""",
)

GROUP_TYPE: Final = ResourceType(
    names=registry.GROUP,
    about="Accounts that have rights together. Relations name its members.",
    spec=GroupSpec,
    example="""\
$schema: Group
headers:
  name: curators
spec: {}
""",
)

RELATIONS_TYPE: Final = ResourceType(
    names=registry.RELATIONS,
    about="Rights of accounts on resources. To an account without any right a resource does not exist.",
    spec=RelationsSpec,
    prepare=prepare_relations,
    check=check_relations,
    example="""\
$schema: Relations
headers:
  name: team
spec:
  relations:
  - {subject: "Account:alice", relation: role, value: editor, object: "Dataset:sensors"}
""",
)
