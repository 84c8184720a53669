"""Builds the system call filter of an engine as a classic BPF program, without libseccomp.

It blocks what namespaces leave open: socket families that ignore them (AF_VSOCK), new namespaces and mounts from
inside, tracing, kernel keyrings, io_uring (which would open sockets behind the filter's back). All other calls pass:
the aim is to remove ways out, not to list what a JVM does. Pure; the program is passed to bubblewrap as a file.
"""

from __future__ import annotations

import errno
import json
import struct
from typing import Final, NamedTuple

from chain.errors import Environment

LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_{JEQ,JGE,JSET}|BPF_K, BPF_RET|BPF_K."""
ALLOW: Final = 0x7FFF0000
KILL: Final = 0x80000000
ERRNO: Final = 0x00050000
NUMBER_AT, ARCH_AT, ARGUMENT_0_AT = 0, 4, 16
"""Offsets in ``struct seccomp_data``; the low half of the first argument on little-endian machines."""
X32_BIT: Final = 0x40000000
"""On x86_64, calls of the x32 ABI: other numbers for the same calls, so none of them passes."""

FAMILIES: Final = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
"""Socket families that Java and gRPC need inside; the network namespace makes the last three harmless."""
NAMESPACES: Final = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
"""CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}: a new user namespace would bring all capabilities back."""

_SAME: Final = {
    "pidfd_getfd": 438, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442,
}  # fmt: skip
"""Calls of the common numbering that all architectures share since Linux 5.1."""
DENIED: Final[dict[str, dict[str, int]]] = {
    "x86_64": {
        "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312,
        "unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161,
        "open_by_handle_at": 304, "name_to_handle_at": 303, "fanotify_init": 300, "quotactl": 179,
        "swapon": 167, "swapoff": 168, "acct": 163, "uselib": 134, "nfsservctl": 180,
        "add_key": 248, "request_key": 249, "keyctl": 250, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323,
        "init_module": 175, "finit_module": 313, "delete_module": 176, "kexec_load": 246, "kexec_file_load": 320,
        "reboot": 169, "settimeofday": 164, "clock_settime": 227, "clock_adjtime": 305, "adjtimex": 159,
        "sethostname": 170, "setdomainname": 171, "syslog": 103, "iopl": 172, "ioperm": 173, "vhangup": 153,
        "personality": 135, "move_pages": 279, "lookup_dcookie": 212, **_SAME,
    },
    "aarch64": {
        "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272,
        "unshare": 97, "setns": 268, "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51,
        "open_by_handle_at": 265, "name_to_handle_at": 264, "fanotify_init": 262, "quotactl": 60,
        "swapon": 224, "swapoff": 225, "acct": 89, "nfsservctl": 42,
        "add_key": 217, "request_key": 218, "keyctl": 219, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282,
        "init_module": 105, "finit_module": 273, "delete_module": 106, "kexec_load": 104, "kexec_file_load": 294,
        "reboot": 142, "settimeofday": 170, "clock_settime": 112, "clock_adjtime": 266, "adjtimex": 171,
        "sethostname": 161, "setdomainname": 162, "syslog": 116, "vhangup": 58,
        "personality": 92, "move_pages": 239, "lookup_dcookie": 18, **_SAME,
    },
}  # fmt: skip
"""System calls refused with EPERM, by machine."""
ARCHITECTURES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH_*: a call made in another ABI (32-bit) has other numbers and kills the process."""
_SOCKET: Final = {"x86_64": 41, "aarch64": 198}
_CLONE: Final = {"x86_64": 56, "aarch64": 220}
_CLONE3: Final = 435


class Instruction(NamedTuple):
    """``struct sock_filter``; jumps count the instructions to skip."""

    code: int
    if_true: int
    if_false: int
    operand: int


def engine_filter(machine: str) -> list[Instruction]:
    """Builds the program for ``platform.machine()``. Raises Environment for a machine with unknown syscall numbers."""
    if machine not in ARCHITECTURES:
        raise Environment(
            f"no system call filter for {machine}", rule="seccomp-machine", hint=f"known: {', '.join(ARCHITECTURES)}"
        )
    program = [_load(ARCH_AT), *_when(ARCHITECTURES[machine], [], otherwise=[_return(KILL)]), _load(NUMBER_AT)]
    if machine == "x86_64":
        program += [Instruction(JUMP_AT_LEAST, 0, 1, X32_BIT), _deny(errno.ENOSYS)]
    program += _when(_SOCKET[machine], _only_families())
    program += _when(_CLONE[machine], _no_namespaces())
    # Its flags lie in memory, out of a filter's reach; ENOSYS makes C libraries fall back to clone.
    program += _when(_CLONE3, [_deny(errno.ENOSYS)])
    for number in DENIED[machine].values():
        program += _when(number, [_deny(errno.EPERM)])
    return [*program, _return(ALLOW)]


def assemble(program: list[Instruction]) -> bytes:
    """Encodes a program in the form that bubblewrap and prctl take."""
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def container_profile() -> bytes:
    """Encodes the same allow-list for podman and docker, whose own profiles permit AF_VSOCK.

    Conditions on one argument cannot be joined there, so each family that is not allowed has a rule.
    """
    last = max(FAMILIES.values())
    closed = [("SCMP_CMP_EQ", family, 0) for family in range(last) if family not in FAMILIES.values()]
    flags = [1 << bit for bit in range(32) if NAMESPACES >> bit & 1]
    rules = [
        {"names": sorted(DENIED["x86_64"]), "action": "SCMP_ACT_ERRNO", "errnoRet": errno.EPERM},
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
        *(_refusing("socket", errno.EAFNOSUPPORT, each) for each in [*closed, ("SCMP_CMP_GT", last, 0)]),
        *(_refusing("clone", errno.EPERM, ("SCMP_CMP_MASKED_EQ", flag, flag)) for flag in flags),
    ]
    return json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules}).encode()


def _refusing(call: str, error: int, test: tuple[str, int, int]) -> dict[str, object]:
    operator, value, second = test
    argument = {"index": 0, "value": value, "valueTwo": second, "op": operator}
    return {"names": [call], "action": "SCMP_ACT_ERRNO", "errnoRet": error, "args": [argument]}


def _load(offset: int) -> Instruction:
    return Instruction(LOAD, 0, 0, offset)


def _return(value: int) -> Instruction:
    return Instruction(RETURN, 0, 0, value)


def _deny(error: int) -> Instruction:
    return _return(ERRNO | error)


def _when(value: int, body: list[Instruction], otherwise: list[Instruction] | None = None) -> list[Instruction]:
    """Runs ``body`` if the accumulator is ``value``, else ``otherwise``, which needs an empty ``body``."""
    if otherwise is not None:
        return [Instruction(JUMP_EQUAL, len(otherwise), 0, value), *otherwise]
    return [Instruction(JUMP_EQUAL, 0, len(body), value), *body]


def _only_families() -> list[Instruction]:
    tests = [_when(family, [_return(ALLOW)]) for family in FAMILIES.values()]
    return [_load(ARGUMENT_0_AT), *(step for test in tests for step in test), _deny(errno.EAFNOSUPPORT)]


def _no_namespaces() -> list[Instruction]:
    return [_load(ARGUMENT_0_AT), Instruction(JUMP_ANY_BIT, 0, 1, NAMESPACES), _deny(errno.EPERM), _return(ALLOW)]
