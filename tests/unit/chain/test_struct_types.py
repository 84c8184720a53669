"""Values of one class decoded for the first time by several threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

from worlds.eventually import PATIENCE

RACE = """
import sys, threading, types
import msgspec
from chain.struct_types import learn_struct_types
sys.setswitchinterval(1e-6)
text = "from __future__ import annotations\\nimport msgspec\\n"
for k in range(12):
    text += f"class C{k}(msgspec.Struct):\\n" + "".join(f"    f{j}: int = 0\\n" for j in range(10))
    text += f"    n: C{k - 1} | None = None\\n    l: tuple[C{k - 1}, ...] = ()\\n" if k else ""
raw = b'{"f0":1,"n":{"f0":2,"n":{"f1":3,"l":[{"f2":1}]}},"l":[{"f1":2,"n":{"f0":1}}]}'
def race(kind):
    gate = threading.Barrier(4)
    def decode():
        gate.wait()
        msgspec.json.decode(raw, type=kind)
    threads = [threading.Thread(target=decode) for _ in range(4)]
    [each.start() for each in threads]
    [each.join() for each in threads]
kinds = []
for number in range(100):
    module = types.ModuleType(f"m{number}")
    sys.modules[module.__name__] = module
    exec(text, module.__dict__)
    kinds.append(module.C11)
learn_struct_types()
for kind in kinds:
    race(kind)
"""


@pytest.mark.slow
def test_classes_that_were_learnt_before_are_decoded_by_any_thread() -> None:
    subprocess.run([sys.executable, "-c", RACE], check=True, timeout=PATIENCE)
