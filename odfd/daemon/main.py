"""Runs ``odfd``: reads the settings, sets up the log, and starts the daemon."""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from chain.errors import Fault, Invalid
from config import render as rendering
from config.load import Loaded, load
from config.schema import ConfigError
from odfd import __version__, output
from odfd.daemon.unused_modules import lean_imports, refuse_pandas
from odfd.errors import Bug, ExitCode, exit_code, last_fault, render
from odfd.usage import UsageParser

if TYPE_CHECKING:  # it imports structlog, which must come after lean_imports
    from odfd.control.assembly import Build

ENGINES = {"spark": "engines.spark.__main__"}
"""Engines that can be run by themselves; each module has ``main(arguments) -> exit code``."""
SERVICES = "odfd.node.assembly"
"""The module with ``build_node``."""
COLLECTED_AFTER: Final = 10_000
"""Containers made and not yet freed after which the collector runs; Python's default is 700. With that, while thousands
of blocks are taken, the collector used a twelfth of all time to look at objects in use."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``odfd``. Returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["engine"] and len(words) > 1 and words[1] in ENGINES:
        return int(importlib.import_module(ENGINES[words[1]]).main(words[2:]) or 0)
    try:
        args = _parser().parse_args(words)
        code = int(args.run(args))
        output.flush()
        return code
    except BrokenPipeError:
        # The reader of our output has ended (odfd config show | head): this is no error.
        output.leave()
        return ExitCode.OK
    except ConfigError as error:
        return _report(_as_fault(error), verbose=False)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception as error:  # noqa: BLE001  the outermost frame: a bug is told as one, with its trace
        return _report(last_fault(error) or _bug(error), verbose=False)


def _parser() -> argparse.ArgumentParser:
    parser = UsageParser(
        prog="odfd",
        description="A node of Open Data Fabric. odfctl talks to it.",
        epilog="example:  odfd run --state ./node-a",
    )
    parser.add_argument("--version", action="version", version=f"odfd {__version__}")
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")
    run = commands.add_parser("run", help="the daemon, in the foreground", epilog="example:  odfd run --state ./node-a")
    run.add_argument("--state", metavar="DIR", help="state directory of the node")
    run.add_argument("--socket", metavar="PATH", help="where odfctl finds it (DIR/control.sock when --state is given)")
    _config_option(run)
    run.set_defaults(run=_run)
    config = commands.add_parser("config", help="settings: check and show", epilog="example:  odfd config check")
    actions = config.add_subparsers(required=True, metavar="ACTION")
    check = actions.add_parser(
        "check", help="report every mistake", epilog="example:  odfd config check --config my.toml"
    )
    _config_option(check)
    check.set_defaults(run=_check)
    show = actions.add_parser(
        "show", help="settings in force and where each comes from", epilog="example:  odfd config show -o json"
    )
    _config_option(show)
    show.add_argument("-o", "--output", choices=("toml", "json", "schema"), default="toml")
    show.set_defaults(run=_show)
    _init_command(commands.add_parser("init", help="write a first file of settings, with every setting explained",
                                      epilog="example:  odfd init --profile mirror --set p2p.mdns=true"))  # fmt: skip
    engine = commands.add_parser("engine", help="run an engine by itself, without a daemon",
                                 epilog="example:  odfd engine spark --listen unix:/tmp/spark.sock")  # fmt: skip
    engine.add_argument("name", choices=tuple(ENGINES))
    return parser


def _init_command(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="the file to write (ODFD_CONFIG, ~/.config/odfd/odfd.toml)"
    )
    parser.add_argument("--name", help="display name of the node (the machine's name)")
    parser.add_argument("--profile", help="policy profile: laptop, mirror, validator or archive")
    parser.add_argument("--state", metavar="DIR", help="state directory of the node")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="any other setting; may be repeated"
    )
    parser.add_argument(
        "-y", "--yes", action="store_true", help="do not prompt; use defaults for all that no flag sets"
    )
    parser.set_defaults(run=_init)


def _config_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", type=Path, help="settings (ODFD_CONFIG, ~/.config/odfd/odfd.toml)")


def _load(args: argparse.Namespace) -> Loaded:
    flags = {"node.state-dir": getattr(args, "state", None), "control.socket": getattr(args, "socket", None)}
    return load(os.environ, args.config, flags)


def _run(args: argparse.Namespace) -> int:
    # Modules that only the daemon needs are imported here: `odfd config` stays quick.
    refuse_pandas()
    with lean_imports():
        from chain.struct_types import learn_struct_types
        from odfd.daemon import wiring
        from odfd.node.settings_check import check_components
        from odfd.obs import log
        from odfd.runtime.filesystem import set_umask

    set_umask()
    loaded = check_components(_load(args))
    log.configure_by(loaded.settings.node)
    # Modules stay until the end. Collections of their objects took a tenth of the time of imports, and each full
    # collection afterwards stopped everything for 0.1 to 0.2 s.
    gc.disable()
    build = _services()
    learn_struct_types()
    gc.freeze()
    gc.set_threshold(COLLECTED_AFTER)
    gc.enable()
    trio.run(wiring.run, loaded, lambda: check_components(_load(args)), build, os.environ)
    return ExitCode.OK


def _services() -> Build:
    with lean_imports():
        build: Build = importlib.import_module(SERVICES).build_node
    return build


def _init(args: argparse.Namespace) -> int:
    from odfd.daemon import init

    file = init.target(os.environ, args.config)
    given = {"node.name": args.name, "policy.profile": args.profile, "node.state-dir": args.state}
    written = init.init(os.environ, file, given, args.set, ask=sys.stdin.isatty() and not args.yes)
    named = f" --config {shlex.quote(str(args.config))}" if args.config else ""
    socket = init.unusual_socket(os.environ, written)
    where = f"export ODFD_SOCKET={shlex.quote(socket)} && " if socket else ""
    output.remark(f"wrote {file}\n  start the node: odfd run{named}\n  then: {where}odfctl status --wait 1m")
    return ExitCode.OK


def _check(args: argparse.Namespace) -> int:
    with lean_imports():
        from odfd.node.settings_check import check_components

    loaded = check_components(_load(args))
    output.remark(f"ok: {loaded.file or 'no file, defaults alone'}")
    return ExitCode.OK


def _show(args: argparse.Namespace) -> int:
    if args.output == "schema":
        text = json.dumps(rendering.json_schema(), indent=2, ensure_ascii=False)
    else:
        loaded = _load(args)
        shown = rendering.plain(loaded.settings)
        as_json = args.output == "json"
        text = json.dumps(shown, indent=2) if as_json else rendering.toml(loaded.settings, loaded.origins)
    output.say(text.rstrip("\n"))
    return ExitCode.OK


def _as_fault(error: ConfigError) -> Invalid:
    first, *more = error.problems
    if not more:
        return Invalid(first.message, rule="settings", place=first.place, hint=first.hint)
    listed = "".join(f"\n  {problem}" for problem in error.problems)
    return Invalid(f"{len(error.problems)} mistakes in the settings{listed}", rule="settings")


def _bug(error: Exception) -> Bug:
    output.trace(error)
    return Bug(f"{type(error).__name__}: {error}", rule="bug", hint="this is a fault of odfd; please report it")


def _report(fault: Fault, verbose: bool) -> int:
    output.remark(output.FaultText(render(fault, verbose)))
    return exit_code(fault)


if __name__ == "__main__":
    sys.exit(main())
