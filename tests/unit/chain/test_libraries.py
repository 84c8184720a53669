"""Libraries and classes are loaded when they are first needed, by whichever thread."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import pyarrow
import pyarrow.compute
import pytest

from chain import libraries
from chain.libraries import kept_out, np, pa, pc, pq
from worlds.eventually import PATIENCE

# Arrow and NumPy are imported when their first attribute is read, and are the libraries themselves from then on.

HEAVY = "{'numpy', 'pyarrow', 'pyarrow.compute'} & set(sys.modules)"
MANY = 8


def run(program: str) -> list[str]:
    command = [sys.executable, "-c", f"import sys\n{program}"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


def test_what_is_read_is_the_librarys() -> None:
    assert pa.Table is pyarrow.Table
    assert pc.cast is pyarrow.compute.cast
    assert vars(pa)["Table"] is pyarrow.Table
    assert pq.ParquetFile.__module__ == "pyarrow.parquet.core"
    assert np.arange(2).tolist() == [0, 1]


def test_an_unknown_name_is_refused_as_the_library_does() -> None:
    with pytest.raises(AttributeError, match=r"pyarrow.*no_such_name"):
        pa.no_such_name  # noqa: B018 - reading it is the point
    assert not hasattr(np, "__wrapped__")


@pytest.mark.slow
def test_none_is_imported_before_it_is_used() -> None:
    modules = "chain.data.parquet, chain.data.arrow_schema, chain.store.sqlite, chain.rules.check, odfd.verify.columns"
    program = f"from chain.libraries import import_flatbuffers; import_flatbuffers()\nimport {modules}\nprint(*{HEAVY})"
    assert run(program) == []


@pytest.mark.slow
def test_several_threads_may_use_them_first() -> None:
    program = f"""
from concurrent.futures import ThreadPoolExecutor
from chain.libraries import are_loaded, load, np, pa, pc
assert not are_loaded()
def use(number):
    return pc.sum(pa.array([number, 1])).as_py() + int(np.int64(1)) if number % 3 else load() or number + 2
with ThreadPoolExecutor({MANY}) as pool:
    print(*pool.map(use, range({MANY})), are_loaded(), "pyarrow._s3fs" in sys.modules)
"""
    assert run(program) == [*(str(number + 2) for number in range(MANY)), "True", "False"]


@pytest.mark.slow
def test_flatbuffers_works_with_the_stand_in() -> None:
    program = f"""
from chain.libraries import import_flatbuffers
import_flatbuffers()
from flatbuffers import Builder, encode
assert not {HEAVY}
builder = Builder(8)
builder.Finish(builder.CreateString("x"))
print(len(builder.Output()))
import numpy
print(encode.GetVectorAsNumpy.__name__, numpy.arange(2).sum())
"""
    assert run(program) == ["12", "GetVectorAsNumpy", "1"]


def test_hidden_modules_can_be_imported_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "this", raising=False)
    with kept_out(["this"]), pytest.raises(ImportError):
        import_module("this")
    assert "this" not in sys.modules


def test_what_one_thread_hides_no_other_admits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "this", raising=False)

    def look(_: int) -> set[bool]:
        found = set()
        for _ in range(1_000):
            with kept_out(["this"]):
                found.add(sys.modules.get("this", sys) is None)
        return found

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(MANY) as pool:
            assert set().union(*pool.map(look, range(MANY))) == {True}
    finally:
        sys.setswitchinterval(usual)
    assert "this" not in sys.modules


def test_what_is_loaded_stays() -> None:
    with kept_out(["sys"]):
        import sys as again
    assert again is sys


def test_load_is_idempotent() -> None:
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda _: libraries.load(), range(MANY)))
    assert libraries.are_loaded()


# Values of one class decoded for the first time by several threads.

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
