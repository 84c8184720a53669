"""Text of strangers reaches a terminal with nothing in it that a terminal obeys, by whichever way it is written."""

from __future__ import annotations

import errno
import io
import json
import logging
import sys
import unicodedata
import warnings
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from chain import errors as chain_errors
from chain.codec.yaml_tree import parse
from chain.errors import Conflict, Environment, Fault, Invalid, NotFound, Refused, Remote
from chain.multihash import Multihash
from chain.store.files import ObjectDamaged
from chain.terminal_text import escaped, is_visible, visible
from chain.yaml_text import render_yaml
from odfd import output
from odfd.cli import main as cli
from odfd.cli.main import main as odfctl
from odfd.cli.progress import Meter
from odfd.cli.session import Session, to_yaml
from odfd.control import wire
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
from odfd.obs import log

ATTACKS = {
    "colour": "\x1b[31mred",
    "title": "\x1b]0;owned\x07",
    "answers": "\x1b[6n\x05",
    "C1": "\x9b31m",
    "carriage return": "all is well\rsomething else",
    "backspace": "good\x08\x08\x08\x08bad",
    "delete": "a\x7f",
    "override": "invoice\u202egpj.exe",
    "isolate": "\u2066a\u2069",
    "invisible": "pay\u200bpal\ufeff",
    "tags": "hi\U000e0041",
    "separator": "a\u2028b",
    "no character": "\udc80",
}
KEPT = "\n\t\u200c\u200d\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
"""Lines, joiners, and signs that stand under numbers: Unicode calls the latter formats, and they are seen."""


def obeyed(text: str) -> list[str]:
    """What a terminal or its layout would obey."""
    return [char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") and char not in KEPT]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("text", ATTACKS.values(), ids=ATTACKS.keys())
def test_no_way_lets_anything_through(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-CARD-03: names, keywords, cells and messages with terminal commands, or characters that change text
    direction.

    Defence: one writer for all output and each line of the log; control characters are shown as a replacement, in JSON
    and YAML as an escape.
    """
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    session: Any = object.__new__(Session)
    session.quiet = False
    for form in ("table", "json", "yaml", "ndjson"):
        session.output = form
        session.show({text: [text]}, lambda value: f"NAME\n{next(iter(value))}")
        session.line({text: text}, text)
    session.remark(text)
    cli._report(Invalid(text, rule=text, hint=text, place=text), verbose=True)
    output.trace(ValueError(text))
    assert not obeyed(out.getvalue())
    ours = "\x1b[31merror\x1b[0m:"
    assert ours in err.getvalue()
    assert not obeyed(err.getvalue().replace(ours, "", 1))


@pytest.mark.parametrize("text", ATTACKS.values(), ids=ATTACKS.keys())
def test_progress_draws_on_its_line_alone(text: str) -> None:
    terminal = Terminal()
    session: Any = object.__new__(Session)
    session.quiet, session.clock = False, type("Clock", (), {"monotonic": lambda _: 0})()
    task = wire.TaskState(kind="pull", target=text, state="running", message=text + "\nmore")
    Meter(session, terminal).show(task)
    drawn = terminal.getvalue()
    assert drawn.startswith("\r\x1b[K")
    assert not obeyed(drawn.removeprefix("\r\x1b[K"))
    assert "\n" not in drawn


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("text", ATTACKS.values(), ids=ATTACKS.keys())
def test_no_line_of_the_log_lets_anything_through(text: str, form: str) -> None:
    stream = io.StringIO()
    logging.captureWarnings(False)  # another test may have left it on, for a recorder that is gone
    log.configure("debug", form, stream)
    try:
        structlog.get_logger(room=text).warning(text, peer=text, several=[text, {text: text}])
        try:
            raise ValueError(text)
        except ValueError as error:
            structlog.get_logger().error("failed", exc_info=error)
        logging.getLogger("library").error("said %s", text)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn(text, stacklevel=1)
    finally:
        logging.captureWarnings(False)
        log.configure("info", "json", io.StringIO())
        logging.captureWarnings(False)
    assert not obeyed(stream.getvalue()), stream.getvalue()
    assert "said" in stream.getvalue()
    assert "failed" in stream.getvalue()
    assert "UserWarning" in stream.getvalue()


@pytest.mark.slow
@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_says_the_same(value: Any) -> None:
    said = escaped(json.dumps(value, ensure_ascii=False))
    assert json.loads(said) == value
    assert not obeyed(said)


@pytest.mark.slow
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_yaml_says_the_same(text: str) -> None:
    said = render_yaml({"name": text})
    assert is_visible(said)
    assert yaml.safe_load(said) == yaml.safe_load(yaml.dump({"name": text}, allow_unicode=False))


@given(st.text(st.characters(exclude_categories=["Cs"])) | st.from_regex(r"[-+]?[0-9eExob_.:]{1,9}", fullmatch=True))
@example("1e3")
@example("0o17")
@example("a\nb\n")
def test_text_of_a_manifest_that_is_printed_is_text_when_it_is_applied(text: str) -> None:
    """Also what other readers of YAML take for text, and ours, by YAML 1.2, for a number."""
    (node,) = parse(to_yaml({"a": text}), "m")
    assert isinstance(node.value, dict)
    assert node.value["a"].value == text


@pytest.mark.slow
@given(st.text(st.characters() | st.sampled_from("".join(ATTACKS.values()))))
def test_text_is_made_visible_once_and_for_all(text: str) -> None:
    shown = visible(text)
    assert not obeyed(shown)
    assert is_visible(shown)
    assert visible(shown) == shown
    assert len(shown) == len(text)


@pytest.mark.slow
def test_every_character_is_told_apart() -> None:
    wrong = [
        hex(number) for number in range(sys.maxunicode + 1)
        if is_visible(chr(number)) is bool(obeyed(chr(number))) and unicodedata.category(chr(number)) != "Cn"
    ]  # fmt: skip
    assert wrong == []


def test_what_people_write_is_left_as_it_is() -> None:
    for text in ("Ünïcode 日本\t✓\nnext", "می\u200cخواهم", "👩\u200d🔬", "a\u00a0b", "ﷺ"):
        assert visible(text) == text


def test_a_bundle_is_not_written_to_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert output.is_terminal()


@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1", "utf-8"])
def test_a_locale_without_a_character_gets_its_escape(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    text = {"ß": "日本 𝄞 …"}
    output.say_json(json.dumps(text, ensure_ascii=False))
    output.say("├─ f1620 58b0…62  日")
    first, second = raw.getvalue().decode(encoding).splitlines()
    assert json.loads(first) == text
    assert second == ("├─ f1620 58b0…62  日" if encoding == "utf-8" else "|- f1620 58b0~62  \\u65e5")


def test_a_line_that_is_drawn_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_columns", lambda _: 8)
    for text, shown in (("1234567", "1234567"), ("123456789", "123…789"), ("日本語日", "日…日"), ("ab…", "ab…")):
        terminal = Terminal()
        output.draw(terminal, text)
        assert terminal.getvalue() == f"\r\x1b[K{shown}"


def test_nothing_is_drawn_on_a_terminal_that_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert (output.draws(Terminal()), output.draws(io.StringIO())) == (True, False)
    monkeypatch.setenv("TERM", "dumb")
    assert not output.draws(Terminal())


# Exit codes are a contract; faults survive the wire; messages help.


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
    always = {"title", "status", "detail", "family", "exitCode"}
    assert set(to_problem(kind("x"))) == (always | {"rule"} if kind is Usage else always)


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
