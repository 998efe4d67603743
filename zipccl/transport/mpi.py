"""The transport of CPU ranks: non-blocking MPI, progressed by the calling thread.

Nothing here blocks inside MPI: every wait polls, so that a time-out can be kept and a dead peer is noticed.
"""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import tee
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from zipccl.buffers import Buffer, BufferPool, never_free
from zipccl.config import Config
from zipccl.errors import CollectiveTimeoutError, MismatchError, PeerFailedError, TransportError
from zipccl.transport.base import Coder, Kept, Receive, Send, Step, Transfer
from zipccl.transport.control import ControlChannel

_SPINS_BEFORE_YIELD = 200
"""Polls in a row without progress after which a waiting rank lets others run on its core."""

_PATIENCE = 1.0
"""Seconds without progress that a rank still waits for one that has ended: what that had sent may be under way."""

_IN_FLIGHT = 4
"""Messages posted at a time in each direction, at least; with more peers, two a peer."""


_MESSAGE_TAG, _NOTE_TAG, _TRANSFER_TAG = range(3)

_TEXT_NBYTES = 256


class MpiTransport:
    """Moves what is in CPU memory, and lets ranks tell each other about their calls, by MPI.

    All ranks call the same method in the same order. Every method that waits raises CollectiveTimeoutError when nothing
    has moved for the time-out, TransportError when MPI or another rank fails, and MismatchError when the ranks' calls
    do not fit.
    """

    def __init__(self, communicator: MPI.Comm, nodes: Sequence[int], config: Config) -> None:
        self._communicator = communicator
        try:
            self._control = ControlChannel(communicator.Dup())
        except MPI.Exception as error:
            raise TransportError(
                f"MPI cannot make another communicator: {error.Get_error_string()}; close() those no longer needed"
            ) from error
        self.rank: int = communicator.rank
        self.size: int = communicator.size
        self.nodes = nodes
        self._config = config
        self._pool = BufferPool()
        self._process = os.getpid()
        self._closed = False
        self._failed = False
        atexit.register(_announce_exit, weakref.ref(self))

    def begin(self, call: str, *, compare: bool) -> None:
        """Begin a call of all ranks.

        Args:
            call: describes it, in words that are equal on all ranks.
            compare: exchange the descriptions and raise MismatchError on all ranks if they differ.
        """
        self._control.begin(call)
        if compare:
            self._control.compare(self._poll)

    @property
    def allows_threads(self) -> bool:
        """Whether a thread may make calls while another makes calls on another communicator."""
        return MPI.Query_thread() >= MPI.THREAD_MULTIPLE

    def announce(self, error: BaseException) -> None:
        """Make the other ranks raise in the current call too, because this one cannot finish it."""
        self._control.announce(error)

    @property
    def failed(self) -> bool:
        """Whether something that was begun has not ended: what comes next could meet it."""
        return self._failed

    @property
    def broken(self) -> bool:
        """Whether no later call can succeed, because another rank makes none."""
        return self._control.broken

    def announce_end(self, reason: str) -> None:
        """Make the other ranks raise in all later calls, because this one will make none."""
        self._control.announce_end(reason)

    def exchange(self, steps: Iterable[Step], coder: Coder, local: Iterable[Callable[[], None]] = ()) -> None:
        """Send and receive messages, a few of each at a time, each in its order; coding overlaps with them.

        Steps do not wait for one another, except where a send is not ready.

        Args:
            local: what else is to be done, in small steps, while there is nothing to send or receive.
        """
        exchange = _Exchange(self._communicator, self._pool, steps, coder, local)
        self._finish(exchange, exchange.advance, exchange.describe, exchange.awaited, exchange)

    def exchange_notes(
        self, sends: Sequence[tuple[int, bytes]], receives: Sequence[int], nbytes: int
    ) -> list[bytearray]:
        """Send notes of nbytes bytes to peers, given as (peer, note), and return those from the peers to receive from.

        A peer may occur several times; its notes stay in order.
        """
        notes = [bytearray(nbytes) for _ in receives]
        outgoing = [self._communicator.Isend([note, MPI.BYTE], peer, _NOTE_TAG) for peer, note in sends]
        incoming = [
            self._communicator.Irecv([note, MPI.BYTE], peer, _NOTE_TAG)
            for peer, note in zip(receives, notes, strict=True)
        ]

        def describe() -> str:
            missing = {peer for peer, request in zip(receives, incoming, strict=True) if not request.Test()}
            return f"a note from rank {', '.join(map(str, sorted(missing)))}"

        requests = outgoing + incoming
        self._finish((sends, notes, requests), lambda: MPI.Request.Testall(requests), describe, lambda: receives)
        return notes

    def gather_texts(self, text: str) -> list[str]:
        """Return the texts of all ranks, in rank order."""
        peers = [peer for peer in range(self.size) if peer != self.rank]
        note = text.encode()[:_TEXT_NBYTES].ljust(_TEXT_NBYTES, b"\0")
        notes = self.exchange_notes([(peer, note) for peer in peers], peers, _TEXT_NBYTES)
        texts = [bytes(note).rstrip(b"\0").decode(errors="replace") for note in notes]
        return [*texts[: self.rank], text, *texts[self.rank :]]

    def transfer(self, sends: Sequence[Transfer], receives: Sequence[Transfer], owner: object = None) -> None:
        """Send bytes to peers and receive bytes from them, all at once; both sides know how many.

        Args:
            owner: what keeps the memory alive.
        """
        parts = self._config.max_message_nbytes
        requests = [
            start(_memory(transfer.address + at, min(parts, transfer.nbytes - at)), transfer.peer, _TRANSFER_TAG)
            for start, transfers in ((self._communicator.Irecv, receives), (self._communicator.Isend, sends))
            for transfer in transfers
            for at in range(0, transfer.nbytes, parts)
        ]
        peers = sorted({transfer.peer for transfer in (*sends, *receives)})
        self._finish(
            (owner, requests),
            lambda: MPI.Request.Testall(requests),
            lambda: f"rank {', '.join(map(str, peers))} to send or receive",
        )

    def greatest(self, numbers: Sequence[float]) -> list[float]:
        """Return the greatest of all ranks' numbers, one for one; all ranks give as many."""
        return self.gather_numbers(np.array(numbers, np.float64)).max(axis=0).tolist()

    def gather_numbers(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Return the numbers of all ranks, a row for each; all ranks give as many of the same type."""
        all_numbers = np.empty((self.size, numbers.size), numbers.dtype)
        if self.size == 1:
            all_numbers[0] = numbers
        else:
            self.all_gather(numbers.ctypes.data, numbers.nbytes, all_numbers.ctypes.data, (numbers, all_numbers))
        return all_numbers

    def wait(self, done: Callable[[], bool], describe: Callable[[], str]) -> None:
        """Wait until something is done, while listening to the other ranks.

        Args:
            describe: names what is waited for, for the error when nothing happens for the time-out.
        """
        self._poll(done, describe)

    def all_gather(self, source: int, nbytes: int, target: int, owner: object = None) -> None:
        """Gather nbytes bytes from each rank, as they are, in rank order.

        Args:
            owner: what keeps the memory alive, if the caller does not when this fails.
        """
        in_place = source == target + self.rank * nbytes
        own = MPI.IN_PLACE if in_place else _memory(source, nbytes)
        self._wait(self._communicator.Iallgather(own, _memory(target, nbytes, self.size)), owner)

    def all_to_all(self, source: int, nbytes: int, target: int) -> None:
        """Exchange nbytes bytes with each rank, as they are."""
        self._wait(self._communicator.Ialltoall(_memory(source, nbytes, self.size), _memory(target, nbytes, self.size)))

    def broadcast(self, address: int, nbytes: int, root: int) -> None:
        """Send nbytes bytes from the root to all, as they are."""
        self._wait(self._communicator.Ibcast(_memory(address, nbytes), root))

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self._wait(self._communicator.Ibarrier())

    def split(self, color: int | None, key: int) -> MpiTransport | None:
        """Return a transport of the ranks that give the same color, in the order of keys, or else None.

        Raises:
            TransportError: MPI cannot make another communicator.
        """
        self.barrier()  # MPI's own call would wait for a missing rank without end
        try:
            part = self._communicator.Split(MPI.UNDEFINED if color is None else color, key)
        except MPI.Exception as error:
            raise TransportError(
                f"MPI cannot make another communicator: {error.Get_error_string()}; close() those no longer needed"
            ) from error
        if part == MPI.COMM_NULL:
            return None
        ranks = part.group.Translate_ranks(None, self._communicator.group)
        nodes = list(dict.fromkeys(self.nodes[rank] for rank in ranks))
        return MpiTransport(part, [nodes.index(self.nodes[rank]) for rank in ranks], self._config)

    def close(self) -> None:
        """Free what the transport holds."""
        self._closed = True
        self._pool.clear()
        # What nobody received would come in the next communicator, to which MPI gives the number of one that was freed.
        if not (self._failed or self._control.announced or MPI.Is_finalized()):
            self._control.close()
            self._communicator.Free()

    def _wait(self, request: MPI.Request, owner: object = None) -> None:
        self._finish((request, owner), request.Test, lambda: "all ranks to take part")

    def _finish(
        self,
        owner: object,
        done: Callable[[], bool],
        describe: Callable[[], str],
        awaited: Callable[[], Collection[int]] = tuple,
        exchange: _Exchange | None = None,
    ) -> None:
        try:
            self._poll(done, describe, awaited, exchange)
        except BaseException:
            self._failed = True
            never_free((self, owner))
            raise

    def _poll(
        self,
        done: Callable[[], bool],
        describe: Callable[[], str],
        awaited: Callable[[], Collection[int]] = tuple,
        exchange: _Exchange | None = None,
    ) -> None:
        """Wait until done.

        Args:
            describe: says in words what is waited for.
            awaited: tells the ranks without which it does not go on, also of calls that only some ranks make.
        """
        idle = 0
        deadline = 0.0
        moved = 0
        try:
            while not done():
                if exchange and exchange.moved != moved:
                    moved = exchange.moved
                    idle = 0
                    continue
                idle += 1
                if idle < _SPINS_BEFORE_YIELD:
                    continue
                self._control.listen()
                os.sched_yield()
                now = time.monotonic()
                if idle == _SPINS_BEFORE_YIELD:
                    deadline = now + self._config.timeout
                elif now > deadline:
                    raise CollectiveTimeoutError(
                        f"rank {self.rank} of {self.size} waited {self._config.timeout:g} s for {describe()}; "
                        "a rank has died, hangs, or did not make this call"
                    )
                elif now > deadline - self._config.timeout + _PATIENCE and (ended := self._control.ended(awaited())):
                    raise PeerFailedError(ended)
        except MPI.Exception as error:
            if error.Get_error_class() == MPI.ERR_TRUNCATE:
                raise MismatchError(
                    f"rank {self.rank} got a larger message than it expected; the ranks' arguments differ"
                ) from error
            raise TransportError(f"MPI failed on rank {self.rank}: {error.Get_error_string()}") from error


class _Exchange:
    """The state of one exchange: what is posted, what comes next.

    Attributes:
        moved: count of the steps that made progress.
    """

    def __init__(
        self,
        communicator: MPI.Comm,
        pool: BufferPool,
        steps: Iterable[Step],
        coder: Coder,
        local: Iterable[Callable[[], None]],
    ) -> None:
        self._communicator = communicator
        self._pool = pool
        self._coder = coder
        sending, receiving = tee(steps)
        self._sends = (send for step in sending for send in step.sends)
        self._next_send = next(self._sends, None)
        self._receives = (receive for step in receiving for receive in step.receives)
        self._local = iter(local)
        self._outgoing: deque[tuple[list[MPI.Request], Buffer | None, Send]] = deque()
        self._incoming: deque[tuple[MPI.Request, int, Buffer | None, Receive]] = deque()
        self._in_flight = max(_IN_FLIGHT, 2 * (communicator.size - 1))
        self._status = MPI.Status()
        self.moved = 0
        for _ in range(self._in_flight):
            self._post_receive()

    def advance(self) -> bool:
        """Prepare one message and consume one, or else do a local step; tell whether all is done."""
        moved = self.moved
        send = self._next_send
        if send and len(self._outgoing) < self._in_flight and send.ready:
            self._start(send)
        if self._incoming and self._incoming[0][0].Test(self._status):
            self._consume()
        if self._outgoing and MPI.Request.Testall(self._outgoing[0][0]):
            _, buffer, _ = self._outgoing.popleft()
            if buffer:
                self._pool.give_back(buffer)
            self.moved += 1
        done = not (self._next_send or self._incoming or self._outgoing)
        if (done or self.moved == moved) and (step := next(self._local, None)) is not None:
            step()
            self.moved += 1
            return False
        return done

    def describe(self) -> str:
        """Name what an exchange that does not advance waits for."""
        waits = []
        if self._incoming:
            waits.append(f"a message from rank {self._incoming[0][3].peer}")
        if self._outgoing:
            waits.append(f"rank {', '.join(map(str, self._outgoing[0][2].peers))} to receive a message")
        return " and ".join(waits)

    def awaited(self) -> Collection[int]:
        """Return the peers of the messages that are next."""
        peers = {self._incoming[0][3].peer} if self._incoming else set()
        return peers.union(self._outgoing[0][2].peers) if self._outgoing else peers

    def _start(self, send: Send) -> None:
        if send.relay:
            buffer = send.relay.message.buffer
        else:
            buffer = self._pool.take(self._coder.capacity(send.piece)) if send.piece.compress else None
        memory = _memory(*self._coder.prepare(send, buffer.address if buffer else 0))
        requests = [self._communicator.Isend(memory, peer, _MESSAGE_TAG) for peer in send.peers]
        self._outgoing.append((requests, buffer, send))
        self._next_send = next(self._sends, None)
        self.moved += 1

    def _post_receive(self) -> None:
        receive = next(self._receives, None)
        if receive is None:
            return
        capacity = self._coder.capacity(receive.piece)
        buffer = self._pool.take(capacity) if receive.piece.compress or receive.use else None
        address = buffer.address if buffer else receive.piece.address
        request = self._communicator.Irecv(_memory(address, capacity), receive.peer, _MESSAGE_TAG)
        self._incoming.append((request, address, buffer, receive))

    def _consume(self) -> None:
        _, address, buffer, receive = self._incoming.popleft()
        self._post_receive()
        nbytes = self._status.Get_count(MPI.BYTE)
        self._coder.consume(receive, address, nbytes)
        receive.done = True
        if receive.keep:
            receive.message = Kept(address, nbytes, buffer)
        elif buffer:
            self._pool.give_back(buffer)
        self.moved += 1


def _announce_exit(reference: weakref.ref[MpiTransport]) -> None:
    """Let ranks that still wait for this one know that it has ended."""
    transport = reference()
    if transport and not transport._closed and transport._process == os.getpid() and not MPI.Is_finalized():
        transport.announce_end("its program has ended")


def _memory(address: int, nbytes: int, parts: int = 1) -> Any:
    """Return parts of nbytes bytes each as a buffer argument of mpi4py."""
    return (MPI.memory.fromaddress(address, nbytes * parts) if nbytes else None, nbytes, MPI.BYTE)
