"""The files of the page: those of the lock file, nothing from elsewhere, no text that becomes markup."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from odfd.control import wire
from odfd.page.application import FOLDER, page_files
from package.libraries import LIBRARIES, LOCK, as_shown
from package.staging import stage
from worlds.eventually import PATIENCE

OURS = sorted(FOLDER.glob("*.js"))
DIGESTS = {
    "axe.min.js": "188dc50c7c68617d089b37fcb2d6376ce35488958baa977cd7c35cc1391e592e",
    "hooks.js": "5c65ab263688d0805862fd0807c779af02c2799c44fda0873dfcb870d0da70a0",
    "htm.js": "ab33dd3f38059b9be4d5f5350128eefb2356639c4e0bbe9d9e8b3ba75847e9e4",
    "marked.js": "c622dc6824a1c92c2d10ea9ede2fc872e46128afcc34b298e6ddee6f387ace8e",
    "preact.js": "225d7a773766e6fb2cfcc45274fe41d2059f5782f3f2c4569aa5132a2d3a2902",
}
"""Of what ``make ui`` writes, by the versions of package/page/package-lock.json."""


def test_libraries_are_those_of_the_lock_file() -> None:
    found = {each.target.name: hashlib.sha256(each.target.read_bytes()).hexdigest() for each in LIBRARIES
             if each.target.suffix == ".js"}  # fmt: skip
    assert found == DIGESTS, "make ui writes them; change these digests with the lock file alone"


@pytest.mark.slow
def test_they_are_made_again_to_the_same_bytes(tmp_path: Path) -> None:
    """From npm's packages, where they can be had."""
    if shutil.which("npm") is None:
        pytest.skip("no npm here")
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(LOCK / name, tmp_path / name)
    command = [
        "npm",
        "ci",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--silent",
        "--prefer-offline",
        "--fetch-retries=0",
    ]
    try:
        subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=PATIENCE, check=True)
    except subprocess.SubprocessError:
        pytest.skip("npm cannot give the packages here")
    for each in LIBRARIES:
        made = as_shown((tmp_path / "node_modules" / each.source).read_bytes(), each.target)
        assert made == each.target.read_bytes(), each.target.name


def test_versions_are_pinned_with_hashes() -> None:
    wanted = json.loads((LOCK / "package.json").read_text())
    locked = json.loads((LOCK / "package-lock.json").read_text())["packages"]
    for name, version in (wanted["dependencies"] | wanted["devDependencies"]).items():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version), name
        assert locked[f"node_modules/{name}"]["version"] == version
        assert locked[f"node_modules/{name}"]["integrity"].startswith("sha512-")


def test_each_library_has_its_license_beside_it() -> None:
    for each in LIBRARIES:
        if each.target.suffix == ".js" and each.target.parent.name == "vendor" and each.target.name != "hooks.js":
            assert each.target.with_suffix(".LICENSE").is_file()


def test_scripts_import_files_that_are_there() -> None:
    for path in OURS:
        for name in re.findall(r'(?:from |import\()"([^"]+)"', path.read_text()):
            assert name in page_files(), f"{path.name} imports {name}"


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_no_text_becomes_markup_or_code(path: Path) -> None:
    """What the browser's policy would stop is not tried either."""
    text = path.read_text()
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "srcdoc",
        "DOMParser",
    ):
        assert word not in text
    assert "https://" not in text, "nothing is fetched from elsewhere"


def test_all_scripts_that_the_page_begins_with_are_fetched_at_once() -> None:
    """All that ``main.js`` imports, however far; what it asks for later is not among them."""
    named = set(re.findall(r'(?:src|href)="([^"]+\.js)"', (FOLDER / "index.html").read_text()))
    reached, waiting = set(), ["/main.js"]
    while waiting:
        if (path := waiting.pop()) not in reached:
            reached.add(path)
            waiting += re.findall(r'^import [^(].* from "([^"]+)"', page_files()[path].content.decode(), re.MULTILINE)
    assert named == reached
    assert len(reached) < len(page_files()) / 2


def test_every_script_is_imported_by_another() -> None:
    scripts = {path: file.content.decode() for path, file in page_files().items() if path.endswith(".js")}
    imported = set(re.findall(r'(?:from |import\()"([^"]+)"', "".join(scripts.values())))
    assert imported == {*scripts} - {"/main.js"}


def test_html_holds_no_script_and_no_style() -> None:
    text = (FOLDER / "index.html").read_text()
    assert not re.search(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=|https?:", text)


@pytest.mark.slow
def test_the_page_is_inside_the_wheel(tmp_path: Path) -> None:
    stage(tmp_path / "wheel")
    inside = {path.name for path in (tmp_path / "wheel").rglob("odfd/page/static/**/*") if path.is_file()}
    assert inside == {path.name for path in FOLDER.rglob("*") if path.is_file()}


PINS = (
    wire.UnheldPin(first=3, last=3, digest=f"sha256:{'d' * 64}"),
    wire.UnheldPin(first=4, last=17, digest="latest"),
    wire.UnheldPin(first=4, last=5),
)
SAID = (
    "#3 pinned to sha256:dddddddddddd…: nobody here has this engine",
    "#4-#17 pinned to latest: nobody here has this engine",
    "#4-#5 pinned to no engine: nobody can be held to what they say",
)


@pytest.mark.slow
def test_blocks_whose_engine_nobody_here_has_are_told_as_odfctl_tells_them(tmp_path: Path) -> None:
    assert tuple(each.text for each in PINS) == SAID
    if shutil.which("node") is None:
        pytest.skip("no program here runs scripts of the page")
    for name in ("text", "words"):
        script = (FOLDER / f"{name}.js").read_text().replace('from "/text.js"', 'from "./text.mjs"')
        (tmp_path / f"{name}.mjs").write_text(script)
    asked = f"console.log(JSON.stringify({msgspec.json.encode(PINS).decode()}.map(unheld)))"
    (tmp_path / "ask.mjs").write_text(f'import {{ unheld }} from "./words.mjs";\n{asked}\n')
    told = subprocess.run(["node", "ask.mjs"], cwd=tmp_path, capture_output=True, timeout=PATIENCE, check=True)
    assert tuple(json.loads(told.stdout)) == SAID
