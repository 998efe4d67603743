"""What ranks tell each other about their calls, beside the data: which call they make, and that it failed.

A communicator's ranks make the same calls in the same order, so calls are counted. A rank that waits listens: it
learns that another made a different call, or gave up, and raises at once instead of running into the time-out.
"""

from __future__ import annotations

from collections.abc import Callable

from mpi4py import MPI

from zipccl.errors import MismatchError, PeerFailedError

_FAILURE_TAG = 0
_FIRST_CALL_TAG = 1
_CALL_TAGS = 1 << 14
_EVERY_CALL = 0
"""In the place of a call's number, which counts from 1."""

_MAX_TEXT_NBYTES = 1024

Poll = Callable[[Callable[[], bool], Callable[[], str]], None]


class ControlChannel:
    """Exchanges notes about the current call on a communicator of its own."""

    def __init__(self, communicator: MPI.Comm) -> None:
        self._communicator = communicator
        self._peers = [peer for peer in range(communicator.size) if peer != communicator.rank]
        self._sequence = 0
        self._call = ""
        self._compares = False
        self._failures: dict[int, str] = {}
        self._sent: list[object] = []

    def begin(self, call: str) -> None:
        """Note that this rank begins its next call, described in a text that is equal on all ranks if all is well."""
        self._sequence += 1
        self._call = call
        self._compares = False

    def compare(self, poll: Poll) -> None:
        """Wait until all ranks have told their call.

        Raises:
            MismatchError: the calls differ; every rank that compares raises the same.
        """
        self._compares = True
        tag = self._tag()
        text = self._call.encode()[:_MAX_TEXT_NBYTES]
        sends = [self._communicator.Isend([text, MPI.BYTE], peer, tag) for peer in self._peers]
        notes = {peer: bytearray(_MAX_TEXT_NBYTES) for peer in self._peers}
        receives = [self._communicator.Irecv([note, MPI.BYTE], peer, tag) for peer, note in notes.items()]
        waiting = dict(zip(self._peers, receives, strict=True))

        def done() -> bool:
            for peer in [peer for peer, request in waiting.items() if request.Test()]:
                del waiting[peer]
            return not waiting and MPI.Request.Testall(sends)

        try:
            poll(
                done, lambda: f"rank {', '.join(map(str, waiting or self._peers))} to make the same call, {self._call}"
            )
        except BaseException:
            for request in waiting.values():
                request.Cancel()
                request.Wait()
            self._sent.append((text, sends))
            raise
        calls = {peer: note.rstrip(b"\0") for peer, note in notes.items()} | {self._communicator.rank: text}
        if any(call != text for call in calls.values()):
            each = "; ".join(f"rank {rank}: {calls[rank].decode(errors='replace')}" for rank in sorted(calls))
            raise MismatchError(f"the ranks make different calls: {each}")

    def announce(self, error: BaseException) -> None:
        """Tell the other ranks that this one raised an error in the current call."""
        if isinstance(error, MismatchError):
            self._notify(self._sequence, MismatchError, str(error))
        else:
            text = f"rank {self._communicator.rank} raised {type(error).__name__} in {self._call}: {error}"
            self._notify(self._sequence, PeerFailedError, text)

    def announce_end(self, reason: str) -> None:
        """Tell the other ranks that this one takes part in no later call."""
        self._notify(_EVERY_CALL, PeerFailedError, f"rank {self._communicator.rank} takes no part: {reason}")

    def _notify(self, sequence: int, kind: type[Exception], text: str) -> None:
        note = f"{sequence}\n{kind.__name__}\n{text}".encode()[:_MAX_TEXT_NBYTES]
        self._sent += [(note, self._communicator.Isend([note, MPI.BYTE], peer, _FAILURE_TAG)) for peer in self._peers]

    def listen(self) -> None:
        """Raise if another rank gave up the current call, or compares it while this one does not.

        Raises:
            PeerFailedError: another rank raised an error in this call.
            MismatchError: it did because calls differ, or this rank finds that they do.
        """
        while (found := self._take(_FAILURE_TAG)) is not None:
            sequence, _, note = found[1].partition("\n")
            if int(sequence) == _EVERY_CALL or int(sequence) >= self._sequence:
                self._failures[int(sequence)] = note
        failure = self._failures.pop(self._sequence, None) or self._failures.get(_EVERY_CALL)
        if failure is not None:
            kind, _, text = failure.partition("\n")
            raise (MismatchError if kind == MismatchError.__name__ else PeerFailedError)(text)
        if not self._compares and (found := self._take(self._tag())) is not None:
            raise MismatchError(
                f"the ranks make different calls: rank {found[0]}: {found[1]}; "
                f"rank {self._communicator.rank}: {self._call}"
            )

    def close(self) -> None:
        self._communicator.Free()

    def _tag(self) -> int:
        return _FIRST_CALL_TAG + self._sequence % _CALL_TAGS

    def _take(self, tag: int) -> tuple[int, str] | None:
        """Return (rank, text) of a note that is there, or None."""
        status = MPI.Status()
        message = self._communicator.Improbe(MPI.ANY_SOURCE, tag, status)
        if message is None:
            return None
        note = bytearray(status.Get_count(MPI.BYTE))
        message.Recv([note, MPI.BYTE])
        return status.Get_source(), note.decode(errors="replace")
