"""Writes the first settings file of a node: ``odfd init``. Prompts on a terminal for values without a flag.

The file appears whole and checked, or not at all; an existing one is never changed.
"""

from __future__ import annotations

import difflib
import os
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from chain.errors import Environment, Invalid, Refused
from chain.store import durable
from config import paths, schema
from config.load import Loaded, load
from config.render import template
from config.schema import ConfigError, Key, Problem
from odfd import output

RULE: Final = "settings-file"
_QUESTIONS: Final = (
    ("node.name", "display name of the node"),
    ("policy.profile", "policy profile: laptop, mirror, validator or archive"),
    ("node.state-dir", "state directory, for chains, data and keys"),
)
"""Settings that are prompted for, with the text of the prompt."""


def target(environ: Mapping[str, str], named: Path | None) -> Path:
    """Returns the file to write: the named one, else the first location that ``odfd run`` of this user reads."""
    if named is None and environ.get("ODFD_CONFIG"):
        named = Path(environ["ODFD_CONFIG"])
    return (named or paths.user_file(environ)).expanduser().absolute()


def init(
    environ: Mapping[str, str], file: Path, given: Mapping[str, str | None], pairs: Sequence[str], ask: bool
) -> Loaded:
    """Writes ``file`` and returns the settings loaded from it. ``given``: values by key, ``None`` without a flag.

    ``pairs``: KEY=VALUE, of any other settings.

    Raises Invalid for a value that no setting takes, Refused if the file exists, Environment, ConfigError.
    """
    if os.path.lexists(file):
        raise Refused(
            f"{file} is there already",
            rule=RULE,
            hint=f"edit it, and try it: odfd config check --config {file}; or name another: --config FILE",
        )
    chosen = {name: _accept(name, text) for name, text in given.items() if text is not None}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise Invalid(f"--set {pair}: not KEY=VALUE", rule=RULE, hint="for example: --set p2p.mdns=true")
        chosen[name.strip()] = _accept(name.strip(), text.strip())
    if ask:
        chosen |= _ask(chosen, _defaults(environ))
    else:
        chosen.setdefault("node.name", _defaults(environ)["node.name"])
    return _write(environ, file, template(chosen))


def unusual_socket(environ: Mapping[str, str], loaded: Loaded) -> str:
    """Returns the node's socket if ``odfctl`` needs it as an argument; empty: ``odfctl`` finds it by itself."""
    socket = loaded.settings.control.socket
    usual = environ.get("ODFD_SOCKET") or str(paths.socket(environ, paths.state_dir(environ), own_state=False))
    return "" if socket == usual else socket


def _defaults(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        "node.name": platform.node().partition(".")[0],
        "policy.profile": "laptop",
        "node.state-dir": str(paths.state_dir(environ)),
    }


def _ask(chosen: Mapping[str, Any], defaults: Mapping[str, str]) -> dict[str, Any]:
    """Prompts for values; an empty answer means the default, which is not written for the state directory."""
    found: dict[str, Any] = {}
    for name, words in _QUESTIONS:
        if name in chosen:
            continue
        said = _answer(name, f"{words} [{defaults[name]}]: ")
        if said is not None:
            found[name] = said
        elif name != "node.state-dir":
            found[name] = defaults[name]
    return found


def _answer(name: str, question: str) -> Any:
    """Prompts until a valid answer; ``None`` for an empty line. Raises Refused at the end of input."""
    while True:
        output.remark(question, end="")
        line = sys.stdin.readline()
        if not line:
            raise Refused("nothing was written: the answers ended", rule=RULE, hint="flags answer too: odfd init -h")
        if not line.strip():
            return None
        try:
            return _accept(name, line.strip())
        except Invalid as fault:
            output.remark(fault.message)


def _accept(name: str, text: str) -> Any:
    """Returns the value of a setting from its text. Raises Invalid."""
    key = _key(name)
    value, problem = schema.accept(key, schema.from_text(key, text), f"--set {name}")
    if problem is not None:
        raise Invalid(problem.message, rule=RULE, hint=problem.hint)
    # The node may be started in another folder.
    return str(Path(value).expanduser().absolute()) if name == "node.state-dir" and value else value


def _key(name: str) -> Key:
    for key in schema.every():
        if key.name == name:
            return key
    near = difflib.get_close_matches(name, [key.name for key in schema.every()], 1)
    hint = f"did you mean {near[0]}?" if near else "odfd config show lists them"
    raise Invalid(f"there is no setting {name[:100]}", rule=RULE, hint=hint)


def _write(environ: Mapping[str, str], file: Path, text: str) -> Loaded:
    partial: Path | None = None
    try:
        durable.make_folder(file.parent)
        # Some settings are secrets, so the file is its owner's alone, as temporary files are.
        with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=f".{file.name}.", delete=False) as writing:
            partial = Path(writing.name)
            writing.write(text)
            writing.flush()
            durable.sync(writing.fileno())
        loaded = load(environ, partial)
        durable.link(partial, file)
    except ConfigError as error:
        at = str(partial)
        raise ConfigError(
            [Problem(_outside(problem.place, at, file), problem.message, problem.hint) for problem in error.problems]
        ) from error
    except FileExistsError as error:
        raise Refused(f"{file} is there already", rule=RULE, hint="another program wrote it just now") from error
    except OSError as error:
        raise Environment(f"cannot write {file}: {error.strerror}", rule=RULE, hint="--config names another") from error
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)
    return loaded


def _outside(place: str, draft: str, file: Path) -> str:
    """Returns the place of a mistake in the draft: the file without a line, since it was not written."""
    return str(file) if place.startswith(draft) else place
