"""The kernel keeps ``node.memory-mib`` in a delegated control group: a real one, under Linux in user mode.

Skipped where ``linux.uml`` is not installed (Debian: user-mode-linux): machines have version 1, or no delegated group.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

UML = shutil.which("linux.uml")
BOOTED = """#!/bin/sh
mount -t proc proc /proc; mount -t cgroup2 none /sys/fs/cgroup
echo "+memory +pids" > /sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/odfd.service
chown -R 1000:1000 /sys/fs/cgroup/odfd.service
{python} -B -c '{tries}' > /dev/console 2>&1
echo o > /proc/sysrq-trigger; sleep 60
"""
TRIES = """
import json, os, sys
sys.path.insert(0, "{root}")
from engines.sandbox import cgroups
open("/sys/fs/cgroup/odfd.service/cgroup.procs", "w").write("0")
os.setgid(1000); os.setuid(1000)
def take(mib, entrance=None):
    pid = os.fork()
    if not pid:
        if entrance:
            open(entrance, "w").write("0")
        held = bytearray(mib << 20)
        held[::4096] = bytes(len(held[::4096]))
        os._exit(0)
    return os.waitpid(pid, 0)[1]
why = cgroups.limit_node(64 << 20)
job = cgroups.find_groups().make(96 << 20, 16)
(inside,) = job.entrances
found = [why, open("/proc/self/cgroup").read().strip(), take(80, inside), take(128, inside), take(40), take(80)]
job.end()
print("FOUND " + json.dumps(found), flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(UML is None, reason="no Linux in user mode on this machine")
def test_a_node_has_its_memory_and_its_engines_theirs() -> None:
    """As an ordinary user: an engine may hold more than the node may, and neither pays for the other."""
    assert UML is not None
    tries = TRIES.replace("{root}", str(Path(__file__).parents[3]))
    assert "'" not in tries
    with TemporaryDirectory(dir="/var/tmp") as folder:  # what is below /dev here, Linux inside does not see
        init = Path(folder) / "init"
        init.write_text(BOOTED.replace("{python}", sys.executable).replace("{tries}", tries))
        init.chmod(0o755)
        boot = [UML, "rootfstype=hostfs", "rootflags=/", "ro", "mem=512M", f"init={init}", "con=null", "con0=fd:0,fd:1"]
        done = subprocess.run(boot, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800, check=False)
    found = [line.removeprefix("FOUND ") for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    killed = 9
    told = ["", "0::/odfd.service/odfd-node", 0, killed, 0, killed]
    assert [json.loads(each) for each in found] == [told], done.stdout[-2000:]
