"""Exit codes are a contract; faults survive the wire; messages help."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import errors as chain_errors
from chain.errors import Conflict, Environment, Fault, Invalid, NotFound, Refused, Remote
from chain.multihash import Multihash
from chain.store.files import ObjectDamaged
from odfd.cli.main import main as odfctl
from odfd.daemon.main import main as odfd
from odfd.errors import (
    Bug,
    ExitCode,
    Unreachable,
    Usage,
    cause_lines,
    exit_code,
    family,
    from_problem,
    http_status,
    last_fault,
    render,
    sole_fault,
    sole_faults,
    to_problem,
    told_to_others,
)

FAMILIES = (Invalid, NotFound, Refused, Remote, Environment, Conflict, Usage, Unreachable, Bug)


def test_the_numbers_stand_still() -> None:
    assert {code.name: int(code) for code in ExitCode} == {
        "OK": 0, "NO": 1, "USAGE": 2, "UNREACHABLE": 3, "REFUSED": 4, "INVALID": 5, "REMOTE": 6, "ENVIRONMENT": 7,
        "BUG": 70, "INTERRUPTED": 130,
    }  # fmt: skip
    assert {kind.__name__: exit_code(kind("x")) for kind in FAMILIES} == {
        "Invalid": 5, "NotFound": 5, "Refused": 4, "Remote": 6, "Environment": 7, "Conflict": 1, "Usage": 2,
        "Unreachable": 3, "Bug": 70,
    }  # fmt: skip


def test_every_family_of_the_chain_has_a_status() -> None:
    known = [one for one in vars(chain_errors).values() if isinstance(one, type) and issubclass(one, Fault)]
    for kind in known:
        if kind is not Fault:
            assert family(kind("x")) is kind
            assert http_status(kind("x")) >= 400


def test_a_fault_of_no_family_is_our_bug() -> None:
    class Odd(Fault): ...

    class Particular(Remote): ...

    assert family(Odd("x")) is Bug
    assert family(Particular("x")) is Remote


def test_a_place_that_the_user_may_not_look_at_is_no_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program that runs as another user may still have the HOME of the first one."""

    def denied(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", denied)
    monkeypatch.setattr(Path, "is_file", denied)
    monkeypatch.delenv("ODFD_SOCKET", raising=False)
    for program, words in ((odfctl, ["status"]), (odfd, ["run", "--state", "/nowhere"])):
        assert program(words) == ExitCode.ENVIRONMENT
        said = capsys.readouterr()
        assert "error: this user may not look at /" in said.err
        assert "Traceback" not in said.err
    assert last_fault(PermissionError(errno.EPERM, "no path")) is None, "who knows what that was"


texts = st.text(max_size=40)


@pytest.mark.slow
@given(st.sampled_from(FAMILIES), texts.filter(bool), texts, texts, texts, st.lists(texts, max_size=4))
def test_problems_carry_faults_over(
    kind: type[Fault], message: str, rule: str, hint: str, place: str, causes: list[str]
) -> None:
    fault = kind(message, rule=rule, hint=hint, place=place)
    link: BaseException = fault
    for cause in causes:
        link.__cause__ = ValueError(cause)
        link = link.__cause__
    back = from_problem(to_problem(fault))
    assert type(back) is kind
    assert (back.message, back.rule, back.hint, back.place) == (message, rule, hint, place)
    assert cause_lines(back) == [f"ValueError: {cause}" for cause in causes]
    assert to_problem(back) == to_problem(fault)


@pytest.mark.slow
@given(st.dictionaries(texts, st.one_of(st.none(), st.integers(), texts, st.lists(st.integers()))))
def test_any_object_is_some_fault(problem: dict[str, object]) -> None:
    assert isinstance(from_problem(problem), Fault)


def test_a_loop_of_causes_ends() -> None:
    fault, other = Invalid("x"), ValueError("y")
    fault.__cause__, other.__cause__ = other, fault
    assert len(cause_lines(fault)) == 16


def test_rendering() -> None:
    fault = Invalid("the query is wrong", rule="float-aggregate", hint="write decimal", place="d.yaml:14")
    fault.__cause__ = ValueError("inner")
    assert render(fault) == "error: d.yaml:14: the query is wrong\n  write decimal  (rule float-aggregate)"
    assert render(fault, verbose=True).endswith("\n  caused by ValueError: inner")
    assert render(Invalid("x")) == "error: x"


def test_groups() -> None:
    inner = Remote("x")
    assert sole_fault(ExceptionGroup("a", [ExceptionGroup("b", [inner])])) is inner
    assert sole_fault(ExceptionGroup("a", [inner, ValueError()])) is None
    assert sole_fault(ValueError()) is None


def test_a_fault_leaves_its_groups_with_its_own_cause() -> None:
    inner, cause = Remote("x"), ValueError("y")
    inner.__cause__ = cause
    with pytest.raises(Remote) as caught, sole_faults():
        raise ExceptionGroup("a", [ExceptionGroup("b", [inner])])
    assert (caught.value, caught.value.__cause__) == (inner, cause)
    for other in (ExceptionGroup("a", [inner, ValueError()]), ValueError(), inner):
        with pytest.raises(type(other)) as left, sole_faults():
            raise other
        assert left.value is other


@pytest.mark.parametrize("kind", FAMILIES)
def test_messages_without_extras_have_no_empty_members(kind: type[Fault]) -> None:
    assert set(to_problem(kind("x"))) == {"title", "status", "detail", "family", "exitCode"}


def test_others_are_told_no_causes_and_nothing_of_this_machine() -> None:
    try:
        raise OSError(28, "No space left", "/home/alice/odfd")
    except OSError as cause:
        faults = [kind("in /home/alice/odfd", rule="r", hint="look there") for kind in (Environment, Bug, Fault)]
        for fault in faults:
            fault.__cause__ = cause
            assert "alice" not in str(to_problem(told_to_others(fault)))
        fault = NotFound("no x here", rule="r", hint="there is y", place="line 1")
        fault.__cause__ = cause
        assert to_problem(told_to_others(fault)) == {
            name: value for name, value in to_problem(fault).items() if name != "causes"
        }


def test_others_are_told_which_slice_of_a_dataset_cannot_be_read() -> None:
    fault = ObjectDamaged(Multihash.sha3_256(b"x"))
    assert told_to_others(fault).message == "this node cannot answer it now"
    fault.place = "cities block #7"
    told = told_to_others(fault)
    assert (told.message, told.place, told.rule) == (fault.message, fault.place, fault.rule)
    assert "--repair" not in told.hint
