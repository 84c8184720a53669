"""The filter, run by an interpreter of our own against every call it speaks of."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Environment
from engines.sandbox import seccomp
from engines.sandbox.seccomp import ALLOW, ARCHITECTURES, DENIED, ERRNO, KILL, assemble, engine_filter

SOCKET = {"x86_64": 41, "aarch64": 198}
CLONE = {"x86_64": 56, "aarch64": 220}
MACHINES = list(ARCHITECTURES)


def run(machine: str, number: int, argument: int = 0, architecture: int | None = None) -> int:
    """What the kernel would do with the assembled bytes."""
    raw = assemble(engine_filter(machine))
    program = [struct.unpack_from("=HBBI", raw, at) for at in range(0, len(raw), 8)]
    data = struct.pack(
        "=IIQ6Q", number, ARCHITECTURES[machine] if architecture is None else architecture, 0, argument, 0, 0, 0, 0, 0
    )
    at, accumulator = 0, 0
    while True:
        code, if_true, if_false, operand = program[at]
        at += 1
        match code:
            case seccomp.LOAD:
                (accumulator,) = struct.unpack_from("=I", data, operand)
            case seccomp.JUMP_EQUAL:
                at += if_true if accumulator == operand else if_false
            case seccomp.JUMP_AT_LEAST:
                at += if_true if accumulator >= operand else if_false
            case seccomp.JUMP_ANY_BIT:
                at += if_true if accumulator & operand else if_false
            case seccomp.RETURN:
                return operand
            case _:
                raise AssertionError(f"unknown instruction {code:#x}")


@pytest.mark.parametrize("machine", MACHINES)
def test_denied_calls_fail_with_eperm(machine: str) -> None:
    for name, number in DENIED[machine].items():
        assert run(machine, number) == ERRNO | errno.EPERM, name


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("family", "passes"), [(1, 1), (2, 1), (10, 1), (16, 1), (40, 0), (17, 0), (38, 0), (0, 0)])
def test_only_four_families_of_sockets(machine: str, family: int, passes: int) -> None:
    expected = ALLOW if passes else ERRNO | errno.EAFNOSUPPORT
    assert run(machine, SOCKET[machine], family) == expected
    # The kernel looks at the low 32 bits; so must we.
    assert run(machine, SOCKET[machine], family | 1 << 32) == expected


@pytest.mark.parametrize("machine", MACHINES)
def test_threads_may_be_made_and_namespaces_not(machine: str) -> None:
    threads = 0x00000100 | 0x00000200 | 0x00000400 | 0x00000800 | 0x00010000 | 0x00040000 | 0x00080000
    assert run(machine, CLONE[machine], threads) == ALLOW
    for bit in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert run(machine, CLONE[machine], threads | bit) == ERRNO | errno.EPERM
    assert run(machine, 435) == ERRNO | errno.ENOSYS


def test_other_numberings_do_not_pass() -> None:
    for machine in MACHINES:
        for architecture in (0x40000003, 0x40000028, 0, *(set(ARCHITECTURES.values()) - {ARCHITECTURES[machine]})):
            assert run(machine, 1, architecture=architecture) == KILL
    assert run("x86_64", seccomp.X32_BIT | 41, 40) == ERRNO | errno.ENOSYS


@given(machine=st.sampled_from(MACHINES), number=st.integers(0, 600), argument=st.integers(0, 2**64 - 1))
def test_everything_else_passes(machine: str, number: int, argument: int) -> None:
    if number not in {*DENIED[machine].values(), SOCKET[machine], CLONE[machine], 435}:
        assert run(machine, number, argument) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_jumps_fit_and_the_program_is_short(machine: str) -> None:
    program = engine_filter(machine)
    assert len(program) < 4096
    for at, each in enumerate(program):
        assert max(each.if_true, each.if_false) < 256
        assert at + 1 + max(each.if_true, each.if_false) < len(program) or each.code in (seccomp.RETURN, seccomp.LOAD)


def test_an_unknown_machine_is_said() -> None:
    with pytest.raises(Environment, match="s390x"):
        engine_filter("s390x")
