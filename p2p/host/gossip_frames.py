"""Checks a frame of gossip against limits, and computes what it costs, before any of it is acted on.

Works on the values of py-libp2p's protobuf classes and does nothing else: no clock, no network.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import msgspec

from chain.errors import Invalid
from chain.statements.keys import verify
from p2p.budget.work import GOSSIP_ENTRY, GOSSIP_FRAME, GOSSIP_MESSAGE

MAX_NAME: Final = 64
"""Bytes of a message's name in a control part; ours have 46: a peer id and a number."""
MAX_TOPIC: Final = 128
"""Characters of a topic's name; ours have 82 at most."""
ED25519: Final = bytes.fromhex("08011220")
"""The bytes before an Ed25519 public key in libp2p's 36-byte form."""
KEY_IN_NAME: Final = b"\x00\x24" + ED25519
"""The bytes before the key in a peer id that contains an Ed25519 key."""
SIGNED: Final = b"libp2p-pubsub:"
"""The prefix that is signed before every gossip message."""


class FrameLimits(msgspec.Struct, frozen=True, kw_only=True):
    max_messages: int = 256
    """Messages of one frame; all are judged before the peer's next frame is read."""
    max_control: int = 1024
    """Entries of one control part. A mesh has a dozen topics and a few hundred messages in its window."""
    max_subscriptions: int = 64
    """Topics joined or left in one frame, and topics kept of one peer.
    A network has four, and a peer may be in several."""
    max_message: int = 256 << 10
    """Bytes of one message's payload. A signed head has 1 KiB, a bundle of attestations some dozens."""


def entries_of(rpc: Any) -> int:
    """Counts the entries of the control part and the names in them."""
    control = rpc.control
    lists = (control.ihave, control.iwant, control.idontwant)
    return (
        len(control.graft)
        + len(control.prune)
        + sum(len(each) for each in lists)
        + sum(len(part.messageIDs) for each in lists for part in each)
    )


def check(rpc: Any, limits: FrameLimits) -> float:
    """Estimates the cost of a frame in microseconds. Raises Invalid if anything is more than an honest peer sends."""
    messages, subscriptions = len(rpc.publish), len(rpc.subscriptions)
    parts = len(rpc.control.ihave) + len(rpc.control.iwant) + len(rpc.control.idontwant)
    # Counting the names of a frame full of parts would be the work that is to be refused
    # (test_no_frame_of_gossip_holds_the_loop).
    entries = parts if parts > limits.max_control else entries_of(rpc)
    over = messages > limits.max_messages or subscriptions > limits.max_subscriptions or entries > limits.max_control
    if over:
        text = f"a frame of {messages} messages, {subscriptions} subscriptions and {entries} control entries"
        raise Invalid(text, rule="gossip-frame")
    return GOSSIP_FRAME + GOSSIP_MESSAGE * messages + GOSSIP_ENTRY * (subscriptions + entries)


def net_subscriptions(rpc: Any, topics: Collection[str]) -> dict[str, bool]:
    """Returns the net changes of subscriptions to ``topics``: a thousand joins and leaves of one are one change."""
    return {one.topicid: one.subscribe for one in rpc.subscriptions if one.topicid in topics}


def said_topics(before: frozenset[str], rpc: Any, most: int) -> frozenset[str]:
    """Returns all topics that a peer says it joined, ours or not: at most ``most``, and none with a too long name."""
    said = set(before)
    for one in rpc.subscriptions:
        if not one.subscribe:
            said.discard(one.topicid)
        elif len(said) < most and len(one.topicid) <= MAX_TOPIC:
            said.add(one.topicid)
    return frozenset(said)


def strip(rpc: Any, topics: Collection[str]) -> None:
    """Removes the parts of a frame that we do not act on.

    They are the addresses that a sender states for itself or others, since believing them would mean to verify them
    each time, and to dial wherever a stranger wants; and topics that we have not joined, because py-libp2p keeps a note
    of each for ever.
    """
    rpc.ClearField("senderRecord")
    control = rpc.control
    for name in ("ihave", "graft", "prune"):
        entries = getattr(control, name)
        kept = [entry for entry in entries if entry.topicID in topics]
        if len(kept) < len(entries):
            del entries[:]
            entries.extend(kept)
    for prune in control.prune:
        del prune.peers[:]
    for part in (*control.ihave, *control.iwant, *control.idontwant):
        # A name said a thousand times would fetch a message as often
        # (test_what_is_asked_for_a_thousand_times_is_given_thrice).
        names = list(dict.fromkeys(name for name in part.messageIDs if len(name) <= MAX_NAME))
        if len(names) < len(part.messageIDs):
            del part.messageIDs[:]
            part.messageIDs.extend(names)


def is_signed(message: Any, payload: bytes) -> bool:
    """Whether the named author signed ``payload``, the message without key and signature.

    Accepts Ed25519 only: all nodes of our networks use it, and other signatures cost up to a hundred times as much.
    """
    author: bytes = message.from_id
    key = author[len(KEY_IN_NAME) :]
    # libp2p's pubsub specification: the key may be left out if the author's id contains it, as an Ed25519 id does.
    if not author.startswith(KEY_IN_NAME) or len(key) != 32 or message.key not in (b"", ED25519 + key):
        return False
    # A message is named by author and number: with a longer number no IHAVE or IWANT could name it (MAX_NAME).
    return len(message.seqno) <= MAX_NAME - len(author) and verify(key, SIGNED + payload, message.signature)
