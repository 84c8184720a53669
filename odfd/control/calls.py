"""Makes the calls of the API's operations, each with the types of its body and its answer (``Client.do``).

Written by ``python -m odfd.api.calls``, from the methods that declare them; ``openapi.json`` says what each does.
"""

# fmt: off
# ruff: noqa: E501
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from odfd.control import wire
from odfd.control.client import ApiCall, part


def about_settings() -> ApiCall[wire.SettingsView]:
    return ApiCall("GET", "/node/v1alpha1/settings", lambda: wire.SettingsView)


def about_status() -> ApiCall[wire.Status]:
    return ApiCall("GET", "/node/v1alpha1/status", lambda: wire.Status)


def accounts_create_token(request: wire.TokenRequest) -> ApiCall[wire.TokenView]:
    return ApiCall("POST", "/auth/v1alpha1/tokens", lambda: wire.TokenView, request)


def accounts_me() -> ApiCall[wire.AccountView]:
    return ApiCall("GET", "/auth/v1alpha1/self", lambda: wire.AccountView)


def accounts_revoke_token(id_: str) -> ApiCall[wire.TokenView]:
    return ApiCall("DELETE", f"/auth/v1alpha1/tokens/{part(id_)}", lambda: wire.TokenView)


def accounts_tokens() -> ApiCall[list[wire.TokenView]]:
    return ApiCall("GET", "/auth/v1alpha1/tokens", lambda: list[wire.TokenView])


def authority_change_authority(ref: str, request: wire.AuthorityRequest) -> ApiCall[wire.AuthorityView]:
    return ApiCall("POST", f"/dataset/v1alpha1/datasets/{part(ref)}/authority", lambda: wire.AuthorityView, request)


def authority_dataset_key(ref: str) -> ApiCall[wire.DatasetKey]:
    return ApiCall("POST", f"/dataset/v1alpha1/datasets/{part(ref)}/authority/key", lambda: wire.DatasetKey)


def authority_draft_authority(ref: str, request: wire.AuthorityDraftRequest) -> ApiCall[wire.AuthorityDraft]:
    return ApiCall("POST", f"/dataset/v1alpha1/datasets/{part(ref)}/authority/draft", lambda: wire.AuthorityDraft, request)


def authority_show_authority(ref: str) -> ApiCall[wire.AuthorityView]:
    return ApiCall("GET", f"/dataset/v1alpha1/datasets/{part(ref)}/authority", lambda: wire.AuthorityView)


def backups_backup(request: wire.BackupRequest) -> ApiCall[wire.TaskRef]:
    return ApiCall("POST", "/node/v1alpha1/backup", lambda: wire.TaskRef, request)


def collection_collect(request: wire.CollectRequest) -> ApiCall[wire.TaskRef]:
    return ApiCall("POST", "/node/v1alpha1/collect", lambda: wire.TaskRef, request)


def datasets_block(ref: str, at: str) -> ApiCall[wire.BlockDetail]:
    return ApiCall("GET", f"/dataset/v1alpha1/datasets/{part(ref)}/blocks/{part(at)}", lambda: wire.BlockDetail)


def datasets_commit_point(ref: str) -> ApiCall[wire.CommitPointView]:
    return ApiCall("GET", f"/dataset/v1alpha1/datasets/{part(ref)}/commit-point", lambda: wire.CommitPointView)


def datasets_describe(ref: str, *, profile: bool | None = None) -> ApiCall[wire.DatasetDetail]:
    return ApiCall("GET", f"/dataset/v1alpha1/datasets/{part(ref)}/detail", lambda: wire.DatasetDetail, query={"profile": profile})


def datasets_log(ref: str, *, kind: Sequence[str] | None = None, limit: int | None = None, before: str | None = None, epoch: int | None = None) -> ApiCall[list[wire.BlockView]]:
    return ApiCall("GET", f"/dataset/v1alpha1/datasets/{part(ref)}/blocks", lambda: list[wire.BlockView], query={"kind": kind, "limit": limit, "before": before, "epoch": epoch})


def datasets_schema(ref: str) -> ApiCall[wire.Schema]:
    return ApiCall("GET", f"/dataset/v1alpha1/datasets/{part(ref)}/schema", lambda: wire.Schema)


def datasets_snapshot(ref: str) -> ApiCall[dict[str, Any]]:
    return ApiCall("GET", f"/dataset/v1alpha1/datasets/{part(ref)}/snapshot", lambda: dict[str, Any])


def datasets_tail(ref: str, *, limit: int | None = None) -> ApiCall[wire.Records]:
    return ApiCall("GET", f"/dataset/v1alpha1/datasets/{part(ref)}/tail", lambda: wire.Records, query={"limit": limit})


def declarations_rotate_secrets() -> ApiCall[wire.SecretRotation]:
    return ApiCall("POST", "/config/v1alpha1/keys/rotation", lambda: wire.SecretRotation)


def declarations_secret_key() -> ApiCall[wire.SecretKey]:
    return ApiCall("GET", "/config/v1alpha1/keys", lambda: wire.SecretKey)


def endpoints_drop(name: str, *, number: int | None = None) -> ApiCall[wire.EndpointView]:
    return ApiCall("DELETE", f"/source/v1alpha1/sources/{part(name)}/waiting", lambda: wire.EndpointView, query={"number": number})


def endpoints_show(name: str) -> ApiCall[wire.EndpointView]:
    return ApiCall("GET", f"/source/v1alpha1/sources/{part(name)}/endpoint", lambda: wire.EndpointView)


def flow_advance(ref: str) -> ApiCall[wire.TaskRef]:
    return ApiCall("PUT", f"/dataset/v1alpha1/datasets/{part(ref)}/upper", lambda: wire.TaskRef)


def flow_alter_schema(ref: str, request: wire.AlterSchemaRequest) -> ApiCall[wire.TaskRef]:
    return ApiCall("POST", f"/dataset/v1alpha1/datasets/{part(ref)}/schema", lambda: wire.TaskRef, request)


def flow_correct(ref: str, request: wire.CorrectRequest) -> ApiCall[wire.TaskRef]:
    return ApiCall("POST", f"/dataset/v1alpha1/datasets/{part(ref)}/correct", lambda: wire.TaskRef, request)


def flow_export(ref: str, request: wire.ExportRequest) -> ApiCall[wire.TaskRef]:
    return ApiCall("POST", f"/dataset/v1alpha1/datasets/{part(ref)}/export", lambda: wire.TaskRef, request)


def flow_import(request: wire.ImportRequest) -> ApiCall[wire.TaskRef]:
    return ApiCall("POST", "/node/v1alpha1/import", lambda: wire.TaskRef, request)


def flow_ingest(ref: str, request: wire.IngestRequest) -> ApiCall[wire.TaskRef]:
    return ApiCall("POST", f"/dataset/v1alpha1/datasets/{part(ref)}/ingest", lambda: wire.TaskRef, request)


def flow_pull(request: wire.PullRequest) -> ApiCall[wire.TaskRef]:
    return ApiCall("POST", "/node/v1alpha1/pull", lambda: wire.TaskRef, request)


def flow_set_watermark(ref: str, request: wire.WatermarkRequest) -> ApiCall[wire.TaskRef]:
    return ApiCall("PUT", f"/dataset/v1alpha1/datasets/{part(ref)}/watermark", lambda: wire.TaskRef, request)


def flows_backfill(name: str, request: wire.BackfillRequest) -> ApiCall[wire.BackfillView]:
    return ApiCall("POST", f"/flow/v1alpha1/flows/{part(name)}/backfill", lambda: wire.BackfillView, request)


def flows_pause(name: str) -> ApiCall[wire.ResourceManifest]:
    return ApiCall("PUT", f"/flow/v1alpha1/flows/{part(name)}/pause", lambda: wire.ResourceManifest)


def flows_resume(name: str) -> ApiCall[wire.ResourceManifest]:
    return ApiCall("DELETE", f"/flow/v1alpha1/flows/{part(name)}/pause", lambda: wire.ResourceManifest)


def flows_run(name: str, request: wire.FlowRunRequest) -> ApiCall[wire.ResourceManifest]:
    return ApiCall("POST", f"/flow/v1alpha1/flows/{part(name)}/run", lambda: wire.ResourceManifest, request)


def gaps_run(ref: str, request: wire.GapRequest) -> ApiCall[wire.TaskRef]:
    return ApiCall("POST", f"/dataset/v1alpha1/datasets/{part(ref)}/gap", lambda: wire.TaskRef, request)


def holds_list(*, dataset: str | None = None) -> ApiCall[list[wire.HoldView]]:
    return ApiCall("GET", "/node/v1alpha1/holds", lambda: list[wire.HoldView], query={"dataset": dataset})


def holds_release(id_: str, *, fence: int | None = None) -> ApiCall[wire.HoldView]:
    return ApiCall("DELETE", f"/node/v1alpha1/holds/{part(id_)}", lambda: wire.HoldView, query={"fence": fence})


def holds_renew(id_: str, request: wire.HoldRenewal) -> ApiCall[wire.HoldView]:
    return ApiCall("PUT", f"/node/v1alpha1/holds/{part(id_)}", lambda: wire.HoldView, request)


def holds_take(request: wire.HoldRequest) -> ApiCall[wire.HoldView]:
    return ApiCall("POST", "/node/v1alpha1/holds", lambda: wire.HoldView, request)


def journal_recovery_sign_again(request: wire.SignRequest) -> ApiCall[wire.SigningView]:
    return ApiCall("POST", "/node/v1alpha1/signers", lambda: wire.SigningView, request)


def lineage_graph(ref: str) -> ApiCall[wire.LineageGraph]:
    return ApiCall("GET", f"/dataset/v1alpha1/datasets/{part(ref)}/lineage", lambda: wire.LineageGraph)


def lineage_trace(ref: str, request: wire.LineageRequest) -> ApiCall[wire.TaskRef]:
    return ApiCall("POST", f"/dataset/v1alpha1/datasets/{part(ref)}/lineage", lambda: wire.TaskRef, request)


def mirrors_add(request: wire.MirrorRequest) -> ApiCall[wire.TaskRef]:
    return ApiCall("POST", "/node/v1alpha1/mirrors", lambda: wire.TaskRef, request)


def mirrors_pause(ref: str) -> ApiCall[wire.ResourceManifest]:
    return ApiCall("PUT", f"/net/v1alpha1/mirrors/{part(ref)}/pause", lambda: wire.ResourceManifest)


def mirrors_resume(ref: str) -> ApiCall[wire.ResourceManifest]:
    return ApiCall("DELETE", f"/net/v1alpha1/mirrors/{part(ref)}/pause", lambda: wire.ResourceManifest)


def networks_accept(request: wire.InvitationText) -> ApiCall[wire.ResourceManifest]:
    return ApiCall("POST", "/node/v1alpha1/invitations/accept", lambda: wire.ResourceManifest, request)


def networks_invitation(request: wire.InvitationText) -> ApiCall[wire.InvitationView]:
    return ApiCall("POST", "/node/v1alpha1/invitations", lambda: wire.InvitationView, request)


def networks_invitations() -> ApiCall[list[wire.InvitationState]]:
    return ApiCall("GET", "/node/v1alpha1/invitations", lambda: list[wire.InvitationState])


def networks_invite(name: str, request: wire.InvitationRequest) -> ApiCall[wire.InvitationView]:
    return ApiCall("POST", f"/net/v1alpha1/networks/{part(name)}/invitations", lambda: wire.InvitationView, request)


def networks_revoke(id_: str) -> ApiCall[wire.InvitationState]:
    return ApiCall("DELETE", f"/node/v1alpha1/invitations/{part(id_)}", lambda: wire.InvitationState)


def page_open() -> ApiCall[wire.PageAddress]:
    return ApiCall("POST", "/node/v1alpha1/page", lambda: wire.PageAddress)


def peers_connect(request: wire.ConnectRequest) -> ApiCall[wire.ResourceManifest]:
    return ApiCall("POST", "/node/v1alpha1/peers", lambda: wire.ResourceManifest, request)


def peers_holders() -> ApiCall[list[wire.PeerHoldings]]:
    return ApiCall("GET", "/node/v1alpha1/holders", lambda: list[wire.PeerHoldings])


def peers_netcheck() -> ApiCall[list[wire.Probe]]:
    return ApiCall("GET", "/node/v1alpha1/netcheck", lambda: list[wire.Probe])


def policies_accept_rules(request: wire.AcceptRequest) -> ApiCall[wire.NetworkRulesView]:
    return ApiCall("POST", "/node/v1alpha1/policy/accept", lambda: wire.NetworkRulesView, request)


def policies_policy() -> ApiCall[wire.PolicyView]:
    return ApiCall("GET", "/node/v1alpha1/policy", lambda: wire.PolicyView)


def policies_publish_rules(request: wire.NetworkRulesRequest) -> ApiCall[wire.NetworkRulesView]:
    return ApiCall("POST", "/node/v1alpha1/policy/network", lambda: wire.NetworkRulesView, request)


def portals_audit(ref: str, request: wire.AuditRequest) -> ApiCall[wire.TaskRef]:
    return ApiCall("POST", f"/dataset/v1alpha1/datasets/{part(ref)}/audit", lambda: wire.TaskRef, request)


def portals_open(ref: str) -> ApiCall[wire.PortalOpening]:
    return ApiCall("GET", f"/dataset/v1alpha1/datasets/{part(ref)}/opening", lambda: wire.PortalOpening)


def proving_prove(ref: str, request: wire.ProveRequest) -> ApiCall[wire.TaskRef]:
    return ApiCall("POST", f"/dataset/v1alpha1/datasets/{part(ref)}/prove", lambda: wire.TaskRef, request)


def publications_list() -> ApiCall[list[wire.PublicationView]]:
    return ApiCall("GET", "/node/v1alpha1/publications", lambda: list[wire.PublicationView])


def publications_publish(request: wire.PublishRequest) -> ApiCall[wire.TaskRef]:
    return ApiCall("POST", "/node/v1alpha1/publications", lambda: wire.TaskRef, request)


def publications_withdraw(ref: str) -> ApiCall[wire.PublicationView]:
    return ApiCall("DELETE", f"/node/v1alpha1/publications/{part(ref)}", lambda: wire.PublicationView)


def pushing_push(request: wire.PushRequest) -> ApiCall[wire.TaskRef]:
    return ApiCall("POST", "/node/v1alpha1/push", lambda: wire.TaskRef, request)


def raw_attest(ref: str, request: wire.AttestRawRequest) -> ApiCall[wire.TaskRef]:
    return ApiCall("POST", f"/dataset/v1alpha1/datasets/{part(ref)}/raw/attest", lambda: wire.TaskRef, request)


def raw_bind(ref: str) -> ApiCall[wire.TaskRef]:
    return ApiCall("POST", f"/dataset/v1alpha1/datasets/{part(ref)}/raw/bind", lambda: wire.TaskRef)


def raw_drop(ref: str) -> ApiCall[wire.RawView]:
    return ApiCall("DELETE", f"/dataset/v1alpha1/datasets/{part(ref)}/raw/captures", lambda: wire.RawView)


def raw_replay(ref: str) -> ApiCall[wire.TaskRef]:
    return ApiCall("POST", f"/dataset/v1alpha1/datasets/{part(ref)}/raw/replay", lambda: wire.TaskRef)


def raw_show(ref: str) -> ApiCall[wire.RawView]:
    return ApiCall("GET", f"/dataset/v1alpha1/datasets/{part(ref)}/raw", lambda: wire.RawView)


def renditions_abandon(ref: str, number: str) -> ApiCall[wire.RenditionView]:
    return ApiCall("DELETE", f"/dataset/v1alpha1/datasets/{part(ref)}/renditions/{part(number)}", lambda: wire.RenditionView)


def renditions_create(ref: str, request: wire.RenditionRequest) -> ApiCall[wire.TaskRef]:
    return ApiCall("POST", f"/dataset/v1alpha1/datasets/{part(ref)}/renditions", lambda: wire.TaskRef, request)


def renditions_hand_over(ref: str, number: str, request: wire.HandoverRequest) -> ApiCall[wire.TaskRef]:
    return ApiCall("POST", f"/dataset/v1alpha1/datasets/{part(ref)}/renditions/{part(number)}/handover", lambda: wire.TaskRef, request)


def renditions_list(ref: str) -> ApiCall[list[wire.RenditionView]]:
    return ApiCall("GET", f"/dataset/v1alpha1/datasets/{part(ref)}/renditions", lambda: list[wire.RenditionView])


def renditions_reading(ref: str) -> ApiCall[wire.HandoverReading]:
    return ApiCall("GET", f"/dataset/v1alpha1/datasets/{part(ref)}/handover", lambda: wire.HandoverReading)


def resolving_resolve(ref: str, request: wire.ResolveRequest) -> ApiCall[wire.Resolved]:
    return ApiCall("POST", f"/dataset/v1alpha1/datasets/{part(ref)}/trust/resolve", lambda: wire.Resolved, request)


def rewriting_rewrite(ref: str, request: wire.RewriteRequest) -> ApiCall[wire.TaskRef]:
    return ApiCall("POST", f"/dataset/v1alpha1/datasets/{part(ref)}/rewrite", lambda: wire.TaskRef, request)


def schemas_explain(word: str, *, path: str | None = None) -> ApiCall[wire.Explanation]:
    return ApiCall("GET", f"/resource/v1alpha1/types/{part(word)}", lambda: wire.Explanation, query={"path": path})


def schemas_schema(path: str) -> ApiCall[dict[str, Any]]:
    return ApiCall("GET", f"/schemas/{part(path)}", lambda: dict[str, Any])


def schemas_types() -> ApiCall[list[wire.TypeView]]:
    return ApiCall("GET", "/resource/v1alpha1/types", lambda: list[wire.TypeView])


def search_card(ref: str) -> ApiCall[wire.CardView]:
    return ApiCall("GET", f"/node/v1alpha1/cards/{part(ref)}", lambda: wire.CardView)


def search_search(request: wire.SearchRequest) -> ApiCall[wire.SearchView]:
    return ApiCall("POST", "/node/v1alpha1/search", lambda: wire.SearchView, request)


def trust_fetch_evidence(id_: str) -> ApiCall[wire.TaskRef]:
    return ApiCall("POST", f"/node/v1alpha1/evidence/{part(id_)}", lambda: wire.TaskRef)


def trust_lift(request: wire.LiftRequest) -> ApiCall[list[str]]:
    return ApiCall("POST", "/node/v1alpha1/validators/lift", lambda: list[str], request)


def trust_show(ref: str) -> ApiCall[wire.TrustView]:
    return ApiCall("GET", f"/dataset/v1alpha1/datasets/{part(ref)}/trust", lambda: wire.TrustView)


def unmanaged_adopt(ref: str, request: wire.AdoptRequest) -> ApiCall[wire.AdoptedView]:
    return ApiCall("PUT", f"/node/v1alpha1/unmanaged/{part(ref)}/name", lambda: wire.AdoptedView, request)


def unmanaged_delete(ref: str) -> ApiCall[wire.UnmanagedView]:
    return ApiCall("DELETE", f"/node/v1alpha1/unmanaged/{part(ref)}", lambda: wire.UnmanagedView)


def unmanaged_get(ref: str) -> ApiCall[wire.UnmanagedView]:
    return ApiCall("GET", f"/node/v1alpha1/unmanaged/{part(ref)}", lambda: wire.UnmanagedView)


def unmanaged_list() -> ApiCall[list[wire.UnmanagedView]]:
    return ApiCall("GET", "/node/v1alpha1/unmanaged", lambda: list[wire.UnmanagedView])


def verification_verify(ref: str, request: wire.VerifyRequest) -> ApiCall[wire.TaskRef]:
    return ApiCall("POST", f"/dataset/v1alpha1/datasets/{part(ref)}/verify", lambda: wire.TaskRef, request)


def visibility_publish(request: wire.VisibilityRequest) -> ApiCall[list[wire.VisibilityView]]:
    return ApiCall("POST", "/node/v1alpha1/publish", lambda: list[wire.VisibilityView], request)


def visibility_share(request: wire.ShareRequest) -> ApiCall[wire.VisibilityView]:
    return ApiCall("POST", "/node/v1alpha1/share", lambda: wire.VisibilityView, request)


def visibility_unpublish(request: wire.VisibilityRequest) -> ApiCall[list[wire.VisibilityView]]:
    return ApiCall("POST", "/node/v1alpha1/unpublish", lambda: list[wire.VisibilityView], request)
