"""Calls that go on while their caller does something else, one after the other, in a thread of their own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from zipccl.errors import CollectiveTimeoutError


class Handle:
    """A call that was begun with ``async_op=True``; its arrays must not be touched before it is done."""

    def __init__(self, op: str) -> None:
        self._op = op
        self._finished = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Tell whether the call has returned or raised."""
        return self._finished.is_set()

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for the call and return its result; may be called again.

        Args:
            timeout: seconds to wait; the call itself goes on after that, and ends by its communicator's time-out.

        Raises:
            CollectiveTimeoutError: it is not done yet.
            ZipcclError: what the call raised.
        """
        if not self._finished.wait(timeout):
            raise CollectiveTimeoutError(f"{self._op} is not done after {timeout:g} s; wait again, or longer")
        if self._error is not None:
            raise self._error
        return self._result

    def failure(self) -> BaseException | None:
        """Wait for the call and return what it raised, or None."""
        self._finished.wait()
        return self._error

    def __repr__(self) -> str:
        return f"<zipccl.Handle of {self._op}, {'done' if self.done() else 'under way'}>"

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._result = call()
        except BaseException as error:  # to be raised where it is waited for
            self._error = error
        self._finished.set()


class Background:
    """A thread that makes calls in the order in which they are given to it; it starts with the first."""

    def __init__(self) -> None:
        self._calls: deque[tuple[Handle, Callable[[], Any]]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._working = False

    @property
    def is_idle(self) -> bool:
        """Whether all calls that were given to it are done."""
        return self._thread is None or not (self._calls or self._working)

    def submit(self, op: str, call: Callable[[], Any]) -> Handle:
        """Let a call be made after those before it."""
        handle = Handle(op)
        with self._changed:
            self._calls.append((handle, call))
            self._changed.notify()
            if self._thread is None:
                # A daemon, so that a program can end while a call waits for ranks that do not come.
                self._thread = threading.Thread(target=self._work, name="zipccl calls", daemon=True)
                self._thread.start()
        return handle

    def runs_here(self) -> bool:
        """Whether the calling thread is the one that makes the calls."""
        return threading.current_thread() is self._thread

    def _work(self) -> None:
        while True:
            with self._changed:
                self._working = False
                self._changed.wait_for(lambda: bool(self._calls))
                self._working = True
                handle, call = self._calls.popleft()
            handle._run(call)
