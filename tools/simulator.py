"""A discrete-event simulation of collectives: the library's own schedules on a machine that is only described.

Every simulated rank runs its schedule from zipccl/collectives on messages that hold no values. What a rank's processor
does (encode, decode, add, and move bytes where the network leaves that to it) takes time there, one thing after the
other; what it sends crosses the ports of both sides, each of which passes one message at a time at its bandwidth.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import count as counter
from typing import Any, NamedTuple

from zipccl.codec.wire import DType
from zipccl.collectives.messages import Messages, Parcel
from zipccl.strategy.profile import CodecSpeed, Link
from zipccl.transport.base import Receive, Send, Step, Values

IN_FLIGHT = 4
"""As in transport/mpi.py."""


@dataclass(frozen=True)
class Machine:
    """What is simulated.

    Attributes:
        nodes: for each rank the number of its node.
        between: of a port between nodes.
        ports: that the ranks of a node share among them.
        inside: of a rank's port to the others of its node.
        codec: of one rank.
        ratio: of compression.
        send_overhead, receive_overhead: seconds of a rank's processor for each byte on a link between nodes.
        overlaps: whether a rank codes while its messages travel, as over MPI; else it takes a schedule's steps one by
            one, as on a GPU: encode all, tell the sizes, send and receive, decode all.
        start: seconds that a step without overlap takes to start its coding and to tell the sizes.
    """

    nodes: Sequence[int]
    between: Link
    ports: int
    inside: Link
    codec: CodecSpeed
    ratio: float
    send_overhead: float = 0.0
    receive_overhead: float = 0.0
    overlaps: bool = True
    start: float = 0.0


class _Place(NamedTuple):
    """What a schedule asks of a transport."""

    rank: int
    size: int
    nodes: Sequence[int]


class _Room(NamedTuple):
    address: int


class SimulatedMessages(Messages):
    """Records what a rank's schedule does: exchanges, and the processor's time between them and within their steps."""

    def __init__(self, machine: Machine, rank: int, dtype: DType) -> None:
        super().__init__(dtype)
        self.transport = _Place(rank, len(machine.nodes), machine.nodes)  # type: ignore[assignment]
        self.phases: list[Iterable[Step] | float] = []
        self.seconds = 0.0
        """Of the processor, since ``spent`` was called."""
        self._codec = machine.codec

    def spent(self) -> float:
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def exchange(self, steps: Iterable[Step], local: Iterable[Callable[[], None]] = ()) -> None:  # noqa: ARG002
        self.phases += [self.spent(), steps]

    def introduce(self, outgoing: Parcel | None, incoming: Parcel | None) -> None:
        raise NotImplementedError

    def combine(self, op: int, values: Values, accumulator: int) -> None:  # noqa: ARG002
        speed = self._codec.accumulate if values.body_nbytes is None else self._codec.decode_reduce
        self.seconds += values.count * self.dtype.itemsize / speed

    def pack(self, accumulator: int, target: int, count: int, divisor: int) -> None:  # noqa: ARG002
        self.seconds += count * self.dtype.itemsize / self._codec.accumulate

    def copy(self, source: int, target: int, nbytes: int) -> None:
        """Take no time: copies are done while there is nothing else to do."""

    def take(self, nbytes: int) -> _Room:  # noqa: ARG002
        return _Room(0)

    def give_back(self, memory: Any) -> None:
        """Do nothing: there is no memory."""

    def finish(self) -> None:
        """Do nothing."""

    def all_gather(self, source: int, nbytes: int, target: int) -> None:
        raise NotImplementedError

    def all_to_all(self, source: int, nbytes: int, target: int) -> None:
        raise NotImplementedError

    def broadcast(self, address: int, nbytes: int, root: int) -> None:
        raise NotImplementedError


@dataclass
class _Port:
    """Passes messages one after the other."""

    bandwidth: float
    free_at: float = 0.0

    def pass_on(self, at: float, nbytes: float) -> float:
        """Return when a message that comes at a time has begun to pass; it takes the port until it has passed."""
        begin = max(at, self.free_at)
        self.free_at = begin + nbytes / self.bandwidth
        return begin


@dataclass
class _Message:
    nbytes: float
    sent_at: float | None = None
    expected_at: float | None = None
    arrived: bool = False


Process = Generator[float | None, None, None]
"""A rank: it yields seconds that its processor works, or None to wait until a message moves."""


class Simulation:
    """Runs one schedule on all ranks."""

    def __init__(self, machine: Machine, dtype: DType) -> None:
        self._machine = machine
        self._dtype = dtype
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = counter()
        nodes, between = machine.nodes, machine.between.bandwidth
        seen: dict[int, int] = defaultdict(int)
        port_of = []
        for node in nodes:
            port_of.append((node, seen[node] % machine.ports))
            seen[node] += 1
        outward = {name: _Port(between) for name in set(port_of)}
        inward = {name: _Port(between) for name in set(port_of)}
        self._outward = [outward[name] for name in port_of]
        self._inward = [inward[name] for name in port_of]
        self._inside_out = [_Port(machine.inside.bandwidth) for _ in nodes]
        self._inside_in = [_Port(machine.inside.bandwidth) for _ in nodes]
        self._pairs: dict[tuple[int, int], deque[_Message]] = defaultdict(deque)
        self._processes: dict[int, Process] = {}
        self._waiting: set[int] = set()
        self._ends: dict[int, float] = {}

    def run(self, schedule: Callable[[SimulatedMessages], None]) -> float:
        """Return the seconds until the last rank has finished a schedule that is called with each rank's messages."""
        for rank in range(len(self._machine.nodes)):
            messages = SimulatedMessages(self._machine, rank, self._dtype)
            schedule(messages)
            messages.phases.append(messages.spent())
            self._processes[rank] = self._rank(rank, messages)
            self._at(0.0, lambda rank=rank: self._advance(rank))  # type: ignore[misc]
        while self._events:
            self._now, _, event = heapq.heappop(self._events)
            event()
        if len(self._ends) < len(self._machine.nodes):
            stuck = sorted(set(self._processes) - set(self._ends))
            raise RuntimeError(f"ranks {stuck[:8]} wait for ever: the schedule's steps do not match")
        return max(self._ends.values())

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), event))

    def _advance(self, rank: int) -> None:
        try:
            seconds = next(self._processes[rank])
        except StopIteration:
            self._ends[rank] = self._now
            return
        if seconds is None:
            self._waiting.add(rank)
        else:
            self._at(self._now + seconds, lambda: self._advance(rank))

    def _wake(self, rank: int) -> None:
        if rank in self._waiting:
            self._waiting.remove(rank)
            self._advance(rank)

    def _rank(self, rank: int, messages: SimulatedMessages) -> Process:
        exchange = self._overlapping if self._machine.overlaps else self._step_by_step
        for phase in messages.phases:
            if isinstance(phase, float):
                yield phase
            else:
                yield from exchange(rank, messages, phase)

    def _overlapping(self, rank: int, messages: SimulatedMessages, steps: Iterable[Step]) -> Process:
        """Do what _Exchange in transport/mpi.py does."""
        listed = list(steps)
        sends = deque(send for step in listed for send in step.sends)
        receives = deque(receive for step in listed for receive in step.receives)
        in_flight = max(IN_FLIGHT, 2 * (len(self._machine.nodes) - 1))
        outgoing: deque[list[_Message]] = deque()
        incoming: deque[tuple[Receive, _Message]] = deque()

        def post() -> None:
            if receives:
                receive = receives.popleft()
                incoming.append((receive, self._expect(rank, receive)))

        for _ in range(in_flight):
            post()
        while sends or incoming or outgoing:
            moved = False
            if sends and len(outgoing) < in_flight and sends[0].ready:
                send = sends.popleft()
                yield self._encode_seconds(send) + self._machine.send_overhead * self._crossing(rank, send)
                outgoing.append(self._send(rank, send))
                moved = True
            if incoming and incoming[0][1].arrived:
                receive, message = incoming.popleft()
                post()
                overhead = self._machine.receive_overhead * message.nbytes * self._crosses(rank, receive.peer)
                yield overhead + self._decode_seconds(messages, receive)
                moved = True
            if outgoing and all(message.arrived for message in outgoing[0]):
                outgoing.popleft()
                moved = True
            if not moved:
                yield None

    def _step_by_step(self, rank: int, messages: SimulatedMessages, steps: Iterable[Step]) -> Process:
        for step in steps:
            yield self._machine.start + sum(self._encode_seconds(send) for send in step.sends)
            incoming = [(receive, self._expect(rank, receive)) for receive in step.receives]
            outgoing = [message for send in step.sends for message in self._send(rank, send)]
            while not all(message.arrived for message in (*outgoing, *(message for _, message in incoming))):
                yield None
            yield sum(self._decode_seconds(messages, receive) for receive, _ in incoming)

    def _encode_seconds(self, send: Send) -> float:
        if not send.piece.compress or send.relay is not None:
            return 0.0
        return send.piece.count * self._dtype.itemsize / self._machine.codec.encode

    def _decode_seconds(self, messages: SimulatedMessages, receive: Receive) -> float:
        """Take a message and return how long that takes."""
        receive.done = True
        piece = receive.piece
        if receive.use:
            nbytes = int(self._nbytes(receive)) if piece.compress else None
            receive.use(Values(0, piece.count, nbytes))
            return messages.spent()
        return piece.count * self._dtype.itemsize / self._machine.codec.decode if piece.compress else 0.0

    def _nbytes(self, message: Send | Receive) -> float:
        ratio = self._machine.ratio if message.piece.compress else 1.0
        return message.piece.count * self._dtype.itemsize / ratio

    def _crosses(self, rank: int, peer: int) -> bool:
        return self._machine.nodes[rank] != self._machine.nodes[peer]

    def _crossing(self, rank: int, send: Send) -> float:
        return self._nbytes(send) * sum(self._crosses(rank, peer) for peer in send.peers)

    def _send(self, rank: int, send: Send) -> list[_Message]:
        return [self._message((rank, peer), self._nbytes(send), is_sent=True) for peer in send.peers]

    def _expect(self, rank: int, receive: Receive) -> _Message:
        return self._message((receive.peer, rank), self._nbytes(receive), is_sent=False)

    def _message(self, pair: tuple[int, int], nbytes: float, *, is_sent: bool) -> _Message:
        """Return the next message between two ranks that one side has not told of; it starts when both have."""
        queue = self._pairs[pair]
        known = next((m for m in queue if (m.sent_at if is_sent else m.expected_at) is None), None)
        if known is None:
            queue.append(known := _Message(nbytes))
        if is_sent:
            known.sent_at = self._now
        else:
            known.expected_at = self._now
        if known.sent_at is not None and known.expected_at is not None:
            queue.remove(known)
            self._transfer(pair[0], pair[1], known)
        return known

    def _transfer(self, source: int, target: int, message: _Message) -> None:
        crosses = self._crosses(source, target)
        link = self._machine.between if crosses else self._machine.inside
        out, into = (self._outward, self._inward) if crosses else (self._inside_out, self._inside_in)
        begin = out[source].pass_on(self._now, message.nbytes)
        begin = into[target].pass_on(begin + link.latency, message.nbytes)

        def arrive() -> None:
            message.arrived = True
            self._wake(source)
            self._wake(target)

        self._at(begin + message.nbytes / link.bandwidth, arrive)
