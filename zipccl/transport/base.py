"""The interface between the schedules and what moves bytes between ranks.

A schedule is data: steps of sends and receives of pieces. Messages make bytes of them, and a transport moves these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


def always() -> bool:
    """Be ready."""
    return True


@dataclass(slots=True)
class Piece:
    """Values that are one message."""

    address: int
    count: int
    compress: bool


@dataclass(slots=True)
class Values:
    """Values as they are, at an address, or the body of body_nbytes bytes that they were encoded to."""

    address: int
    count: int
    body_nbytes: int | None = None


@dataclass(slots=True)
class Send:
    """A piece that goes to one or more peers.

    Attributes:
        tag: messages of one tag arrive at a peer in the order in which they are sent.
        ready: tells whether the piece's values are there; what they wait for is received in an earlier step.
    """

    peers: Sequence[int]
    piece: Piece
    tag: int = 0
    ready: Callable[[], bool] = always


@dataclass(slots=True)
class Receive:
    """A piece's like from a peer: as many values, compressed or not.

    Attributes:
        use: is given the values, which are its own until it returns; None to put them where the piece says.
    """

    peer: int
    piece: Piece
    tag: int = 0
    use: Callable[[Values], None] | None = None


class Step(NamedTuple):
    """Messages that may be under way at once.

    What one rank sends another in its n-th step, that one receives in its n-th step, in the same order.
    """

    sends: Sequence[Send]
    receives: Sequence[Receive]


class Transfer(NamedTuple):
    """Bytes that go to or come from a peer, which knows how many."""

    peer: int
    address: int
    nbytes: int


class Coder(Protocol):
    """Makes messages of pieces in CPU memory, and pieces of messages whose size only the sender knows."""

    def capacity(self, piece: Piece) -> int:
        """Return the greatest size of a piece's message."""

    def prepare(self, send: Send, buffer: int) -> tuple[int, int]:
        """Return (address, nbytes) of a message, which stays unchanged until it is sent.

        Args:
            buffer: address of capacity bytes, to be used if the piece is to be compressed.
        """

    def consume(self, receive: Receive, address: int, nbytes: int) -> None:
        """Take a message, which is there until this returns; one that is used as it is stands at its place already."""


class Transport(Protocol):
    """Moves messages and bytes between the ranks of a communicator."""

    rank: int
    size: int
    nodes: Sequence[int]
    """For each rank the number of its node, counted from 0 in the order of ranks."""
