"""The smart protocol: its machines, its messages, and batches of blocks."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import tarfile
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.errors import Conflict, Fault, Invalid, Refused, Remote
from chain.multihash import Multihash
from odfd.smart import batches, messages, pull, push
from odfd.smart.batches import PULLED, PUSHED, BatchTooLarge, Unpacker, pack
from odfd.smart.messages import (
    Empty,
    ObjectFile,
    OpenPull,
    OpenPush,
    PullAnswer,
    PullObjects,
    PullStrategies,
    PushAnswer,
    PushObjects,
    PushObjectsAnswer,
    TransferPlan,
    UploadProgress,
    decode,
    encode,
)
from odfd.smart.pull import PullClient, PullServer
from odfd.smart.push import PushClient, PushServer

# The machines of the smart protocol, and its messages: a golden transcript of each, and any order of messages. The
# transcripts are written by hand, after the messages and the flow of kamu-cli 0.265 (commit f9553238) as its public
# source has them; no kamu was run for them.

A, B = Multihash.sha3_256(b"a"), Multihash.sha3_256(b"b")
PLAN = TransferPlan(num_blocks=2, num_objects=1, num_records=5, bytes_in_raw_blocks=700, bytes_in_raw_objects=1234)
PLAN_TEXT = '{"num_blocks":2,"num_objects":1,"num_records":5,"bytes_in_raw_blocks":700,"bytes_in_raw_objects":1234}'
FILE = ObjectFile(object_type="DataSlice", physical_hash=str(B), size=1234)
FILE_TEXT = f'{{"object_type":"DataSlice","physical_hash":"{B}","size":1234}}'
PLACE_TEXT = (
    f'{{"url":"http://h/x/data/{B}","headers":[{{"name":"x-odf-smtp-version","value":"1"}}],"expires_at":null}}'
)
HEADERS = {"x-odf-smtp-version": "1"}
KINDS: dict[type, str] = {
    OpenPull: f'{{"begin_after":"{A}","stop_at":null,"force_update_if_diverged":false}}',
    PullAnswer: f'{{"Ok":{{"transfer_plan":{PLAN_TEXT}}}}}',
    Empty: "{}",
    PullObjects: f'{{"object_files":[{FILE_TEXT}]}}',
    PullStrategies: f'{{"object_transfer_strategies":[{{"object_file":{FILE_TEXT},"pull_strategy":"HttpDownload",'
    f'"download_from":{PLACE_TEXT}}}]}}',
    OpenPush: f'{{"current_head":null,"transfer_plan":{PLAN_TEXT},"force_update_if_diverged":false,'
    '"visibility_for_created_dataset":"Private"}',
    PushAnswer: '{"Ok":{}}',
    PushObjects: f'{{"object_files":[{FILE_TEXT}],"is_truncated":false}}',
    PushObjectsAnswer: f'{{"Ok":{{"object_transfer_strategies":[{{"object_file":{FILE_TEXT},'
    f'"push_strategy":"HttpUpload","upload_to":{PLACE_TEXT}}}]}}}}',
    UploadProgress: '{"details":{"Running":{"uploaded_objects_count":1}}}',
}


@pytest.mark.parametrize("kind", KINDS)
def test_messages_are_written_as_kamu_writes_them(kind: type) -> None:
    assert encode(decode(KINDS[kind], kind)) == KINDS[kind]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, messages.PullFailure, messages.PushFailure])
@settings(max_examples=25)
@given(st.data())
def test_messages_come_back_and_noise_is_invalid(kind: type, data: Any) -> None:
    text = data.draw(st.text(max_size=60) | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda each: st.lists(each, max_size=3) | st.dictionaries(st.sampled_from(
            ["Ok", "Err", "details", "object_files", "transfer_plan", "Internal", "size", "phase"]), each, max_size=3),
    ).map(json.dumps))  # fmt: skip
    try:
        message = decode(text, kind)
    except Invalid:
        return
    assert decode(encode(message), kind) == message


def test_the_transcript_of_a_pull() -> None:
    client, server = PullClient(), PullServer("http://h/x/", HEADERS)
    asked = client.begin(A, None).text
    assert asked == KINDS[OpenPull]
    assert server.receive(asked) == pull.Resolve(A, None, False)
    planned = server.answer_plan(PLAN).text
    assert planned == KINDS[PullAnswer]
    ask, take = client.receive(planned)
    assert (ask, take) == (pull.Say("{}"), pull.TakeBlocks(PLAN))
    assert server.receive("{}") == pull.GiveBlocks()
    server.end_metadata()
    client.note_taken(PLAN, 2)
    assert server.is_idle
    wanted = client.ask([FILE]).text
    assert wanted == KINDS[PullObjects]
    placed = server.receive(wanted)
    assert placed == pull.Say(KINDS[PullStrategies])
    (read,) = client.receive(placed.text)
    assert isinstance(read, pull.ReadAt)
    assert client.end() == pull.Bye()


def test_the_transcript_of_a_push() -> None:
    client, server = PushClient(), PushServer("http://h/x/", HEADERS)
    said = client.begin(None, PLAN).text
    assert said == KINDS[OpenPush]
    assert server.receive(said) == push.CheckHead(PLAN, False)
    accepted, take = server.head_is(None)
    assert (accepted, take) == (pull.Say('{"Ok":{}}'), pull.TakeBlocks(PLAN))
    assert client.receive('{"Ok":{}}') == pull.GiveBlocks()
    assert client.receive(server.note_taken(2).text) == push.NextObjects()
    asked = client.objects([FILE], is_last=True).text
    assert asked == KINDS[PushObjects]
    assert server.receive(asked) == push.Negotiate((FILE,))
    placed = server.lacking({B}).text
    assert placed == KINDS[PushObjectsAnswer]
    upload = client.receive(placed)
    assert isinstance(upload, push.UploadObjects)
    assert server.is_asking
    assert client.receive(server.tick().text) == pull.Say('{"details":{"Running":{"uploaded_objects_count":0}}}')
    client.note_upload()
    running = client.receive("{}")
    assert running == pull.Say(KINDS[UploadProgress])
    assert server.receive(running.text) == push.Wait()
    complete, end = client.upload_over()
    assert (complete, end) == (pull.Say('{"details":"Complete"}'), pull.Say("{}"))
    assert server.receive(complete.text) == push.Wait()
    assert server.receive(end.text) == push.CommitStaged()
    # A question for progress that crossed looks as the confirmation does: the head tells them apart.
    assert client.receive("{}") == push.LookAtHead()
    assert client.head_seen(is_ours=False) == push.Wait()
    assert client.receive(server.note_commit().text) == push.LookAtHead()
    assert client.head_seen(is_ours=True) == pull.Bye()
    assert server.is_over


def test_objects_go_in_pages() -> None:
    client, server = PushClient(), PushServer("http://h/x/", HEADERS)
    server.receive(client.begin(None, PLAN).text)
    client.receive(server.head_is(None)[0].text)  # type: ignore[union-attr]
    client.receive(server.note_taken(2).text)
    for is_last in (False, True):
        asked = client.objects([FILE], is_last=is_last).text
        assert json.loads(asked)["is_truncated"] is not is_last
        server.receive(asked)
        skipped = client.receive(server.lacking(set()).text)
        assert isinstance(skipped, push.UploadObjects)
        assert [each.push_strategy for each in skipped.strategies] == ["SkipUpload"]
        effects = client.upload_over()
        assert server.receive(effects[0].text) == push.Wait()  # type: ignore[union-attr]
        assert client.receive("{}") == (push.LookAtHead() if is_last else push.Wait())
    assert server.receive(effects[1].text) == push.CommitStaged()  # type: ignore[union-attr]


@given(st.lists(st.sampled_from([*KINDS.values(), '{"details":"Complete"}', '{"Err":{}}', "[]"]), max_size=8))
def test_any_order_of_messages_ends_in_words(texts: list[str]) -> None:
    """A machine that is given messages at the wrong time raises Fault, and no other exception."""
    client_pull, client_push = PullClient(), PushClient()
    client_pull.begin(A, B)
    client_push.begin(A, PLAN)
    for machine in (PullServer("http://h/x/", {}), PushServer("http://h/x/", {}), client_pull, client_push):
        for text in texts:
            try:
                effects = machine.receive(text)
                if isinstance(effects, pull.Resolve):
                    machine.answer_plan(PLAN)
                elif isinstance(effects, push.CheckHead):
                    machine.head_is(None)
                elif isinstance(effects, push.Negotiate):
                    machine.lacking([])
            except Fault:
                break


FAULTS = [
    Refused("nothing of it", rule="push-private", hint="no"),
    Invalid('"\\\n\x00ü' * 40, rule="x"),
    Conflict("moved", rule="import-diverged"),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_failures_fit_and_are_understood(fault: Fault) -> None:
    """The reason of an end has 123 bytes; where kamu takes a failure for a confirmation, its code is another."""
    server, pulls = PushServer("http://h/x/", HEADERS), PullServer("http://h/x/", HEADERS)
    ended = [server.failure(fault), pulls.failure(fault)]
    server.receive(PushClient().begin(None, PLAN).text)
    answered = server.failure(fault)
    assert isinstance(answered, pull.Say)
    assert decode(answered.text, PushAnswer).err is not None
    server.head_is(None)
    server.note_taken(2)
    server.receive(KINDS[PushObjects])
    server.lacking([])
    ended.append(server.failure(fault))
    server.receive('{"details":"Complete"}')
    server.receive("{}")
    last = server.failure(fault)
    assert isinstance(last, pull.Fail)
    assert last.code == pull.DENIED
    for each in (*ended, last):
        assert isinstance(each, pull.Fail)
        assert len(each.reason.encode()) <= 123
    told = PushClient().fault_of_close(last.reason)
    assert isinstance(told, Conflict if fault.rule == "import-diverged" else Remote)
    assert isinstance(PullClient().fault_of_close("no json"), Remote)
    with pytest.raises(Invalid):
        decode(last.reason, Empty)


def test_answers_of_failure_have_their_families() -> None:
    def told(err: str) -> Fault:
        client = PushClient()
        client.begin(A, PLAN)
        with pytest.raises(Fault) as caught:
            client.receive(f'{{"Err":{err}}}')
        return caught.value

    assert told(f'{{"InvalidHead":{{"actual_head":null,"expected_head":"{B}"}}}}').rule == "compare-and-append"
    assert told('{"NameCollision":{"dataset_alias":"x"}}').rule == "smart-collision"
    assert told('{"RefCollision":{"dataset_id":"did:odf:x"}}').rule == "smart-collision"
    assert told('{"SeedBlockOverwriteRestricted":{}}').rule == "export-diverged"
    client = PullClient()
    client.begin(A, B)
    with pytest.raises(Conflict) as caught:
        client.receive(f'{{"Err":{{"InvalidInterval":{{"head":"{B}","tail":"{A}"}}}}}}')
    assert caught.value.rule == pull.INTERVAL
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode('{"Ok":{},"Err":{}}', type=PushAnswer)


def test_other_objects_than_were_asked_for_are_refused() -> None:
    client = PullClient()
    client.begin(None, None)
    client.receive(KINDS[PullAnswer])
    with pytest.raises(Invalid, match="2 blocks promised"):
        client.note_taken(PLAN, 1)
    client.ask([msgspec.structs.replace(FILE, physical_hash=str(A))])
    with pytest.raises(Invalid, match="other objects"):
        client.receive(KINDS[PullStrategies])


# Batches of blocks: whatever is packed comes out, however it is cut, and nothing else does.

RAWS = st.lists(st.binary(max_size=700), max_size=5)


def named(raws: list[bytes]) -> list[tuple[Multihash, bytes]]:
    return [(Multihash.sha3_256(raw), raw) for raw in raws]


def unpacked(pieces: list[str], member: str = PULLED) -> list[bytes]:
    unpacker, found = Unpacker(member), []
    for piece in pieces:
        found += unpacker.feed(piece)
    assert unpacker.finish() == len(found)
    assert all(Multihash.sha3_256(raw) == name for name, raw in found)
    return [raw for _, raw in found]


@given(RAWS, st.lists(st.integers(0, 20_000), max_size=12))
def test_any_split_gives_the_blocks_back(raws: list[bytes], cuts: list[int]) -> None:
    text = "".join(pack(PULLED, len(raws), named(raws)))
    edges = [0, *sorted(min(each, len(text)) for each in cuts), len(text)]
    assert unpacked([text[a:b] for a, b in itertools.pairwise(edges)]) == raws


@given(RAWS)
def test_other_implementations_agree(raws: list[bytes]) -> None:
    """Python's own tar, gzip and JSON read what is packed, and what they write is unpacked."""
    said = json.loads("".join(pack(PUSHED, len(raws), named(raws))))["new_blocks"]
    assert (said["num_blocks"], said["media_type"], said["encoding"]) == (len(raws), "application/tar+gzip", "raw")
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(bytes(said["payload"])))) as archive:
        assert [(each.name, archive.extractfile(each).read()) for each in archive] == [  # type: ignore[union-attr]
            (str(name), raw) for name, raw in named(raws)
        ]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, raw in named(raws):
            entry = tarfile.TarInfo(str(name))
            entry.size = len(raw)
            archive.addfile(entry, io.BytesIO(raw))
    said["payload"] = list(gzip.compress(packed.getvalue()))
    assert unpacked([json.dumps({"new_blocks": said}, indent=1)], PUSHED) == raws


@pytest.mark.slow
@given(st.text(max_size=200), st.binary(max_size=200), st.integers(0, 400))
def test_garbage_is_invalid(text: str, noise: bytes, at: int) -> None:
    whole = "".join(pack(PULLED, 1, named([b"block"])))
    payload = json.dumps({"blocks": {"num_blocks": 1, "media_type": "application/tar+gzip", "encoding": "raw",
                                     "payload": list(noise)}})  # fmt: skip
    for bad in (text, payload, whole[:at], whole[:at] + text + whole[at:]):
        unpacker = Unpacker(PULLED)
        try:
            found = unpacker.feed(bad)
            unpacker.finish()
        except Invalid:
            continue
        assert [raw for _, raw in found] in ([], [b"block"])


def changed(**more: object) -> str:
    said = json.loads("".join(pack(PULLED, 1, named([b"block"]))))
    said["blocks"] |= more
    return json.dumps(said)


@pytest.mark.parametrize(
    "text, why",
    [
        (changed(num_blocks=2), "says 2"),
        (changed(media_type="application/zip"), "not known"),
        (changed(encoding="base64"), "not known"),
        (changed(payload=[1, 2, 300]), "list of bytes"),
        (changed(payload=["1"]), "list of bytes"),
        (changed(payload=[-1]), "list of bytes"),
        (changed(payload=[]), "gzip does not end"),
        (changed(payload=list(gzip.compress(b"x" * 600))), "archive"),
        (changed(payload=list(gzip.compress(b"") + b"more")), "gzip"),
        ('{"blocks":{"payload":[1,]}}', "list of bytes"),
        ('{"blocks":{}}', "ends in"),
        ('{"new_blocks":{"num_blocks":0,"media_type":"application/tar+gzip","encoding":"raw","payload":['
         + ",".join(map(str, gzip.compress(bytes(1024)))) + "]}}", "no blocks"),
    ],
)  # fmt: skip
def test_what_is_no_batch(text: str, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        unpacked([text])


def test_a_block_under_another_name_is_refused() -> None:
    lied = [(Multihash.sha3_256(b"other"), b"block")]
    with pytest.raises(Invalid, match="is another"):
        unpacked(list(pack(PULLED, 1, lied)))


@pytest.mark.slow
def test_both_sides_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-REPO-03: a batch of blocks that unpacks to more than memory holds.

    Defence: it is unpacked as it comes, block by block, up to 256 MiB.
    """
    monkeypatch.setattr(batches, "MAX_TEXT", 200_000)
    raw = Multihash.sha3_256(b"").digest * 1
    noise = [Multihash.sha3_256(bytes([a, b])).digest + raw for a in range(64) for b in range(64)]
    with pytest.raises(BatchTooLarge):
        list(pack(PULLED, len(noise), named(noise)))
    monkeypatch.setattr(batches, "MAX_UNPACKED", 1 << 20)
    bomb = changed(payload=list(gzip.compress(bytes(64 << 20))))
    with pytest.raises(Invalid):
        unpacked([bomb])
    large = json.dumps({"x": "y" * 70_000})
    with pytest.raises(Invalid, match="no payload"):
        unpacked([large])
    assert "".join(pack(PULLED, 0, [])).endswith("]}}")
    assert unpacked(list(pack(PULLED, 0, []))) == []
