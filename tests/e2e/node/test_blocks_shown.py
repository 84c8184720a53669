"""A dataset's block, shown by the daemon, is the manifest that gives the same bytes again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chain.store.layout import DirectoryChain

pytestmark = pytest.mark.e2e


def test_a_block_of_a_dataset_is_encoded_again(make_daemon: Callable[..., Any], golden: Path, tmp_path: Path) -> None:
    daemon = make_daemon().start()
    daemon.ask("import", str(golden / "airlines"), "--as", "airlines")
    for number, raw in enumerate(DirectoryChain(golden / "airlines").raw_blocks(0, 3)):
        said = daemon.ctl("block", "show", f"airlines@#{number}", "-o", "yaml")
        assert said.code == 0, said
        (tmp_path / "b.yaml").write_text(said.out)
        daemon.ctl("block", "encode", str(tmp_path / "b.yaml"), "-O", str(tmp_path / "b"), "--replace")
        assert (tmp_path / "b").read_bytes() == raw
