"""The columns of the arrays in `tables.Tables`."""

from __future__ import annotations

from typing import get_args

from headway.spec.transports import Kind

KINDS = get_args(Kind)

# Columns of the tables.
RANKS, WINDOW, TIMEOUTS, CHANNELS = range(4)  # globals: channels are the most that share a wire
WORD, SHIFT, MASK = range(3)  # fields: ranks, then queues, then pairs
KIND, TARGET, DETAIL, HANDLE, FIRST, SIZE, PASS, FLAGS = range(8)  # local states, see `automata`; successors in `after`
HELD, ALONE, CLOSING, ADVANCES, TURNS = 1, 2, 4, 8, 4  # bits of FLAGS; from place TURNS on turns of collectives
EDGE_WIRE, EDGE_CHANNEL, SOURCE, SINK, TRANSPORT, CREDITS, CAPACITY = range(
    7
)  # edges: channel is its place on the wire
STASH, GROUP, PAIR, CANCELS = range(7, 11)  # queue of the stash or -1; who shares a stash or -1; field of a pair or -1
BASE, PUSH_BASE, MESSAGES, WIRE_SINK, BACK, WIRE_CREDITS, MESSAGE_BASE = range(7)  # queues: wires, then stashes
LENGTH, HEAD, POPPED, PRESENT, BLOCKED = range(5)  # contents: head is -1 when empty, -2 when lost; bits of channels
LAST, LIVE = range(2)  # by channel: place of the last message, -1 none, -2 lost; number of messages not lost
PUSHED, DROPPED, OVERWRITTEN = range(3)  # after a post, one that is lost, one that loses the last of its channel too
