"""What ranks tell each other about their calls, beside the data: which call they make, and that it failed.

A communicator's ranks make the same calls in the same order, so calls are counted. A rank that waits listens: it
learns that another made a different call, or gave up, and raises at once instead of running into the time-out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection

from mpi4py import MPI

from zipccl.errors import MismatchError, PeerFailedError

_FAILURE_TAG = 0
_FIRST_CALL_TAG = 1
_CALL_TAGS = 1 << 14
"""Calls after which a tag comes again; so a note tells its call's number too."""

_END = "end"
"""Key of a note that a rank makes no call after that of the note."""

_MAX_TEXT_NBYTES = 1024

Poll = Callable[[Callable[[], bool], Callable[[], str], Callable[[], Collection[int]]], None]


class ControlChannel:
    """Exchanges notes about the current call on a communicator of its own.

    A note is a text of three lines: the number of the call, a key, and a text for people.

    Attributes:
        announced: whether this rank has told of a failure or its end, which others may not have read.
    """

    def __init__(self, communicator: MPI.Comm) -> None:
        self._communicator = communicator
        self._peers = [peer for peer in range(communicator.size) if peer != communicator.rank]
        self._sequence = 0
        self._call = ""
        self._compares = False
        self.announced = False
        self._failed_here: set[int] = set()
        self._failures: dict[int, tuple[str, str]] = {}
        self._end: tuple[int, str] | None = None
        self._ended: dict[int, str] = {}
        self._sent: list[tuple[bytes, list[MPI.Request]]] = []

    def begin(self, call: str) -> None:
        """Note that this rank begins its next call, described in a text that is equal on all ranks if all is well."""
        self._sequence += 1
        self._call = call
        self._compares = False
        # A call that another rank failed in, and this one finished before it knew: they are out of step from there on.
        for sequence in [number for number in self._failures if number < self._sequence]:
            _, text = self._failures.pop(sequence)
            if sequence not in self._failed_here:
                self._note_end(sequence, text)

    def compare(self, poll: Poll) -> None:
        """Wait until all ranks have told their call.

        Raises:
            MismatchError: the calls differ; every rank that compares raises the same.
        """
        self._compares = True
        digest = hashlib.blake2b(self._call.encode(), digest_size=16).hexdigest()
        key = f"{digest} {len(self._failed_here)}"
        self._send(self._peers, self._tag(), self._sequence, key, self._call)
        told = {self._communicator.rank: (key, self._call)}

        def done() -> bool:
            for peer in self._peers:
                if peer not in told and (note := self._take(peer, self._tag())) and note[1] == self._sequence:
                    told[peer] = note[2:]
            return len(told) > len(self._peers)

        def describe() -> str:
            missing = [str(peer) for peer in self._peers if peer not in told]
            return f"rank {', '.join(missing)} to make the same call, {self._call}"

        poll(done, describe, lambda: [peer for peer in self._peers if peer not in told])
        # A note that a peer gave up an earlier call came before that of this one, and may not have been read.
        self.listen()
        failures = {rank: int(key.split()[1]) for rank, (key, _) in told.items()}
        if len(set(failures.values())) > 1:
            # What a rank that finished a call has sent may still be there for one that gave the call up.
            text = "; ".join(f"rank {rank}: {failures[rank]}" for rank in sorted(failures))
            self._note_end(self._sequence - 1, f"ranks finished a call that others gave up (failed calls: {text})")
            self.listen()
        if len({key for key, _ in told.values()}) > 1:
            each = "; ".join(f"rank {rank}: {told[rank][1]}" for rank in sorted(told))
            raise MismatchError(f"the ranks make different calls: {each}")

    def announce(self, error: BaseException) -> None:
        """Tell the other ranks that this one raised an error in the current call."""
        kind, text = MismatchError.__name__, str(error)
        if not isinstance(error, MismatchError):
            kind = PeerFailedError.__name__
            text = f"rank {self._communicator.rank} raised {type(error).__name__} in {self._call}: {error}"
        self._failed_here.add(self._sequence)
        self.announced = True
        self._send(self._peers, _FAILURE_TAG, self._sequence, kind, text)

    def announce_end(self, reason: str) -> None:
        """Tell the other ranks that this one takes part in no later call, or in none since they are out of step."""
        last = self._end[0] if self._end and self.broken else self._sequence
        text = f"rank {self._communicator.rank} takes no part: {reason}"
        self.announced = True
        self._send(self._peers, _FAILURE_TAG, last, _END, text)

    def listen(self) -> None:
        """Raise if another rank gave up a call that this one did not, or compares one while this one does not.

        Raises:
            PeerFailedError: another rank raised an error.
            MismatchError: it did because calls differ, or this rank finds that they do.
        """
        while (note := self._take(MPI.ANY_SOURCE, _FAILURE_TAG)) is not None:
            _, sequence, key, text = note
            if key == _END:
                self._note_end(sequence, text)
                self._ended[note[0]] = text
            elif sequence >= self._sequence:
                self._failures[sequence] = (key, text)
            elif sequence not in self._failed_here:
                # This rank has finished the call that another failed in.
                self._note_end(sequence, text)
        if (failure := self._failures.pop(self._sequence, None)) is not None:
            self._failed_here.add(self._sequence)
            raise (MismatchError if failure[0] == MismatchError.__name__ else PeerFailedError)(failure[1])
        if self._end and self.broken:
            raise PeerFailedError(self._end[1])
        if self._compares:
            return
        note = self._take(MPI.ANY_SOURCE, self._tag())
        if note is not None and note[1] == self._sequence:
            raise MismatchError(
                f"the ranks make different calls: rank {note[0]}: {note[3]}; "
                f"rank {self._communicator.rank}: {self._call}"
            )

    @property
    def broken(self) -> bool:
        """Whether another rank takes no part in this call, or is out of step."""
        return self._end is not None and self._sequence > self._end[0]

    def ended(self, peers: Collection[int]) -> str | None:
        """Return why one of some peers makes no call any more, as far as is known; None if they do."""
        return next((text for rank, text in self._ended.items() if rank in peers), None)

    def _note_end(self, sequence: int, text: str) -> None:
        self._end = min(self._end or (sequence, text), (sequence, text))

    def close(self) -> None:
        """Free the channel; others must have read all that this rank announced."""
        self._communicator.Free()

    def _tag(self) -> int:
        return _FIRST_CALL_TAG + self._sequence % _CALL_TAGS

    def _send(self, peers: list[int], tag: int, sequence: int, key: str, text: str) -> None:
        note = f"{sequence}\n{key}\n{text}".encode()[:_MAX_TEXT_NBYTES]
        requests = [self._communicator.Isend([note, MPI.BYTE], peer, tag) for peer in peers]
        self._sent = [(old, waiting) for old, waiting in self._sent if not MPI.Request.Testall(waiting)]
        self._sent.append((note, requests))

    def _take(self, source: int, tag: int) -> tuple[int, int, str, str] | None:
        """Return (rank, number of the call, key, text) of a note that is there, or None."""
        status = MPI.Status()
        message = self._communicator.Improbe(source, tag, status)
        if message is None:
            return None
        note = bytearray(status.Get_count(MPI.BYTE))
        message.Recv([note, MPI.BYTE])
        sequence, key, text = note.decode(errors="replace").split("\n", 2)
        return status.Get_source(), int(sequence), key, text
