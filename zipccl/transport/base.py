"""The interface between the schedules and what moves bytes between ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol


def always() -> bool:
    """Be ready."""
    return True


@dataclass(slots=True)
class Send:
    """One message to one or more peers.

    Attributes:
        capacity: size of the buffer that prepare needs; 0 if it needs none.
        prepare: is given the buffer's address and returns (address, nbytes) of the message, which stays unchanged
            until the exchange has ended.
        ready: tells whether prepare may be called; what it waits for must come from messages received before.
        tag: messages of one tag arrive at a peer in the order in which they are sent.
    """

    peers: Sequence[int]
    capacity: int
    prepare: Callable[[int], tuple[int, int]]
    ready: Callable[[], bool] = always
    tag: int = 0


@dataclass(slots=True)
class Receive:
    """One message from a peer; only the sender knows its size.

    Attributes:
        capacity: the greatest size that it can have.
        consume: is given (address, nbytes) of the message, once it is there and those before it are consumed.
        target: address at which to receive it; None for a buffer that is consume's until it returns.
    """

    peer: int
    capacity: int
    consume: Callable[[int, int], None]
    target: int | None = None
    tag: int = field(default=0)


class Transport(Protocol):
    """Moves bytes between the ranks of a communicator. All ranks call the same method in the same order.

    Every method that waits raises CollectiveTimeoutError when nothing has moved for the time-out, TransportError when
    the layer below or another rank fails, and MismatchError when the ranks' calls do not fit.
    """

    rank: int
    size: int
    nodes: Sequence[int]
    """For each rank the number of its node, counted from 0 in the order of ranks."""

    def begin(self, call: str, *, compare: bool) -> None:
        """Begin a call of all ranks.

        Args:
            call: describes it, in words that are equal on all ranks.
            compare: exchange the descriptions and raise MismatchError on all ranks if they differ.
        """

    def announce(self, error: BaseException) -> None:
        """Make the other ranks raise in the current call too, because this one cannot finish it."""

    @property
    def broken(self) -> bool:
        """Whether no later call can succeed, because another rank makes none."""

    def announce_end(self, reason: str) -> None:
        """Make the other ranks raise in all later calls, because this one will make none."""

    def exchange(
        self, sends: Iterable[Send], receives: Iterable[Receive], local: Iterable[Callable[[], None]] = ()
    ) -> None:
        """Send and receive messages, a few of each at a time, each in its order; prepare and consume overlap them.

        Args:
            local: what else is to be done, in small steps, while there is nothing to send or receive.
        """

    def all_gather(self, source: int, nbytes: int, target: int) -> None:
        """Gather nbytes bytes from each rank, as they are, in rank order."""

    def all_to_all(self, source: int, nbytes: int, target: int) -> None:
        """Exchange nbytes bytes with each rank, as they are."""

    def broadcast(self, address: int, nbytes: int, root: int) -> None:
        """Send nbytes bytes from the root to all, as they are."""

    def barrier(self) -> None:
        """Wait until all ranks are here."""

    def close(self) -> None:
        """Free what the transport holds."""
