"""Every bound of ``p2p/wire/limits.py`` is kept: at the bound is taken, one over is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chain.codec.blocks import MAX_BLOCK as CODEC_MAX_BLOCK
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.multihash import Multihash
from p2p.ports import StatementRef, Topic
from p2p.wire import chains, limits, objects, refusal, trust
from p2p.wire.chains import BlockRange, Blocks
from p2p.wire.frames import FrameReader, frame
from p2p.wire.objects import ObjectBytes, ObjectRange
from p2p.wire.refusal import Reason, Refusal

DATASET = DatasetId.from_public_key(bytes(32))
NAME = Multihash.sha3_256(b"")


def sid(number: int) -> Multihash:
    return Multihash.from_digest(0x16, number.to_bytes(32, "big"))


def one_block(size: int) -> Any:
    return chains.decode_chain_reply(chains.encode_blocks(Blocks(request=0, size=1, start=0, blocks=(bytes(size),))))


def blocks_asked(blocks: int, size: int) -> Any:
    ask = BlockRange(request=0, dataset=DATASET, start=0, max_blocks=blocks, max_bytes=size)
    return chains.decode_range(chains.encode_range(ask))


def trust_reply(size: int) -> Any:
    body = trust.encode(trust.Statements((), 1))
    return trust.decode_tell(body + b" " * (size - len(body)))


def trust_request(size: int) -> Any:
    body = trust.encode(trust.SumAsk())
    return trust.decode_ask(body + b" " * (size - len(body)))


def listing(count: int) -> Any:
    refs = [StatementRef(sid(number), DATASET) for number in range(count)]
    return trust.decode_tell(trust.encode(trust.page(refs, more=False)))


AT: dict[str, Callable[[int], Any]] = {
    "MAX_BLOCK": one_block,
    "MAX_RANGE_BYTES": lambda size: blocks_asked(1, size),
    "MAX_RANGE_BLOCKS": lambda count: blocks_asked(count, 1),
    "MAX_OBJECT_READ": lambda length: (
        objects.decode_read(objects.encode_read(ObjectRange(request=0, name=NAME, offset=0, length=length))),
        objects.decode_object_reply(
            objects.encode_bytes(ObjectBytes(request=0, size=length, offset=0, data=bytes(length)))
        ),
    ),
    "MAX_REQUEST": lambda size: FrameReader(limits.MAX_REQUEST).feed(frame(bytes(size))),
    "MAX_REPLY": lambda size: FrameReader(limits.MAX_REPLY).feed(frame(bytes(size))),
    "MAX_REASON": lambda size: refusal.decode_refusal(refusal.encode_refusal(Refusal(0, Reason.BUSY)) + b"x" * size),
    "MAX_ENVELOPE": lambda size: trust.decode_tell(
        trust.encode(trust.Statements((trust.Signed(Topic.HEADS, bytes(size)),), 1))
    ),
    "MAX_TRUST_REQUEST": trust_request,
    "MAX_TRUST_REPLY": trust_reply,
    "BUCKETS": lambda count: trust.decode_ask(trust.encode(trust.ListAsk(buckets=(count - 1,)))),
    "MAX_SIDS": lambda count: trust.decode_ask(trust.encode(trust.GetAsk(tuple(map(sid, range(count)))))),
    "MAX_DATASETS": lambda count: trust.decode_ask(trust.encode(trust.ListAsk(datasets=(DATASET,) * count))),
    "MAX_LISTED": listing,
}
UNITS = {"KIB", "MIB"}


def test_every_limit_is_here() -> None:
    assert {name for name in vars(limits) if name.isupper()} == {*AT, *UNITS}


@pytest.mark.parametrize("name", AT)
def test_at_the_limit_and_one_over(name: str) -> None:
    limit = getattr(limits, name)
    AT[name](limit)
    with pytest.raises(Invalid):
        AT[name](limit + 1)


def test_a_block_that_can_be_written_can_be_sent() -> None:
    assert limits.MAX_BLOCK == CODEC_MAX_BLOCK


def test_the_largest_messages_fit_their_frames() -> None:
    refs = [StatementRef(sid(n), DatasetId.from_public_key(n.to_bytes(32, "big"))) for n in range(limits.MAX_LISTED)]
    assert len(trust.encode(trust.page(refs, more=True))) <= limits.MAX_TRUST_REPLY
    assert len(trust.encode(trust.GetAsk(tuple(map(sid, range(limits.MAX_SIDS)))))) <= limits.MAX_TRUST_REQUEST
    assert len(trust.encode(trust.ListAsk(datasets=(DATASET,) * limits.MAX_DATASETS))) <= limits.MAX_TRUST_REQUEST
