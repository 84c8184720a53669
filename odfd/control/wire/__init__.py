"""Defines the values of the control API. Their JSON (camelCase, times in RFC 3339) is that of ``odfctl -o json``.

Plain values: they hold no truth of their own, are made for one answer and forgotten. Fields are only ever added.
An optional field is ``null`` when it does not apply; hashes and identities are text as the format spells them.
A value is declared in the module of its subject, and is named nowhere else.
"""

from __future__ import annotations

from odfd.control.wire.authority import *
from odfd.control.wire.datasets import *
from odfd.control.wire.flows import *
from odfd.control.wire.lineage import *
from odfd.control.wire.node import *
from odfd.control.wire.publications import *
from odfd.control.wire.queries import *
from odfd.control.wire.replication import *
from odfd.control.wire.resources import *
from odfd.control.wire.rewriting import *
from odfd.control.wire.signing import *
from odfd.control.wire.tasks import *
from odfd.control.wire.trust import *
from odfd.control.wire.value import *
from odfd.control.wire.visibility import *
