"""Defines a WebhookTarget: a URL, a secret, and its triggers. Pure.

The URL is shown to everybody who may read resources, so it holds no credentials; the secret is sealed.
"""

from __future__ import annotations

import base64
import binascii
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import msgspec

from chain.codec.yaml_tree import Node
from chain.errors import Invalid
from chain.model.wire import Extra
from odfd.resources import registry
from odfd.resources.manifest import Draft, describe
from odfd.resources.references import refers_to
from odfd.resources.selectors import TARGETS_HELP, Facts, Targets, means
from odfd.resources.sets import SECRET_FORMS, check_secret, plain_value
from odfd.resources.types import OWN, Remarks, ResourceType, annotation_of

_SETS: Final = ("SecretSet", "Secret")
POLICY: Final = "webhookPolicy"
CREATED: Final = "dataset.created"
UPDATED: Final = "dataset.ref.updated"
DELETED: Final = "dataset.deleted"
EVENTS: Final = (CREATED, UPDATED, DELETED)
MAX_URL: Final = 2048
PREFIX: Final = "whsec_"
LEAST_SECRET: Final = 24


class WebhookTargetSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The URL of the calls, and the key that signs them."""

    url: Annotated[str, describe("https://…; http:// only in networks that the setting webhooks.inside names.")]
    secret: (
        Annotated[
            Extra,
            describe(
                "The signing key, as {value: TEXT} or TEXT: at least 24 bytes, or whsec_ and base64. It is sealed, and "
                "never shown. Without any key calls are not signed."
            ),
            SECRET_FORMS,
        ]
        | None
    ) = None
    secret_ref: (
        Annotated[str, describe("The signing key of a SecretSet: SecretSet:NAME#KEY."), refers_to("SecretSet"), OWN]
        | None
    ) = None


class WebhookPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The datasets and events that trigger calls."""

    datasets: Annotated[Targets, describe(f"{TARGETS_HELP} Default: all.")] | None = None
    events: Annotated[tuple[str, ...], describe(f"Some of {', '.join(EVENTS)}. Default: all.")] | None = None

    def wants(self, event: str) -> bool:
        return self.events is None or event in self.events

    def means(self, dataset: str, facts: Callable[[], Facts]) -> bool:
        """Whether calls are about a dataset of this name."""
        return self.datasets is None or means(self.datasets, dataset, facts)


def has_policy(annotations: Mapping[str, Any]) -> bool:
    return annotation_of(annotations, "sink", POLICY) is not None


def policy_of(annotations: Mapping[str, Any]) -> WebhookPolicy:
    """Parses a policy, also from annotations set by hand. Raises Invalid."""
    try:
        policy = msgspec.convert(annotation_of(annotations, "sink", POLICY) or {}, WebhookPolicy)
    except msgspec.ValidationError as error:
        raise Invalid(
            f"{POLICY}: {error}", rule="webhook-policy", hint="{datasets: [NAME], events: [dataset.ref.updated]}"
        ) from error
    _check_events(policy)
    return policy


def check_target(draft: Draft) -> None:
    """Adds the mistakes in a WebhookTarget to its draft."""
    draft.attempt("spec.url", _check_url, draft.spec.url)
    spec: WebhookTargetSpec = draft.spec
    draft.attempt("spec.secretRef", secret_key, spec.secret_ref)
    if spec.secret is not None and spec.secret_ref is not None:
        draft.note("spec.secretRef", "there is a secret too", "webhook-secret", "leave one of them out")
    if spec.secret is not None:
        check_secret(draft, "spec.secret", spec.secret)
        if "contentEncoding" not in spec.secret:
            draft.attempt("spec.secret", lambda _: signing_key(str(spec.secret["value"])), "")  # type: ignore[index]
    if POLICY in draft.typed:
        draft.attempt(f"headers.annotations.{POLICY}", lambda _: _check_events(draft.typed[POLICY]), "")
        draft.check_targets(f"headers.annotations.{POLICY}.datasets", draft.typed[POLICY].datasets or ())


def prepare_target(spec: Node, remarks: Remarks) -> Node:
    """Reads a secret that is a text as its value, and one that is a reference as ``secretRef``, as it was written."""
    if not isinstance(spec.value, dict) or "secret" not in spec.value:
        return spec
    fields = dict(spec.value)
    said = plain_value(fields["secret"], "spec.secret", remarks)
    is_reference = (
        said.value.partition(":")[0] in _SETS
        if isinstance(said.value, str)
        else isinstance(said.value, dict) and "value" not in said.value
    )
    if is_reference and "secretRef" not in fields:
        remarks.warnings.append("spec.secret is read as secretRef: a secret is the value, and not a reference")
        del fields["secret"]
        fields["secretRef"] = said
    elif isinstance(said.value, str):
        fields["secret"] = Node(said.line, {"value": said})
    return Node(spec.line, fields)


def secret_key(reference: str) -> str:
    """Returns the key of a value, from a reference to a SecretSet. Raises Invalid."""
    key = reference.partition("#")[2]
    if not key:
        text = "a secret is written in a SecretSet, and referred to with its key"
        raise Invalid(text, rule="webhook-secret", hint="secretRef: SecretSet:NAME#KEY")
    return key


def signing_key(secret: str) -> bytes:
    """Decodes a signing key. Raises Invalid for one that is too short."""
    try:
        given = secret.startswith(PREFIX)
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True) if given else secret.encode()
    except (binascii.Error, ValueError):
        key = b""
    if len(key) < LEAST_SECRET:
        raise Invalid(
            f"the secret is shorter than {LEAST_SECRET} bytes, or is no base64 after {PREFIX}",
            rule="webhook-secret",
            hint=f"apply another, like {PREFIX}$(openssl rand -base64 32)",
        )
    return key


def _check_url(text: str) -> None:
    """Checks the URL of a target. Raises Invalid."""
    try:
        url = urllib.parse.urlsplit(text)
        # A port that is none raises ValueError when it is read, not when the URL is split.
        host, _ = url.hostname, url.port
    except ValueError as error:
        raise Invalid(f"not a URL: {error}", rule="webhook-url", hint="like https://example.org/hook") from error
    if url.scheme not in ("https", "http") or not host or len(text) > MAX_URL or not text.isascii():
        raise Invalid("a webhook is called at a URL of the web", rule="webhook-url", hint="https://example.org/hook")
    if url.username is not None or url.password is not None:
        text = "a URL is shown to all readers of resources, and this one has credentials"
        raise Invalid(text, rule="webhook-url", hint="take them out: calls are signed, and the receiver checks that")
    # In the text itself: urlsplit drops tabs and line ends without a word.
    if url.fragment or any(each <= " " for each in text):
        raise Invalid("a URL with a fragment or a space", rule="webhook-url", hint="https://example.org/hook")


def _check_events(policy: WebhookPolicy) -> None:
    for event in policy.events or ():
        if event not in EVENTS:
            hint = f"known are {', '.join(EVENTS)}"
            raise Invalid(f"there is no event {event[:60]!r}", rule="webhook-policy", hint=hint)


WEBHOOK_TARGET_TYPE: Final = ResourceType(
    names=registry.WEBHOOK_TARGET,
    about="A URL that is called when datasets are created, changed or deleted: signed, at least once.",
    spec=WebhookTargetSpec, prepare=prepare_target, annotations={POLICY: WebhookPolicy}, sealed="secret",
    is_pruned=True,
    check=check_target,
    example="""\
$schema: WebhookTarget
headers:
  name: com.example.hook
  annotations:
    webhookPolicy: {datasets: ["house.%"], events: [dataset.ref.updated]}
spec:
  url: https://hooks.example.org/odf
  secretRef: SecretSet:sensors#signing
""",
)  # fmt: skip
