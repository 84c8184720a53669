"""Reads datasets of a running odfd node, or of a repository, as Arrow, and appends rows to those of a node."""

from odfd_client.answer_stream import Answer
from odfd_client.appending import Appended, CommitPoint
from odfd_client.datasets import Dataset, Snapshot
from odfd_client.errors import (
    Bug,
    Conflict,
    Environment,
    HandedOver,
    HoldLost,
    Invalid,
    NotFound,
    OdfdError,
    Refused,
    Remote,
    Unreachable,
)
from odfd_client.expressions import Column, Predicate, col
from odfd_client.handovers import Switched
from odfd_client.holds import HeldTogether, Hold
from odfd_client.proofs import Proof
from odfd_client.relations import Query
from odfd_client.repositories import ReadTogether, Repository, open_repository
from odfd_client.session import Client, connect
from odfd_client.subscription import Progress, Update
from odfd_client.values import DatasetInfo, Pin, Position, ReadStanding

__all__ = [
    "Answer",
    "Appended",
    "Bug",
    "Client",
    "Column",
    "CommitPoint",
    "Conflict",
    "Dataset",
    "DatasetInfo",
    "Environment",
    "HandedOver",
    "HeldTogether",
    "Hold",
    "HoldLost",
    "Invalid",
    "NotFound",
    "OdfdError",
    "Pin",
    "Position",
    "Predicate",
    "Progress",
    "Proof",
    "Query",
    "ReadStanding",
    "ReadTogether",
    "Refused",
    "Remote",
    "Repository",
    "Snapshot",
    "Switched",
    "Unreachable",
    "Update",
    "col",
    "connect",
    "open_repository",
]
