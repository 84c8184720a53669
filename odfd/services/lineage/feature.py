"""Makes what traces rows to those that they were derived from."""

from __future__ import annotations

import secrets

from odfd.services.execution.feature import ExecutionFeature
from odfd.services.feature import Feature, Ground
from odfd.services.lineage.service import LineageService
from odfd.services.views.feature import ViewsFeature


class LineageFeature(Feature):
    def __init__(self, ground: Ground, execution: ExecutionFeature, views: ViewsFeature) -> None:
        lineage = LineageService(
            ground.home,
            execution.transform_deps,
            ground.context.board,
            lambda: secrets.token_hex(8),
            views.views,
        )
        self.operations = (lineage,)
