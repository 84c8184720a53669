"""The page in a real browser: what it shows, by day, by night and on a telephone, without a mouse, and to whom."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from chain.ids import DatasetId
from config import model
from config.render import toml
from odfd.control import wire
from odfd.resources import selectors
from odfd.store.card_choices import ChosenWords
from odfd.store.catalog import default_name
from worlds.eventually import PATIENCE
from worlds.page_world import ALIKE, UNHELD

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect
expect.set_options(timeout=PATIENCE * 1000)

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
AXE = Path(__file__).with_name("axe.min.js")
LOOKS = {"day": (1200, 800, "light"), "night": (1200, 800, "dark"), "narrow": (375, 720, "light")}
PUSHED = """kind: DatasetSnapshot
version: 1
content:
  name: NAME
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: NdJson, ddlSchema: ['event_time TIMESTAMP']}
      merge: {kind: Append}
"""
LIST = "/dataset/v1alpha1/datasets?limit=5000"
WAITS = re.compile(r"^(Loading|Running)…$")
CUT_OFF = """[...document.querySelectorAll('.scroll:not(.graph)')]
    .filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.getAttribute('aria-label'))"""
"""Tables of which a part is seen only by moving them sideways."""
VIEWS = {
    "datasets": "datasets",
    "dataset": "datasets/austria.cities",
    "rows": "datasets/austria.cities/rows",
    "chain": "datasets/austria.cities/chain",
    "lineage": "datasets/austria.towns/lineage",
    "trust": "datasets/austria.towns.bad/trust",
    "search": "search?q=austria",
    "card": "search/CARD",
    "mirror": "search?q=places",
    "network": "network",
    "work": "work",
    "sql": "sql?q=SELECT city, max(population) AS people FROM \"austria.cities\" GROUP BY city ORDER BY people DESC",
    "events": "events",
    "node": "node",
}  # fmt: skip
AXE_EACH_RUN = ("dataset", "network")


def unheld(lie: Any, name: str) -> str:
    """The id of one of Alice's that Bob may mirror, or has meanwhile."""
    (found,) = (each.id for each in lie.told("search", "search", wire.SearchRequest()).found if each.name == name)
    return str(found)


class Seen:
    """The tab of a session, empty at first, with what goes wrong in it: to open another one for each test takes longer
    than most of them."""

    def __init__(self, context: Any) -> None:
        self.base = context.base
        self.tab = context.tab
        self.wrong: list[str] = []
        self.refused: list[str] = []
        self.asked: list[str] = []
        self._heard = {
            "console": self._said,
            "pageerror": lambda error: self.wrong.append(str(error)),
            "dialog": lambda dialog: (self.wrong.append(dialog.message), dialog.dismiss()),
            "request": lambda request: self.asked.append(request.url),
        }
        for event, hear in self._heard.items():
            self.tab.on(event, hear)

    def leave(self) -> None:
        """Leaves nothing of this test in it."""
        self.tab.unroute_all()
        self.tab.evaluate("sessionStorage.clear()")
        self.tab.goto("about:blank")
        for event, hear in self._heard.items():
            self.tab.remove_listener(event, hear)
        self.tab.set_viewport_size({"width": 1280, "height": 720})
        self.tab.emulate_media(color_scheme="null", reduced_motion="null")

    def _said(self, said: Any) -> None:
        if said.type == "error":
            (self.refused if "requires 'Trusted" in said.text else self.wrong).append(said.text)

    def go(self, path: str) -> None:
        self.tab.goto(f"{self.base}#/{path}")
        self.settled()

    def settled(self) -> None:
        """Not asked in the page itself, whose policy lets nobody evaluate texts."""
        self.tab.locator("h1").first.wait_for()
        expect(self.tab.get_by_text(WAITS)).to_have_count(0)

    def look(self, name: str) -> None:
        wide, high, scheme = LOOKS[name]
        self.tab.set_viewport_size({"width": wide, "height": high})
        self.tab.emulate_media(color_scheme=scheme, reduced_motion="reduce")

    def violations(self) -> list[str]:
        """What axe-core finds, in words."""
        if not self.tab.evaluate("'axe' in window"):
            self.tab.evaluate(AXE.read_text())
        found = self.tab.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{one['id']}: {node['html'][:200]}: {node['failureSummary']}"
            for one in found["violations"]
            for node in one["nodes"]
        ]


@pytest.fixture
def seen(lie_session: Any) -> Iterator[Seen]:
    made = Seen(lie_session)
    yield made
    made.leave()
    assert not made.wrong
    assert not made.refused


@pytest.fixture
def strange(strangers_session: Any) -> Iterator[Seen]:
    made = Seen(strangers_session)
    yield made
    made.leave()
    assert not made.wrong
    assert not made.refused


@pytest.mark.parametrize(
    "view", [pytest.param(view, marks=() if view in AXE_EACH_RUN else pytest.mark.nightly) for view in VIEWS]
)
def test_each_view_can_be_read_by_everybody(seen: Seen, lie: Any, pictures: Path, view: str) -> None:
    """axe-core finds nothing wrong, nothing is wider than the window; pictures are kept in out/page."""
    seen.look("day")
    seen.go(VIEWS[view].replace("CARD", unheld(lie, UNHELD)))
    if view == "sql":
        seen.tab.get_by_role("button", name="Run").click()
        seen.tab.get_by_text("Chart").click()
        seen.tab.wait_for_selector(".bars")
    if view == "mirror":
        seen.tab.get_by_role("button", name="Mirror", exact=True).first.click()
        seen.tab.get_by_text("No quota is set").wait_for()
    if view == "chain":
        seen.tab.locator(".chain summary").first.click()
        seen.tab.wait_for_selector(".difference")
    for look in LOOKS:
        seen.look(look)
        seen.settled()
        assert seen.violations() == [], look
        assert seen.tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), look
        assert look != "narrow" or seen.tab.evaluate(CUT_OFF) == []
        seen.tab.screenshot(path=pictures / f"{view}-{look}.png", full_page=True)


def test_a_stranger_finds_why_a_dataset_is_not_relied_on(seen: Seen) -> None:
    """One look, one click: the first thing that is told leads to the row that differs."""
    seen.go("datasets")
    first = seen.tab.locator(".needs li").first
    assert "austria.towns.bad" in first.inner_text()
    assert "accused" in first.inner_text()
    first.get_by_role("link").click()
    seen.tab.wait_for_selector(".evidence")
    assert "Reach for use: blocks 0 to 5 of 7" in seen.tab.locator(".verdict").inner_text()
    row = seen.tab.locator(".evidence tbody tr").inner_text().split("\t")
    assert row[0] == "0"
    assert "Graz" in row
    assert row[-2:] == ["396480", "296480"]
    before = seen.tab.locator("section", has=seen.tab.get_by_role("heading", name="What happened to it")).inner_text()
    assert "396480 published, 296480 computed" in before, "told also when it was made good"
    seen.go("datasets/austria.towns.bad")
    told = seen.tab.locator(".note.warn", has_text="Found wrong")
    assert "396480 published, 296480 computed" in told.inner_text(), "the overview tells it too"
    told.get_by_role("link", name="What happened, and what holds now").click()
    seen.tab.get_by_role("heading", name="What happened to it").wait_for()


def test_all_of_it_works_without_a_mouse(seen: Seen) -> None:
    seen.go("datasets")
    tab = seen.tab
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Skip to the content"
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.tagName") == "MAIN"
    tab.get_by_role("link", name="bob.cities").focus()
    tab.keyboard.press("Enter")
    tab.wait_for_selector(".tabs")
    seen.settled()
    pull = tab.get_by_role("button", name="Pull", exact=True)
    pull.first.focus()
    tab.keyboard.press("Enter")
    dialog = tab.get_by_role("dialog", name="Pull bob.cities?")
    dialog.wait_for()
    assert "cannot be taken away again" in dialog.inner_text()
    assert "odfctl pull bob.cities" in dialog.inner_text()
    assert seen.violations() == []
    tab.keyboard.press("Escape")
    dialog.wait_for(state="hidden")
    assert tab.evaluate("document.activeElement.textContent") == "Pull", "where one was before"
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.textContent") == "Cancel", "who presses Enter twice does nothing"
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    dialog.get_by_text("up-to-date").wait_for()


def test_what_it_does_is_done_by_the_node(seen: Seen, lie: Any) -> None:
    seen.go("datasets/bob.cities")
    tab = seen.tab

    def act(name: str, said: str, then: str) -> None:
        tab.get_by_role("button", name=name, exact=True).first.click()
        dialog = tab.locator("dialog[open]")
        asked = dialog.get_by_role("heading").inner_text()
        dialog.get_by_role("button", name=name, exact=True).click()
        dialog.get_by_text(said).wait_for()
        tab.get_by_role("button", name=then, exact=True).first.wait_for(state="attached")
        assert dialog.get_by_role("heading").inner_text() == asked, "the question stays beside its answer"
        dialog.get_by_role("button", name="Close").click()

    act("Verify", "In order: ", "Verify")
    before = lie.told("datasets", "describe", "bob.cities").dataset.published
    names = ("Unpublish", "Publish") if before else ("Publish", "Unpublish")
    act(names[0], "It is private." if before else "It is public.", names[1])
    assert lie.told("datasets", "describe", "bob.cities").dataset.published is not before
    seen.go("network")
    act("Pause", "It is paused.", "Resume")
    assert any(one.state == "paused" for one in lie.does("mirrors"))
    act("Resume", "It is resumed.", "Pause")


def test_what_is_announced_is_mirrored_with_a_click(seen: Seen, lie: Any) -> None:
    dataset = unheld(lie, ALIKE)
    seen.go("network")
    seen.tab.get_by_label("Search").fill(dataset)
    seen.tab.get_by_role("button", name="Mirror", exact=True).first.click()
    dialog = seen.tab.locator("dialog[open]")
    assert "keeps them on this disk" in dialog.inner_text()
    assert f"odfctl mirror add {dataset}" in dialog.inner_text()
    dialog.get_by_role("button", name="Mirror", exact=True).click()
    dialog.get_by_text("It is mirrored as").wait_for()
    dialog.get_by_role("button", name="Close").click()
    seen.tab.get_by_text("held here").wait_for()
    assert dataset in {each.id for each in lie.does("mirrors")}


def test_who_may_see_a_dataset_is_chosen_before_it_is_published(seen: Seen, lie: Any) -> None:
    lie.told("visibility", "unpublish", wire.VisibilityRequest(refs=("bob.cities",)))
    seen.go("datasets/bob.cities")
    settings = seen.tab.get_by_role("region", name="Settings")
    assert "no other node: it is private" in settings.inner_text()
    assert "owner=bob" in settings.inner_text()
    assert "data & reproduced as for all" in settings.inner_text()
    seen.tab.get_by_role("button", name="Publish", exact=True).click()
    dialog = seen.tab.get_by_role("dialog", name="Publish bob.cities?")
    assert "Others may see it" in dialog.inner_text()
    dialog.get_by_label("wires").check()
    assert "Members of wires may see it" in dialog.inner_text()
    dialog.get_by_label("Title").fill("Cities that bob counted")
    dialog.get_by_label("Newest rows to show").fill("2")
    dialog.get_by_label("Area").fill("-9.5,46.4,17.2,49")
    dialog.get_by_label("Rows are added").select_option("daily")
    assert "sees its 2 newest rows" in dialog.inner_text()
    said = "--to wires --title 'Cities that bob counted' --sample 2 --frequency daily --area=-9.5,46.4,17.2,49"
    assert f"odfctl publish bob.cities {said}" in dialog.inner_text()
    dialog.get_by_label("Area").fill("9.5,46.4,17.2,149")
    dialog.get_by_role("button", name="Publish", exact=True).click()
    dialog.get_by_text("is not on Earth").wait_for()
    assert [each for each in seen.wrong if "422" not in each] == [], "the browser's own word for a refusal"
    seen.wrong.clear()
    dialog.get_by_label("Area").fill("9.5,46.4,17.2,49")
    dialog.get_by_role("button", name="Publish", exact=True).click()
    seen.tab.get_by_role("button", name="Unpublish", exact=True).wait_for()
    dataset = lie.more.dataset("bob.cities")
    assert lie.more.parts.visibility.within("wires")([dataset])
    assert lie.more.parts.visibility.shown_rows(dataset) == 2
    assert lie.more.parts.visibility.card_words(dataset) == ChosenWords(
        title="Cities that bob counted", area="9.5,46.4,17.2,49", frequency="daily"
    )
    assert not lie.more.parts.visibility.within("others")([dataset])
    dialog.get_by_role("button", name="Close").click()
    seen.tab.get_by_role("button", name="Card", exact=True).click()
    dialog = seen.tab.get_by_role("dialog", name="What does the card of bob.cities say?")
    assert dialog.get_by_label("Area").input_value() == "9.5,46.4,17.2,49"
    dialog.get_by_label("Title").fill("")
    dialog.get_by_label("Newest rows to show").fill("")
    assert "odfctl publish bob.cities --title '' --sample 0" in dialog.inner_text()
    dialog.get_by_role("button", name="Card", exact=True).click()
    dialog.get_by_text("Its next card says so.").wait_for()
    assert lie.more.parts.visibility.shown_rows(dataset) == 0
    assert lie.more.parts.visibility.card_words(dataset) == ChosenWords(area="9.5,46.4,17.2,49", frequency="daily")
    assert not lie.more.parts.visibility.within("others")([dataset]), "a word on a card shows nothing to anybody else"
    lie.told("visibility", "publish", wire.VisibilityRequest(refs=("bob.cities",), area="", frequency=""))
    lie.told("visibility", "publish", wire.VisibilityRequest(refs=("bob.cities",)))


def test_terms_of_a_mirror_are_told(seen: Seen) -> None:
    seen.go("datasets/austria.cities")
    said = seen.tab.get_by_role("region", name="Settings").inner_text()
    assert "What is kept\nall of it" in said
    assert "Met by\nfirst use" in said


def test_names_that_look_alike_are_told_apart(seen: Seen, lie: Any) -> None:
    """Attack T-CARD-02: a name on the page that looks like another's, to have the wrong dataset mirrored.

    Defence: look-alikes are marked, with whole ids and keys, in the list and on the card; before it mirrors, the page
    shows the id.

    By id and key, in the list and in the card, also where that is opened first.
    """
    one, other = (unheld(lie, name) for name in (UNHELD, ALIKE))
    seen.go(f"search/{one}")
    assert "1 other dataset has a name that looks like this one" in seen.tab.inner_text("main")
    seen.go("search")
    for dataset, name in ((one, UNHELD), (other, ALIKE)):
        hit = seen.tab.get_by_role("listitem", name=name)
        assert dataset in hit.inner_text()
        assert "signed by did:key:" in hit.inner_text()
    assert "look" not in seen.tab.get_by_role("listitem", name="austria.cities").inner_text()


def test_what_is_searched_is_found_as_in_a_terminal(seen: Seen, lie: Any) -> None:
    """The same request, by the keyboard alone; the address names it, so that one may go back to it."""
    seen.go("search")
    told = lie.told("search", "search", wire.SearchRequest(words="popul", license="cc-by-4.0"))
    seen.tab.get_by_label("Words, or the id of a dataset").fill("popul")
    seen.tab.get_by_label("License").fill("cc-by-4.0")
    seen.tab.keyboard.press("Enter")
    seen.tab.wait_for_url("**/#/search?q=popul&license=cc-by-4.0")
    seen.settled()
    names = seen.tab.locator(".hit h2 a").all_inner_texts()
    assert names == [each.name for each in told.found]
    assert len(names) > 1
    for words, license in (("austria bad", ""), ("nothing", ""), ("", "MIT")):
        seen.go(f"search?q={words}&license={license}")
        assert seen.tab.locator(".hit").count() == (1 if words == "austria bad" else 0)
    seen.tab.go_back()
    seen.tab.get_by_label("Words, or the id of a dataset").fill(unheld(lie, UNHELD))
    seen.tab.keyboard.press("Enter")
    seen.tab.get_by_role("heading", name=UNHELD).wait_for()
    assert "Nothing checks it." in seen.tab.inner_text("main")


def test_a_hit_is_mirrored_after_it_was_said_what_that_does(seen: Seen, lie: Any) -> None:
    """Under the name that was told, within the quota, on the terms of this node; on request as far as asked."""
    dataset = unheld(lie, UNHELD)
    seen.go("search?q=austria.places")
    tab = seen.tab
    tab.get_by_role("button", name="Mirror", exact=True).focus()
    tab.keyboard.press("Enter")
    dialog = tab.get_by_role("dialog", name=f"Mirror {UNHELD}?")
    dialog.get_by_text("No quota is set").wait_for()
    said = dialog.inner_text()
    assert "data & reproduced" in said, "what must hold"
    assert "met on first use" in said
    assert dataset in said, "what tells it from others"
    assert f"odfctl mirror add {dataset} --as {UNHELD}" in said
    tab.keyboard.press("Enter")
    assert not any(one.id == dataset for one in lie.does("mirrors")), "who presses Enter twice does nothing"
    dialog.get_by_label("Its name here").fill("austria.cities")
    dialog.get_by_role("button", name="Mirror", exact=True).click()
    dialog.get_by_text("is already the name of").wait_for()
    assert [each for each in seen.wrong if "status of 422" not in each] == []
    seen.wrong.clear()
    dialog.get_by_label("Its name here").fill("places.of.austria")
    dialog.get_by_label("How much of it").select_option("1GiB")
    dialog.get_by_label("The hash of a block").fill("f1620" + "0" * 64)
    assert "It is met by hash" in dialog.inner_text()
    assert "--as places.of.austria --keep 1GiB --expect f1620" in dialog.inner_text()
    dialog.get_by_label("The hash of a block").fill("")
    assert seen.violations() == []
    dialog.get_by_role("button", name="Mirror", exact=True).click()
    dialog.get_by_text("It is mirrored as places.of.austria").wait_for()
    (made,) = (each for each in lie.does("mirrors") if each.id == dataset)
    assert (made.name, made.keep) == ("places.of.austria", "1GiB")
    dialog.get_by_role("button", name="Close").click()
    tab.get_by_role("link", name="Held here as places.of.austria").click()
    tab.get_by_role("heading", name="places.of.austria").wait_for()


def test_how_far_a_mirror_came_is_shown_while_it_comes(strange: Seen) -> None:
    """Of a task that ends without a result: what it came to stays, with why it ended."""
    view = {"id": "t9", "kind": "mirror", "target": "x", "state": "running", "unit": "bytes", "message": "blocks 1/2"}
    lines = "".join(f"{json.dumps({**view, 'done': done, 'total': 4096})}\n" for done in (1024, 2048))
    task = {"id": "t9", "kind": "mirror", "target": "x"}
    strange.tab.route("**/node/v1alpha1/mirrors", lambda route: route.fulfill(json=task)
                      if route.request.method == "POST" else route.continue_())  # fmt: skip
    strange.tab.route("**/node/v1alpha1/tasks/t9?follow=1", lambda route: route.fulfill(body=lines))
    strange.go("search")
    strange.tab.get_by_role("button", name="Mirror", exact=True).first.click()
    dialog = strange.tab.locator("dialog[open]")
    dialog.get_by_label("Its name here").fill("x")
    dialog.get_by_role("button", name="Mirror", exact=True).click()
    dialog.get_by_text("2.0 kB of 4.1 kB").wait_for()
    assert dialog.get_by_role("progressbar").get_attribute("value") == "2048"
    assert "the node stopped before it was done" in dialog.inner_text()


def test_what_is_said_before_is_what_the_node_decides(seen: Seen) -> None:
    """Which name is free, which rule is for it, and what mirrors may take, by the same rules as in the node."""
    seen.go("search")

    def answered(name: str, *words: Any) -> Any:
        script = f"async (words) => (await import('/mirror.js')).{name}(...words)"
        return seen.tab.evaluate(script, list(words))

    for text in ("", "f1620", "a.b", "a_b", "%", "nyc.%", "_yc.flights", "NYC.FLIGHTS", "nyc.flights.", "(", "a-b"):
        for name in ("nyc.flights", "a.b", "aXb", "a-b"):
            policy = {"rules": [{"datasets": [text], "use": "data", "name": "r"}]}
            assert bool(answered("ruleFor", policy, name, "use")) is selectors.names([text], name), (text, name)
            assert not answered("ruleFor", policy, name, "serve")
    for limit in (0, 1, 10 << 30):
        settings = model.Settings(limits=model.Limits(mirror_bytes=limit))
        assert answered("limitOf", toml(settings, {})) == limit
    dataset = DatasetId.parse("did:odf:fed01" + "ab" * 32)
    held = [{"id": "other", "name": "Taken"}]
    for name, here in (("free.name", "free.name"), ("taken", None), ("-", None), ("", None), ("p\u0430ypal", None)):
        assert answered("suggested", {"id": str(dataset), "name": name}, held) == (here or default_name(dataset))


def test_rows_are_shown_a_page_at_a_time(seen: Seen) -> None:
    seen.go("datasets/bob.cities/rows")

    def offsets() -> list[int]:
        return [int(text) for text in seen.tab.locator("tbody th").all_inner_texts()]

    assert offsets() == [*reversed(range(70, 120))]
    for newest in (70, 20):
        seen.tab.get_by_role("button", name="Older").click()
        seen.tab.get_by_role("rowheader", name=str(newest - 1), exact=True).wait_for()
        assert offsets() == [*reversed(range(max(0, newest - 50), newest))]
    assert seen.tab.get_by_role("button", name="Older").is_disabled()
    seen.tab.get_by_role("button", name="Newer").click()
    seen.tab.get_by_role("rowheader", name="69", exact=True).wait_for()


def test_datasets_are_found_by_label_kind_and_state(seen: Seen) -> None:
    seen.go("datasets")
    rows = seen.tab.locator("section[aria-label='List of datasets'] tbody tr")
    seen.tab.get_by_text("owner=bob").wait_for()
    seen.tab.get_by_label("Search").fill("owner=bob")
    expect(rows).to_have_count(1)
    seen.tab.get_by_label("Search").fill("")
    seen.tab.get_by_label("State").select_option("accused")
    expect(rows).to_have_count(1)
    seen.tab.get_by_label("Kind").select_option("root")
    expect(rows).to_have_count(0)
    seen.tab.get_by_text("None is like this.").wait_for()


def test_sizes_are_listed_and_what_is_not_here_is_searched_for(seen: Seen) -> None:
    seen.go("datasets")
    rows = seen.tab.locator("section[aria-label='List of datasets'] tbody tr")
    seen.tab.get_by_role("columnheader", name="Size").wait_for()
    assert all("kB" in each for each in rows.all_inner_texts())
    seen.tab.get_by_label("Search").fill("nowhere")
    seen.tab.get_by_role("link", name="Search the network for it").click()
    seen.tab.wait_for_url("**/#/search?q=nowhere")
    seen.tab.get_by_text("None is like this.").wait_for()


def test_who_holds_what_and_who_signed_what_is_listed(seen: Seen, lie: Any) -> None:
    seen.go("network")
    holders = seen.tab.get_by_role("region", name="Who holds what")
    assert set(holders.locator("table").get_by_role("link").all_inner_texts()) >= {"austria.cities", "austria.towns"}
    (peer,) = lie.told("peers", "states")
    on_map = holders.get_by_role("link", name=f"{peer}: serves")
    on_map.focus()
    seen.tab.keyboard.press("Enter")
    holders.get_by_text("Show all peers").wait_for()
    assert on_map.get_attribute("aria-current") == "true"
    seen.go("datasets/austria.cities/trust")
    heads = seen.tab.get_by_role("table", name="Signed heads, newest first")
    told = lie.told("trust", "show", "austria.cities").heads
    assert heads.locator("tbody tr").count() == len(told) == 1


def test_the_rate_of_a_transfer_is_what_grew_between_two_looks(strange: Seen) -> None:
    """Bytes of a mirror, as the node tells them once and again. The column that comes closes no open question."""
    have = iter(range(0, 10**9, 10**6))

    def answer(route: Any) -> None:
        said = {"state": "syncing", "held": 0, "peers": 1}
        done = next(have)
        more = {"blocks": None, "bytes": {"have": done, "want": 10**9}, "message": "asked one peer" if done else ""}
        told = {"https://w3id.org/odfd/schemas/resource/v1alpha1/State": {"value": {**said, **more}}}
        one = {"headers": {"id": "1", "name": "moving"}, "spec": {"source": "x"}, "status": {"conditions": told}}
        route.fulfill(json={"resourceVersion": "1", "items": [one]})

    strange.tab.route("**/net/v1alpha1/mirrors?*", answer)
    strange.go("network")
    strange.tab.get_by_role("button", name="Pause", exact=True).click()
    strange.tab.locator("th", has_text="Message").wait_for(state="attached")
    assert strange.tab.get_by_role("dialog", name="Pause moving?").is_visible()
    strange.tab.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    strange.tab.get_by_role("table", name="Mirrors").get_by_text(re.compile(r"^\d.* [kM]B/s$")).wait_for()


def test_events_come_as_they_happen(seen: Seen, lie: Any) -> None:
    seen.go("events")
    seen.tab.get_by_text("verdict.mismatch").first.wait_for()

    async def tell() -> None:
        lie.more.events.emit("dataset.appended", "news.of.today", "told now")

    trio.from_thread.run(tell, trio_token=lie._token)
    seen.tab.get_by_text("news.of.today").wait_for()


def test_a_record_is_followed_to_where_it_came_from(seen: Seen) -> None:
    seen.go("datasets/austria.cities/rows")
    seen.tab.get_by_role("link", name="15", exact=True).click()
    seen.settled()
    assert seen.tab.get_by_label("Offset of the record").input_value() == "15"
    seen.tab.get_by_role("button", name="Trace").click()
    seen.tab.get_by_text("city=Wels").wait_for()
    seen.go("datasets/austria.towns/lineage?record=15")
    seen.tab.get_by_label("Only its column").select_option("population")
    seen.tab.get_by_role("button", name="Trace").click()
    seen.tab.get_by_text("What population of record 15 was made of.").wait_for()
    way = seen.tab.get_by_role("table", name="Records on the way")
    assert "austria.cities @ 15 its values are in it" in way.inner_text()


def test_lineage_is_clicked_through(seen: Seen) -> None:
    seen.go("datasets/austria.towns/lineage")
    seen.tab.locator(".graph a", has_text="austria.cities").click()
    seen.tab.wait_for_url("**/#/datasets/austria.cities/lineage")
    seen.tab.locator(".graph .downstream", has_text="austria.towns.bad").wait_for()


def test_an_address_opens_one_browser(browser: Any, lie: Any) -> None:
    address = lie.address()
    mine, other = browser.new_context(), browser.new_context()
    for context in (mine, other):
        context.set_default_timeout(PATIENCE * 1000)
    try:
        tab = mine.new_page()
        tab.goto(address)
        tab.get_by_role("heading", name="Datasets").wait_for()
        assert "token" not in tab.url, "nobody finds it in the history"
        again = mine.new_page()
        again.goto(tab.url)
        again.get_by_role("heading", name="Datasets").wait_for()
        stranger = other.new_page()
        stranger.goto(address)
        stranger.get_by_role("heading", name="This page is closed").wait_for()
        assert "opened before" in stranger.inner_text("body")
        stranger.goto(tab.url)
        stranger.reload()
        stranger.get_by_role("heading", name="This page is closed").wait_for()
        tab.get_by_role("button", name="Leave").click()
        tab.get_by_role("heading", name="This page is closed").wait_for()
    finally:
        mine.close()
        other.close()


def test_a_thousand_datasets_are_shown_by_few_questions(strange: Seen, pictures: Path) -> None:
    """What the list asks does not grow with what is in it; a page of it is drawn, by the files that it needs.

    What takes the node longer, and the files of other views, wait until the list was answered.
    """
    before: list[str] = []
    strange.tab.on("requestfinished", lambda request: request.url.endswith(LIST) and before.extend(strange.asked))
    strange.go("datasets?q=station")
    strange.tab.wait_for_selector("tbody tr")
    took = strange.tab.evaluate("performance.now()")
    (pictures / "load.txt").write_text(f"{took:.0f} ms from nothing to a list of 1,000 datasets\n")
    assert strange.tab.locator("section[aria-label='List of datasets'] tbody tr").count() == 50
    asked = [one for one in strange.asked if "/v1alpha1/" in one]
    assert len(asked) == len(set(asked)) <= 4, asked
    paths = [one.partition("?")[0].rpartition("/")[2] for one in before if "/v1alpha1/" in one]
    assert paths == ["datasets", "status"]
    assert sum(one.endswith(".js") for one in before) == 10, before
    strange.tab.get_by_role("button", name="Next").click()
    assert "Page 2 of 20" in strange.tab.inner_text("main")
    strange.tab.get_by_label("Search").fill("station-0777")
    strange.tab.get_by_text("1 of 1,000 datasets").wait_for()


REFUSED = """() => {
  const tried = (act) => { try { act(); return 'done'; } catch (error) { return error.name; } };
  return [tried(() => { document.body.innerHTML = '<b>x</b>'; }),
          tried(() => { document.createElement('script').text = '1'; }),
          tried(() => { document.createElement('script').src = 'https://evil.example/x.js'; })];
}"""
ELSEWHERE = """() => [...document.querySelectorAll('*')].filter((one) =>
    ['SCRIPT', 'IFRAME', 'STYLE', 'OBJECT', 'EMBED', 'BASE', 'META', 'LINK', 'FORM', 'IMG', 'INPUT']
      .includes(one.tagName)
    && !one.closest('head') && !(one.tagName === 'IMG' && one.getAttribute('src') === '/icon.svg')
    && !(one.tagName === 'FORM' && !one.hasAttribute('action')) && !(one.tagName === 'INPUT' && one.closest('form'))
    || [...one.attributes].some((each) => each.name.startsWith('on') || each.name === 'srcdoc')
    || (one.hasAttribute('href') && !one.closest('head') && !/^(#|http:|https:)/.test(one.getAttribute('href')))
  ).map((one) => one.outerHTML.slice(0, 200))"""


@pytest.mark.parametrize("view", VIEWS)
def test_what_strangers_write_stays_text(strange: Seen, view: str) -> None:
    """Attack T-CARD-03: markup, scripts and characters that steer a display, in names, cards, rows and messages on the
    page.

    Defence: all of it becomes text nodes, with such characters as their code points; the content policy allows no
    script but the page's files, and no markup made of text.

    Names, descriptions, readmes, rows, messages: no script runs, nothing is fetched, nothing becomes an element.
    """
    name = "%3Cimg src=x onerror=window.harmed=1%3E"
    _, _, tab = VIEWS[view].partition("/")
    path = VIEWS[view] if not tab or view == "card" else "/".join(["datasets", name, *tab.split("/")[1:]])
    strange.go(path)
    for closed in strange.tab.locator("main summary").all()[:5]:
        closed.click()
    if view == "sql":
        strange.tab.get_by_role("button", name="Run").click()
    if view == "mirror":
        strange.tab.get_by_role("button", name="Mirror", exact=True).first.click()
    strange.settled()
    assert strange.tab.evaluate("window.harmed") is None
    assert strange.tab.evaluate(ELSEWHERE) == []
    assert all(one.startswith((strange.base, "data:")) for one in strange.asked), strange.asked
    text = strange.tab.inner_text("body")
    assert "<script>window.harmed" in text, "it is shown as what it is"
    assert not set(text) & set("\u202e\u2066\u200b\x1b"), "nothing steers how it is shown"


def test_a_check_that_found_something_is_not_shown_as_done(strange: Seen) -> None:
    strange.go("work")
    row = strange.tab.get_by_role("row").filter(has_text="verify")
    assert "window.harmed" in row.inner_text(), "what was found"
    expect(row.locator(".state.bad")).to_have_text("not ok")


def test_a_hostile_readme_is_text(strange: Seen) -> None:
    """Attack T-CARD-03: a readme that runs a script, loads a tracking picture, or disguises a link.

    Defence: Markdown becomes elements of an allow-list; HTML in it stays text, images are named and not loaded, a link
    leads to the web and shows its host.
    """
    strange.go("datasets/x")
    readme = strange.tab.locator(".readme").first
    readme.get_by_text("Hello").wait_for()
    strange.tab.wait_for_selector(".readme h3")
    links = readme.locator("a").evaluate_all("all => all.map((one) => [one.href, one.rel])")
    assert {href for href, _ in links} == {"https://evil.example/x", "https://example.org/"}
    assert all("noopener" in rel and "noreferrer" in rel for _, rel in links)
    assert "<img src=x onerror=window.harmed='html'>" in readme.inner_text()
    assert "(evil.example)" in readme.inner_text(), "where a link leads is said"
    assert strange.tab.evaluate("window.harmed") is None


def test_markup_would_be_refused_by_the_browser_too(lie_session: Any) -> None:
    """Attack T-CARD-03: a mistake of ours that would turn text into markup.

    Defence: the browser refuses it (Trusted Types).

    Were there a mistake of ours: no text becomes markup, and no script comes from elsewhere.
    """
    seen = Seen(lie_session)
    seen.go("datasets")
    tried = seen.tab.evaluate(REFUSED)
    seen.leave()
    assert tried == ["TypeError", "TypeError", "TypeError"]
    assert len(seen.refused) == 3
    assert not seen.wrong


def test_a_person_decides_what_no_rule_does(seen: Seen, lie: Any) -> None:
    """The last one: what is decided stands."""
    seen.go("datasets/austria.towns.bad/trust")
    seen.tab.get_by_role("button", name="Follow it").first.click()
    dialog = seen.tab.locator("dialog[open]")
    assert "whatever other nodes state" in dialog.inner_text()
    dialog.get_by_role("button", name="Follow it").click()
    dialog.get_by_text("Decided.").wait_for()
    seen.tab.get_by_text("The operator decided").first.wait_for(state="attached")
    assert dialog.get_by_text("Decided.").is_visible(), "the answer stays until the question is closed"
    dialog.get_by_role("button", name="Close").click()
    seen.tab.get_by_role("heading", name="Waits for your decision").wait_for(state="detached")
    assert len(lie.told("trust", "show", "austria.towns.bad").decisions) == 1


def test_a_failed_task_that_nothing_mends_is_dismissed_for_good(seen: Seen, lie: Any) -> None:
    """By the keyboard too, in this browser, however often the list is asked again; another failure is shown."""
    tab = seen.tab

    def fails(name: str) -> Any:
        """What is told of a pull that can never succeed: rows are pushed into this dataset."""
        lie.does("apply", PUSHED.replace("NAME", name))
        (item,) = lie.does("pull", name)
        assert item.outcome == "failed"
        tab.reload()
        told = tab.locator(".needs li", has_text=f"pull {name}")
        told.wait_for()
        return told

    seen.go("datasets")
    told = fails("bob.pushed")
    assert "not ok" in told.inner_text()
    told.get_by_role("button", name="Dismiss pull bob.pushed").focus()
    tab.keyboard.press("Enter")
    told.wait_for(state="detached")
    tab.locator(".needs li").first.wait_for()
    assert tab.evaluate("document.activeElement.id") == "needs", "who has no mouse goes on from here"
    assert seen.violations() == []
    fails("bob.given")
    expect(told).to_have_count(0)
    seen.go("work")
    assert "bob.pushed" in tab.inner_text("main"), "the task is kept, and listed"
