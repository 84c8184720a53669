"""Names the module of each name of the package. Written by ``python -m odfd.api.wire_names``."""

from typing import Final

_NAMES: Final = {
    "authority": """
        AuthorityDraft AuthorityDraftRequest AuthorityRequest AuthorityView DatasetKey EpochView SignRequest
        SignatureText SignerView SigningView WriterView
    """,
    "cards": """
        CardArea CardColumn CardRows CardWords
    """,
    "datasets": """
        AdoptRequest AdoptedView ApplyItem ApplyRequest ApplyResult Attachment BlockDetail BlockView Column
        ColumnProfile CommitPointView CorrectRequest CorrectResult CountRange DataProfile DatasetDetail
        DatasetStanding DatasetState DatasetView Frontiers Growth IngestRequest License ManifestText PullItem
        PullRequest PullResult Records Reliance RenameRequest RowCounts RowTotals Schema SkippedFile
        UnmanagedView Upload WatermarkRequest
    """,
    "lineage": """
        Lineage LineageGraph LineageInput LineageNode LineageOrigin LineagePath LineageRecord LineageRequest
        LineageRow LineageStep
    """,
    "node": """
        BackfillRequest BackfillView BackupRequest BackupResult CollectRequest CollectResult CollectedObject
        DiskView EngineProcess EngineView EventView FlowCounts FlowRunRequest FlowState LogLineView NodeState
        PageAddress Probe SettingsView Status TaskRef TaskState
    """,
    "pins": """
        ENGINE_NOT_HERE UnheldPin
    """,
    "portals": """
        AuditDifference AuditRequest AuditResult PortalFacts PortalOpening
    """,
    "queries": """
        HoldRenewal HoldRequest HoldView LogPosition Pin QueryEnd QueryHead QueryRequest ReadStanding SlicesEnd
        SlicesRequest TimeClause
    """,
    "raw": """
        AttestRawRequest CaptureView CapturedFileView GapRequest GapView LostRange RawAttestResult RawChainView
        RawDifference RawReplayResult RawView
    """,
    "renditions": """
        HandoverReading HandoverRequest RenditionRequest RenditionView
    """,
    "replication": """
        Announced CardView ConnectRequest Contact InvitationRequest InvitationState InvitationText
        InvitationView MirrorRequest MirrorState NetworkContact NetworkRequest NetworkState PeerHoldings
        PeerName PeerState PublicationView PublishRequest SearchRequest SearchView Share ShareRequest
        SwarmFigures VisibilityRequest VisibilityView WithdrawnCopy
    """,
    "resources": """
        AccountView BESIDE EndpointView Explanation FieldView GraphqlAnswer GraphqlRequest LabelRequest OWNERS
        PROBLEM PushReceipt REFERENCES ResourceChange ResourceList ResourceManifest ResourceManifestNews
        ResourceNews ResourceView SYSTEM_LABELS SecretKey SecretRotation TokenRequest TokenView TypeView V
    """,
    "rewriting": """
        AlterSchemaRequest AlterSchemaResult RewriteRequest RewriteResult
    """,
    "transfer": """
        ExportRequest ImportRequest PushItem PushRequest PushResult TransferResult
    """,
    "trust": """
        AcceptRequest AttestationView Attested CellView Checked ChoiceView DatasetRuleView DecisionView
        EvidenceFetched EvidenceView FailedBlock Failure HeadView IncidentView LiftRequest NetworkRulesRequest
        NetworkRulesView ObservationView PolicyView ProofReport ProveRequest ProvenEngine Reach ResolveRequest
        Resolved SideView TrustFacts TrustView ValidatorState VerifyReport VerifyRequest Why WitnessRulesRequest
        WitnessView
    """,
    "value": """
        Problem Request Value
    """,
}
MODULE_OF_NAME: Final = {name: module for module, names in _NAMES.items() for name in names.split()}
