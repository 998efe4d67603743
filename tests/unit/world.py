"""Ranks in one process, to run schedules without a transport: messages move in a random order that MPI may take too.

The values in memory, the messages and the codec are the real ones. Each rank is a thread; in an exchange all meet, and
the last one checks all steps and moves all messages.
"""

from __future__ import annotations

import ctypes
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from threading import Barrier, BrokenBarrierError, Thread
from typing import Any

import numpy as np

from zipccl.buffers import Buffer, BufferPool
from zipccl.codec import default_codec
from zipccl.codec.wire import dtype_named
from zipccl.collectives.messages import HostMessages
from zipccl.transport.base import Coder, Kept, Receive, Send, Step

_PATIENCE_SECONDS = 60.0


class CountingCodec:
    """The codec, which counts what it encodes and decodes.

    Attributes:
        values: for each of its methods, the values that it was given.
    """

    def __init__(self) -> None:
        self._codec = default_codec(1)
        self.values: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codec, name)

    def encode_body(self, dtype, source: int, count: int, body: int) -> int:
        self.values["encode"] += count
        return self._codec.encode_body(dtype, source, count, body)

    def decode_body(self, dtype, body: int, nbytes: int, target: int, count: int) -> None:
        self.values["decode"] += count
        self._codec.decode_body(dtype, body, nbytes, target, count)


class World:
    """Ranks of one process.

    Attributes:
        codecs: each rank's.
        received: messages that each rank received.
        exchanges: for each exchange, each rank's steps.
    """

    def __init__(self, size: int, nodes: Sequence[int] | None = None, seed: int = 0) -> None:
        self.size = size
        self.nodes = nodes or [0] * size
        self.codecs = [CountingCodec() for _ in range(size)]
        self.received = [0] * size
        self.exchanges: list[list[list[Step]]] = []
        self.parts: list[Any] = [None] * size
        self.random = random.Random(seed)
        self.barrier = Barrier(size, self._exchange, _PATIENCE_SECONDS)

    def run(self, dtype: Any, schedule: Callable[[HostMessages], None]) -> list[HostMessages]:
        """Run a schedule on all ranks, and return their messages."""
        name = np.dtype(dtype).name
        every = [
            HostMessages(Rank(self, rank), self.codecs[rank], dtype_named(name), BufferPool())
            for rank in range(self.size)
        ]
        errors: list[BaseException] = []

        def run(messages: HostMessages) -> None:
            try:
                schedule(messages)
                messages.finish()
                assert not messages._taken, "memory was not given back"
            except BaseException as error:
                errors.append(error)
                self.barrier.abort()

        threads = [Thread(target=run, args=(messages,)) for messages in every]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for error in sorted(errors, key=lambda error: isinstance(error, BrokenBarrierError)):
            raise error
        return every

    def _exchange(self) -> None:
        self.exchanges.append([steps for steps, _, _ in self.parts])
        check_steps(self.exchanges[-1])
        ranks = [Mover(self, rank, *part) for rank, part in enumerate(self.parts)]
        while not all(rank.done for rank in ranks):
            for rank in self.random.sample(ranks, self.size):
                if rank.advance(ranks):
                    break
            else:
                raise AssertionError("no rank can go on")
        assert not any(receive.keep and receive.message for rank in ranks for receive in rank.receives)


class Rank:
    """The transport of one rank."""

    def __init__(self, world: World, rank: int) -> None:
        self._world = world
        self.rank, self.size, self.nodes = rank, world.size, world.nodes

    def exchange(self, steps: Iterable[Step], coder: Coder, local: Iterable[Callable[[], None]] = ()) -> None:
        self._world.parts[self.rank] = (list(steps), coder, local)
        self._world.barrier.wait()


class Outgoing:
    """A message that is on its way; it is read when it arrives, as MPI may do."""

    def __init__(self, send: Send, address: int, nbytes: int, buffer: Buffer | None) -> None:
        self.send, self.address, self.nbytes, self.buffer = send, address, nbytes, buffer
        self.peers = set(send.peers)


class Mover:
    """What MpiTransport does for one rank, one little step at a time, with as few messages under way as it has."""

    def __init__(self, world: World, rank: int, steps: list[Step], coder: Any, local: Iterable[Any]) -> None:
        self.world, self.rank, self.coder = world, rank, coder
        self.sends = deque(send for step in steps for send in step.sends)
        self.receives = deque(receive for step in steps for receive in step.receives)
        self.local = deque(local)
        self.outgoing: deque[Outgoing] = deque()
        self.incoming: deque[list[Any]] = deque()
        self.in_flight = max(4, 2 * (world.size - 1))
        self._post()

    @property
    def done(self) -> bool:
        return not (self.sends or self.receives or self.incoming or self.outgoing or self.local)

    def advance(self, ranks: Sequence[Mover]) -> bool:
        """Do one of the things that can be done, and tell whether there was one."""
        actions = [self._start, lambda: self._transfer(ranks), self._consume, self._finish, self._do_local]
        self.world.random.shuffle(actions)
        return any(action() for action in actions)

    def _start(self) -> bool:
        if not self.sends or len(self.outgoing) == self.in_flight or not self.sends[0].ready:
            return False
        send = self.sends.popleft()
        buffer = None
        if send.relay:
            buffer, message = send.relay.message.buffer, send.relay.message[:2]
            assert self.coder.prepare(send, 0) == message
            send.relay.message = None
        else:
            buffer = Buffer(self.coder.capacity(send.piece)) if send.piece.compress else None
            message = self.coder.prepare(send, buffer.address if buffer else 0)
        self.outgoing.append(Outgoing(send, *message, buffer))
        return True

    def _transfer(self, ranks: Sequence[Mover]) -> bool:
        """Move a message to a peer that is ready for it; those to one peer keep their order."""
        peers = {peer for message in self.outgoing for peer in message.peers}
        for peer in self.world.random.sample(sorted(peers), len(peers)):
            posted = next((p for p in ranks[peer].incoming if p[0].peer == self.rank and p[2] is None), None)
            if posted:
                message = next(message for message in self.outgoing if peer in message.peers)
                ctypes.memmove(posted[1], message.address, message.nbytes)
                posted[2] = message.nbytes
                message.peers.remove(peer)
                return True
        return False

    def _post(self) -> None:
        while self.receives and len(self.incoming) < self.in_flight:
            receive = self.receives.popleft()
            owns = receive.piece.compress or receive.use
            buffer = Buffer(self.coder.capacity(receive.piece)) if owns else None
            self.incoming.append([receive, buffer.address if buffer else receive.piece.address, None, buffer])

    def _consume(self) -> bool:
        if not self.incoming or self.incoming[0][2] is None:
            return False
        receive, address, nbytes, buffer = self.incoming.popleft()
        self.coder.consume(receive, address, nbytes)
        receive.done = True
        if receive.keep:
            receive.message = Kept(address, nbytes, buffer)
        elif buffer:
            ctypes.memset(buffer.address, 0xEE, buffer.nbytes)
        self.world.received[self.rank] += 1
        self._post()
        return True

    def _finish(self) -> bool:
        if not self.outgoing or self.outgoing[0].peers:
            return False
        self.outgoing.popleft()
        return True

    def _do_local(self) -> bool:
        if not self.local:
            return False
        self.local.popleft()()
        return True


def check_steps(steps_of: Sequence[Sequence[Step]]) -> None:
    """Check that all ranks' steps fit, and that each waits only for what came in earlier ones."""
    for number in range(max(map(len, steps_of))):
        step_of = [steps[number] if number < len(steps) else Step((), ()) for steps in steps_of]
        sent: dict[tuple[int, int], list[tuple[int, bool]]] = {}
        received: dict[tuple[int, int], list[tuple[int, bool]]] = {}
        for rank, step in enumerate(step_of):
            for send in step.sends:
                assert send.peers
                assert rank not in send.peers
                assert len(set(send.peers)) == len(send.peers)
                for peer in send.peers:
                    sent.setdefault((rank, peer), []).append((send.piece.count, send.piece.compress))
            for receive in step.receives:
                received.setdefault((receive.peer, rank), []).append((receive.piece.count, receive.piece.compress))
        assert sent == received, f"step {number}"
    for steps in steps_of:
        earlier: set[Receive] = set()
        kept: set[Receive] = set()
        for step in steps:
            for send in step.sends:
                assert earlier.issuperset(send.after)
                if send.relay:
                    assert send.relay in send.after
                    kept.remove(send.relay)
            earlier.update(step.receives)
            kept.update(receive for receive in step.receives if receive.keep)
        assert not kept, "a message is kept that nobody passes on"
