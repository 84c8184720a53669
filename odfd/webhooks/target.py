"""Defines a WebhookTarget: a URL, a secret of a SecretSet, and its triggers. Pure.

The URL is shown to everybody who may read resources, so it holds no credentials; the secret stays in its SecretSet.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from chain.errors import Invalid
from odfd.resources import registry
from odfd.resources.manifest import Draft, described
from odfd.resources.references import refers_to
from odfd.resources.selectors import names
from odfd.resources.types import ResourceType, annotated

POLICY: Final = "webhookPolicy"
CREATED: Final = "dataset.created"
UPDATED: Final = "dataset.ref.updated"
DELETED: Final = "dataset.deleted"
EVENTS: Final = (CREATED, UPDATED, DELETED)
MAX_URL: Final = 2048


class WebhookTargetSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The URL of the calls, and the key that signs them."""

    url: Annotated[str, described("https://…; http:// only in networks that the setting webhooks.inside names.")]
    secret: Annotated[
        str,
        described("The signing key, as SecretSet:NAME#KEY: at least 24 bytes, or whsec_ and base64."),
        refers_to("SecretSet"),
    ]


class WebhookPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The datasets and events that trigger calls."""

    datasets: (
        Annotated[tuple[str, ...], described("Names of datasets; % stands for any text. Default: all.")] | None
    ) = None
    events: Annotated[tuple[str, ...], described(f"Some of {', '.join(EVENTS)}. Default: all.")] | None = None

    def wants(self, event: str) -> bool:
        return self.events is None or event in self.events

    def names(self, dataset: str) -> bool:
        if self.datasets is None:
            return True
        return names(self.datasets, dataset)


def has_policy(annotations: Mapping[str, Any]) -> bool:
    return annotated(annotations, "sink", POLICY) is not None


def policy_of(annotations: Mapping[str, Any]) -> WebhookPolicy:
    """Parses a policy, also from annotations set by hand. Raises Invalid."""
    try:
        policy = msgspec.convert(annotated(annotations, "sink", POLICY) or {}, WebhookPolicy)
    except msgspec.ValidationError as error:
        raise Invalid(
            f"{POLICY}: {error}", rule="webhook-policy", hint="{datasets: [NAME], events: [dataset.ref.updated]}"
        ) from error
    _check_events(policy)
    return policy


def check_target(draft: Draft) -> None:
    """Adds the mistakes in a WebhookTarget to its draft."""
    draft.attempt("spec.url", _check_url, draft.spec.url)
    draft.attempt("spec.secret", secret_key, draft.spec.secret)
    if POLICY in draft.typed:
        draft.attempt(f"headers.annotations.{POLICY}", lambda _: _check_events(draft.typed[POLICY]), "")


def secret_key(reference: str) -> str:
    """Returns the key of a value, from a reference to a SecretSet. Raises Invalid."""
    key = reference.partition("#")[2]
    if not key:
        text = "a secret is written in a SecretSet, and referred to with its key"
        raise Invalid(text, rule="webhook-secret", hint="secret: SecretSet:NAME#KEY")
    return key


def _check_url(text: str) -> None:
    """Checks the URL of a target. Raises Invalid."""
    try:
        url = urllib.parse.urlsplit(text)
        host, _ = url.hostname, url.port
    except ValueError as error:
        raise Invalid(f"not a URL: {error}", rule="webhook-url", hint="like https://example.org/hook") from error
    if url.scheme not in ("https", "http") or not host or len(text) > MAX_URL or not text.isascii():
        raise Invalid("a webhook is called at a URL of the web", rule="webhook-url", hint="https://example.org/hook")
    if url.username is not None or url.password is not None:
        text = "a URL is shown to whoever reads resources, and this one has credentials"
        raise Invalid(text, rule="webhook-url", hint="take them out: calls are signed, and the receiver checks that")
    if url.fragment or any(each <= " " for each in text):
        raise Invalid("a URL with a fragment or a space", rule="webhook-url", hint="https://example.org/hook")


def _check_events(policy: WebhookPolicy) -> None:
    for each in policy.events or ():
        if each not in EVENTS:
            hint = f"known are {', '.join(EVENTS)}"
            raise Invalid(f"there is no event {each[:60]!r}", rule="webhook-policy", hint=hint)


WEBHOOK_TARGET_TYPE: Final = ResourceType(
    names=registry.WEBHOOK_TARGET,
    about="A URL that is called when datasets are created, changed or deleted: signed, at least once.",
    spec=WebhookTargetSpec, annotations={POLICY: WebhookPolicy},
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
  secret: SecretSet:sensors#signing
""",
)  # fmt: skip
