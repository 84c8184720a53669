"""Removes containers of podman and docker that a killed process left, by a label of the folder that it worked in.

``podman run --rm`` makes a container, then starts it, and removes it when it has ended. If it is killed between the
first two, nobody removes the container. The label keeps those of other nodes apart, whose folders are others. Whoever
asks must hold the folder alone, and must have no container running: all that are found are those of former lives.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

import trio

from chain.errors import Environment

LABEL: Final = "odfd.folder"
SECONDS: Final = 30.0
"""Seconds that the tool may take to list or to remove containers."""
END_SECONDS: Final = 5.0
"""The same for one container, while a node may be stopping."""
_TOOL_ENVIRONMENT: Final = (
    *("PATH", "HOME", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST"),
    *("CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF"),
)
_SAID: Final = 300


def tool_environment() -> dict[str, str]:
    """Returns those environment variables that podman and docker need to find images and containers."""
    return {name: os.environ[name] for name in _TOOL_ENVIRONMENT if name in os.environ}


def label_of(folder: Path) -> str:
    """Returns the label of containers that work for a folder; it does not tell its path."""
    return f"{LABEL}={hashlib.sha3_256(os.fsencode(folder.resolve())).hexdigest()[:32]}"


async def remove_left(binary: str, label: str) -> int:
    """Removes all containers with a label, in whatever state. Returns how many there were. Raises Environment."""
    found = (await _run_tool(binary, "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={label}")).split()
    if found:
        await _run_tool(binary, *_removal(binary), *found)
    return len(found)


async def remove_named(binary: str, name: str) -> None:
    """Removes a container that may be there. A tool that fails is left: the next life removes it by its label."""
    with trio.move_on_after(END_SECONDS):
        await trio.run_process(
            [binary, *_removal(binary), name],
            capture_stdout=True, capture_stderr=True, check=False, env=tool_environment(),
        )  # fmt: skip


def _removal(binary: str) -> tuple[str, ...]:
    """Returns the words that end and remove containers; podman would wait for their end, docker does not."""
    return ("rm", "--force", "--volumes", *(("--time=0",) if Path(binary).name == "podman" else ()))


async def _run_tool(binary: str, *words: str) -> str:
    tool = Path(binary).name
    try:
        with trio.fail_after(SECONDS):
            done = await trio.run_process(
                [binary, *words], capture_stdout=True, capture_stderr=True, check=False, env=tool_environment()
            )
    except trio.TooSlowError as error:
        raise Environment(
            f"{tool} {words[0]} gave no answer in {SECONDS:g} s", rule="containers-left", hint=f"does {tool} work?"
        ) from error
    except OSError as error:
        raise Environment(f"cannot start {tool}: {error.strerror}", rule="containers-left") from error
    if done.returncode:
        words_said = done.stderr.decode("utf-8", "replace").strip()[-_SAID:]
        raise Environment(f"{tool} {words[0]} failed: {words_said}", rule="containers-left")
    return done.stdout.decode("utf-8", "replace")
