"""Tell when processes ended, however deep a launcher hides them: they hold a pipe that the test reads to its end."""

from __future__ import annotations

import os
import select
from pathlib import Path


class Lifeline:
    """A named pipe that processes hold open from `hold` until they end."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    @property
    def hold(self) -> str:
        """Shell text by which a process and what it becomes by exec takes hold."""
        return f"exec 9>'{self.path}'; echo held >&9"

    def wait_for_holders(self, count: int, seconds: float) -> None:
        """Wait until so many processes took hold."""
        held = b""
        while held.count(b"\n") < count:
            assert select.select([self._reader], [], [], seconds)[0], f"expected {count} holders, found {held!r}"
            held += os.read(self._reader, 4096)

    def wait_for_end(self, seconds: float) -> None:
        """Wait until the last of them ended."""
        while True:
            assert select.select([self._reader], [], [], seconds)[0], f"processes live on after {seconds} s"
            if not os.read(self._reader, 4096):
                return

    def close(self) -> None:
        os.close(self._reader)
