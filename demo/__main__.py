"""``make demo``: runs the acts, prints the table and the path of the picture, and leaves nothing running.

Ends with 0 only if everything it claims was checked. ``--keep`` leaves the nodes up and says how to talk to them.
``--record`` ends the story when everybody knows of the lie, and keeps what Carol's node holds then: ``odfctl demo``
shows it to those who have no engine.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from demo import acts, lies
from demo.nodes import BIN, Broken, until
from demo.picture import Holding, Portrait, draw
from demo.stage import BAD, HONEST, Stage
from demo.story import Story

ACTS: Final = (
    acts.publish,
    acts.mirror,
    acts.reproduce,
    acts.go_on,
    lies.gather_validators,
    lies.lie,
    lies.recover,
    acts.accident,
    acts.prove,
)
RECORDED: Final = ACTS[: ACTS.index(lies.lie) + 1]
"""The acts until everybody knows of the lie, and nobody has mended it."""
BOUGHT: Final = "E"
"""What this node says of itself is worth nothing."""
ROLES: Final = {
    "A": "publishes; re-runs others' data",
    "B": "mirrors and re-runs everything",
    "C": "serves what two of three attest",
    "D": "published a lie, then withdrew it",
    "E": "re-ran nothing, attested all",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo", description="The main job on real nodes and real data.")
    parser.add_argument("--keep", action="store_true", help="leave the nodes up")
    parser.add_argument("--record", type=Path, metavar="DIR", help="play until the lie is known, and keep Carol's node")
    parser.add_argument("--out", type=Path, default=Path("out"), help="where the picture goes")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="odfd-demo-"))
    story = Story()
    stage = Stage(folder, story)
    # Asked to end, it ends its nodes too: they are in sessions of their own, so that ^C reaches only this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    print("Five nodes, a year of flights, one lie, one false witness. Each claim is checked; [who] checked it.")
    shown = False
    try:
        for act in RECORDED if args.record else ACTS:
            act(stage)
        if args.record:
            record(stage, args.record)
        else:
            _finish(stage, args.out)
        shown = True
    except Broken as broken:
        story.fail(str(broken))
        print(f"  logs: {folder}/*/odfd.log", file=sys.stderr)
    finally:
        _leave(stage, keep=args.keep, tidy=shown)
    return 0 if shown else 1


def record(stage: Stage, folder: Path) -> None:
    """Keeps Carol's node: a backup with the evidence, which she re-ran, and the settings by which she judges."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    carol = stage.nodes["C"]
    bundle, file = carol.do("trust", "show", BAD)["evidence"][0]["bundle"], stage.folder / "carol.odfe"
    fetch = ("trust", "evidence", bundle, "--fetch", "-O", str(file))
    until("Carol has the evidence", lambda: carol.ask(*fetch).code == 0, 120)
    settings = carol.settings
    carol.stop()
    carol.settings = settings.replace("recheck = false", "recheck = true")
    carol.start()
    until("Carol re-ran it", lambda: carol.do("trust", "show", BAD)["evidence"][0]["cells"], 400)
    carol.do("backup", str(folder.absolute()))
    # Its heads end in some days, and nobody signs new ones.
    (folder / "odfd.toml").write_text(f'{settings}[policy.fresh]\nmax-stale = "never"\n')
    print(f"\nWhat Carol's node holds: {folder.absolute()}")


def _finish(stage: Stage, out: Path) -> None:
    story = stage.story
    story.act("What each node relies on")
    portraits = []
    for letter, node in sorted(stage.nodes.items()):
        views = node.datasets()
        holdings = [_holding(letter, name, views[name]) for name in (*HONEST, BAD) if name in views]
        portraits.append(Portrait(f"{letter} · {node.name}", ROLES[letter], holdings))
    for portrait in portraits:
        for number, holding in enumerate(portrait.holdings):
            title = portrait.title if number == 0 else ""
            print(f"  {title:<11} {holding.dataset:<20} {holding.blocks:>7}  {holding.fact}")
    lie = stage.facts["lie"]
    cell = lie["cells"][0]
    verdict = (
        f"Caught: {BAD} #{lie['block']}, row {cell['row']}, {cell['column']} of {cell['context']['carrier']}: "
        f"{cell['published']} published, {cell['computed']} computed by A and B; E denied it"
    )
    mended = f"Made good: {stage.facts['recovery']}"
    picture = (out / "demo.svg").absolute()
    picture.parent.mkdir(parents=True, exist_ok=True)
    draw(picture, portraits, (verdict, mended), f"{len(story.claims)} claims, each checked")
    print(f"\n{len(story.claims)} claims, each checked, in {story.seconds:.0f} s")
    print(f"The picture: {picture}")


def _holding(letter: str, name: str, view: dict[str, Any]) -> Holding:
    rely = view["relyOn"]
    fact = rely["fact"]
    strong = fact.startswith(("attested", "reproduced")) or (
        view["kind"] == "root" and rely["blocks"] == view["blocks"]
    )
    mood = "bad" if view["state"] in ("accused", "refuted") or letter == BOUGHT else "good" if strong else "weak"
    return Holding(name, f"{rely['blocks']}/{view['blocks']}", fact, mood)


def _leave(stage: Stage, *, keep: bool, tidy: bool) -> None:
    relay = stage.facts.get("relay")
    if keep and stage.nodes:
        print("\nThe nodes are up. Talk to them:")
        for letter, node in sorted(stage.nodes.items()):
            print(f"  {letter}  {BIN / 'odfctl'} --socket {node.socket} get datasets")
        node = stage.nodes["B" if "B" in stage.nodes else min(stage.nodes)]
        print(f"Look at it in a browser:  {BIN / 'odfctl'} --socket {node.socket} ui --open")
        with suppress(Broken):  # what is left of a demo that failed may have no node that answers
            address = node.do("ui")
            print(f"  {address['url']}  (good once, for {address['seconds']} s)")
        pids = " ".join(str(node.process.pid) for node in stage.nodes.values() if node.process)
        print(f"Stop them:  kill {pids}     then  rm -r {stage.folder}")
        return
    for node in stage.nodes.values():
        node.stop()
    if relay is not None:
        relay.close()
    if tidy:
        shutil.rmtree(stage.folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
