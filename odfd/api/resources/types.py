"""Lists the types of resources that this node knows, serves their JSON Schemas, and explains them field by field.

They are ODF's types and the node's own, both those that have an effect and those that have none yet.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import partial
from typing import Final

from chain.errors import NotFound
from odfd.access import manifest as access
from odfd.api.resources import intent_types, node_types
from odfd.control import wire
from odfd.datasets import manifest as datasets
from odfd.flows import dialect as flow_dialect
from odfd.flows import manifest as flows
from odfd.flows import tasks as flow_tasks
from odfd.flows.spec import DatasetSchedule, DerivationPolicySpec, FlowPolicySpec, FlowSpec
from odfd.ingest import source_manifest
from odfd.portals.manifest import PortalSpec
from odfd.queries import projections
from odfd.repositories.manifest import RepositorySpec
from odfd.resources import sets
from odfd.resources.schema import JsonSchema, fields_of, part_of, schema_of, type_text
from odfd.resources.types import ODF, OURS, VERSION, ResourceType, TypeRegistry
from odfd.trust.policy import manifest as trust_policies
from odfd.volumes import manifest as volumes
from odfd.webhooks import target as webhooks

_ODF: Final = ResourceType
_OWN: Final = partial(ResourceType, base=OURS)
_TYPES: Final = (
    _ODF(
        name="Dataset", context="dataset", plural="datasets", aliases=("ds",),
        about="A dataset of this node: a chain of metadata blocks, and the data that they name.",
        spec=datasets.DatasetSpec, prepare=datasets.prepare,
        annotations={flows.SCHEDULE: DatasetSchedule, flows.DERIVATION: DerivationPolicySpec},
        parts=partial(flows.scheduled, uri=f"{ODF}/dataset/{VERSION}/Schedule"),
        example="""\
$schema: Dataset
headers:
  name: sensors
spec:
  kind: Root
  metadata:
  - kind: AddPushSource
    sourceName: default
    read:
      kind: NdJson
      schema:
        fields:
        - {name: event_time, type: {kind: Timestamp, unit: Millisecond, timezone: UTC}}
        - {name: celsius, type: Float64}
    merge: {kind: Append}
  - kind: SetInfo
    description: Temperatures of a house
    keywords: [example]
""",
    ),
    _ODF(
        name="Flow", context="flow", plural="flows",
        about="Declares when the node pulls a dataset, or does other tasks, by itself (odfctl docs flows).",
        spec=FlowSpec, prepare=flow_dialect.prepare, annotations={flows.POLICY: FlowPolicySpec},
        example="""\
$schema: Flow
headers:
  name: sensors-hourly
  annotations:
    flowPolicy: {timeZone: America/Toronto}
spec:
  target: Dataset:sensors
  triggers:
  - {kind: Schedule, cron: "@hourly"}
""",
    ),
    _ODF(
        name="Source", context="source", plural="sources",
        about="A source of records of root datasets, stored apart from their chains, for flows and odfctl pull.",
        spec=source_manifest.SourceSpec, prepare=source_manifest.prepare,
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
    ),
    _ODF(
        name="VariableSet", context="config", plural="variablesets", aliases=("vs",),
        about="Values for other resources: a dataset's source reads the set with the dataset's name.",
        spec=sets.VariableSetSpec, parts=sets.elements,
        example="""\
$schema: VariableSet
headers:
  name: sensors
  labels: {env: prod}
spec:
  variables:
    host: sensors.example.org
""",
    ),
    _ODF(
        name="SecretSet", context="config", plural="secretsets", aliases=("ss",),
        about="Values that no output shows. They are encrypted when applied, and decrypted for sources "
        "of the dataset with the set's name.",
        spec=sets.SecretSetSpec, parts=sets.elements,
        example="""\
$schema: SecretSet
headers:
  name: sensors
spec:
  secrets:
    apiKey: s3cr3t-of-the-house
    signing: whsec_bm90IGEgc2VjcmV0IG9mIGFueWJvZHkgYXQgYWxs
""",
    ),
    _ODF(
        name="WebhookTarget", context="sink", plural="webhooktargets", aliases=("wh", "webhook"),
        about="A URL that is called when datasets are created, changed or deleted: signed, at least once.",
        spec=webhooks.WebhookTargetSpec, annotations={webhooks.POLICY: webhooks.WebhookPolicy},
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
    ),
    _ODF(
        name="Projection", context="dataset", plural="projections", aliases=("proj",),
        about="The result of a query over datasets, kept as a table and computed again when they change; it is read as "
        "projection.NAME.",
        spec=projections.ProjectionSpec,
        example="""\
$schema: Projection
headers:
  name: warmest
spec:
  inputs:
  - datasetRef: sensors
  project:
    kind: Sql
    query: SELECT max(celsius) AS celsius FROM sensors
""",
    ),
    _ODF(
        name="PersistentVolume", context="storage", plural="persistentvolumes", aliases=("pv", "volume", "volumes"),
        about="A place that stores slices of datasets in place of the state directory: a folder on "
        "another disk, or a bucket.",
        spec=volumes.PersistentVolumeSpec, annotations={volumes.POLICY: volumes.VolumePolicy},
        example="""\
$schema: PersistentVolume
headers:
  name: cold
  annotations:
    volumePolicy: {datasets: ["archive.%"]}
spec:
  kind: HostPath
  path: /mnt/cold/odf
  capacity: {storage: 500Gi}
""",
    ),
    _OWN(
        name="Portal", context="dataset", plural="portals",
        about="Publishes rows of a private dataset in another one, by a rule that is checked for every "
        "block (odfctl docs portals).",
        spec=PortalSpec,
        example="""\
$schema: Portal
headers:
  name: wages
spec:
  input: Dataset:wages-by-town
  dataset: Dataset:wages-published
  suppress:
  - {count: people, below: 5, groups: [event_time, town]}
""",
    ),
    _OWN(
        name="Mirror", context="net", plural="mirrors",
        about="A verified copy of another node's dataset that is kept up to date here.",
        spec=intent_types.MirrorResourceSpec,
        example="""\
$schema: Mirror
headers:
  name: covid
  labels: {topic: health}
spec:
  source: did:odf:fed014e55dd4d4d4e1a1a3ad0d7e5ad3f5c1e3a7a9a5f9c9a8b0a17aa4cbb2bd2b94c
  keep: 50GiB
  priority: 5
""",
    ),
    _OWN(
        name="Network", context="net", plural="networks", aliases=("net",),
        about="Peers that gossip with each other under one name. A node may be in several.",
        spec=intent_types.NetworkResourceSpec,
        example="""\
$schema: Network
headers:
  name: food
spec:
  bootstrap: []
""",
    ),
    _OWN(
        name="Peer", context="net", plural="peers",
        about="This node's rule for a peer: blocked or not. A peer without a rule is no resource.",
        spec=intent_types.PeerResourceSpec,
        example="""\
$schema: Peer
headers:
  name: mallory
  annotations: {reason: sends what nobody asked for}
spec:
  peerId: 12D3KooWEyopopk2Ka2tf5fvGDPQEbYWrSnWFk8T9Bks5pZuWnaz
  blocked: true
""",
    ),
    _OWN(
        name="Repository", context="net", plural="repositories", aliases=("repo",),
        about="A place that stores many datasets in the ODF layout, to push to and pull from "
        "(odfctl docs repositories).",
        spec=RepositorySpec,
        example="""\
$schema: Repository
headers:
  name: archive
spec:
  url: file:///srv/odf
""",
    ),
    _OWN(
        name="Validator", context="trust", plural="validators",
        about="A validator whose verdicts count here.",
        spec=intent_types.ValidatorResourceSpec,
        example="""\
$schema: Validator
headers:
  name: uni
spec:
  did: did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp
""",
    ),
    _ODF(
        name="Account", context="auth", plural="accounts",
        about="An owner of resources, and the users of this machine that act as it (odfctl docs access).",
        spec=access.AccountSpec, prepare=access.prepare_account,
        annotations={access.UNIX_CALLERS: access.UnixCallers},
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
    ),
    _ODF(
        name="Relations", context="auth", plural="relations",
        about="Rights of accounts on resources. To an account without any right a resource does not exist.",
        spec=access.RelationsSpec, prepare=access.prepare_relations,
        example="""\
$schema: Relations
headers:
  name: team
spec:
  relations:
  - {subject: "Account:alice", relation: role, value: editor, object: "Dataset:sensors"}
""",
    ),
    _ODF(
        name="Variable", context="config", plural="variables", spec=sets.VariableSpec, is_derived=True,
        about="One value of a VariableSet, without the value; named NAME#KEY.",
        instead="apply the VariableSet that has it: odfctl edit variableset NAME",
    ),
    _ODF(
        name="Secret", context="config", plural="secrets", spec=sets.SecretSpec, is_derived=True,
        about="One value of a SecretSet, without the value; named NAME#KEY.",
        instead="apply the SecretSet that has it: odfctl edit secretset NAME",
    ),
    _ODF(
        name="Task", context="flow", plural="tasks", spec=flow_tasks.SPECS, prepare=flow_dialect.prepare_task,
        about="Work that is done once: declared, or started by a command or a flow.",
        annotations={flow_tasks.TARGET: flow_tasks.TaskTarget},
        example="""\
$schema: Task
headers:
  name: sensors-check
  annotations:
    taskTarget: {dataset: sensors}
spec: {kind: Ext, $schema: Verify, level: data}
""",
    ),
    _OWN(
        name="TrustPolicy", context="trust", plural="trustpolicies", aliases=("tp",),
        about="The facts that must hold before data of some datasets is relied on here.",
        spec=trust_policies.TrustPolicySpec,
        example="""\
$schema: TrustPolicy
headers:
  name: strict
spec:
  datasets: ["food.%"]
  use: data & attested:2
"""
    ),
    _OWN(
        name="Engine", context="node", plural="engines", spec=node_types.EngineSpec,
        about="An engine of this node: spark runs transforms, duckdb answers queries.",
        is_derived=True, made_by=node_types.ITSELF,
        instead="[engine] of the settings (spark) and [query] (duckdb) say it: odfd config show, then start anew",
    ),
    _OWN(
        name="Node", context="node", plural="nodes", spec=node_types.NodeSpec,
        about="This node: its name, ids, addresses and version.", is_derived=True, made_by=node_types.ITSELF,
        instead="[node], [p2p], [http], [flight] and [api] of the settings say it: odfd config show, then start anew",
    ),
)  # fmt: skip
TYPES: Final = TypeRegistry(_TYPES)


class SchemaService:
    """The API service for types of resources."""

    def __init__(self, registry: TypeRegistry = TYPES) -> None:
        self._registry = registry

    async def types(self) -> Sequence[wire.TypeView]:
        """Lists the types of resources: those that act first, the others in their order."""
        ordered = sorted(self._registry, key=lambda each: each not in self._registry.acting)
        return [_type_view(each) for each in ordered]

    async def schema(self, path: str) -> JsonSchema:
        """Returns the JSON Schema of a type by its path, ``context/version/Name``. Raises NotFound."""
        found = self._registry.at(path)
        if found is None or found.spec is None:
            raise NotFound(f"there is no schema {path[:120]!r}", rule="unknown-type", hint="odfctl types lists them")
        return schema_of(found)

    async def explain(self, word: str, path: str) -> wire.Explanation:
        """Explains a type, or one field of it. Raises NotFound.

        ``word``: a name, plural, alias or URI of a type. ``path``: the field, with dots; empty for the type.
        """
        kind = self._find(word)
        if kind.spec is None:
            return wire.Explanation(
                name=kind.name, uri=kind.uri, path="", type="", fields=(),
                description=f"{kind.about} This node does not act on it yet; instead: {kind.instead}",
            )  # fmt: skip
        schema = schema_of(kind)
        part = part_of(schema, path)
        if part is None:
            raise NotFound(f"{kind.name} has no field {path[:120]!r}", rule="unknown-field", hint=_near(schema, path))
        return wire.Explanation(
            name=kind.name,
            uri=kind.uri,
            path=path,
            type=type_text(schema, part),
            description=str(part.get("description", "")),
            fields=tuple(
                wire.FieldView(
                    name=name,
                    type=type_text(schema, child),
                    required=required,
                    description=str(child.get("description", "")),
                )
                for name, (child, required) in fields_of(schema, part).items()
            ),
            example="" if path else kind.example,
        )

    def _find(self, word: str) -> ResourceType:
        found = self._registry.word(word) or next((each for each in self._registry if each.uri == word), None)
        if found is None:
            names = {each.name.lower(): each.name for each in self._registry}
            near = difflib.get_close_matches(word[:80].lower(), names, n=1)
            hint = f"did you mean {names[near[0]]}?" if near else "odfctl types lists them"
            raise NotFound(f"there is no type {word[:80]!r}", rule="unknown-type", hint=hint)
        return found


def _near(schema: JsonSchema, path: str) -> str:
    """Suggests a field near to the one that was not found."""
    names = path.split(".")
    while names:
        last = names.pop()
        around = part_of(schema, ".".join(names))
        if around is not None:
            known = fields_of(schema, around)
            near = difflib.get_close_matches(last, known, n=1)
            return f"did you mean {'.'.join([*names, near[0]])}?" if near else f"known are {', '.join(known) or 'none'}"
    return ""


def _type_view(kind: ResourceType) -> wire.TypeView:
    return wire.TypeView(
        name=kind.name, uri=kind.uri, plural=kind.plural, aliases=kind.aliases,
        acts=kind.spec is not None and not kind.is_derived, about=kind.about, instead=kind.instead,
    )  # fmt: skip
