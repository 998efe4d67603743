"""The collectives that can be measured: our call, MPI's own, and what the result must be.

A collective of n ranks moves *parts*: x is one part or n, and so is out. All arrays are 1-D.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from mpi4py import MPI
from numpy.typing import NDArray

from zipccl import Communicator
from zipccl.cli.data import Tile, reduced, start_of
from zipccl.codec.wire import DType

Array = NDArray[Any]

_MPI_OPS = {"sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX, "avg": MPI.SUM}
_MPI_DATATYPES = {
    "float32": MPI.FLOAT,
    "float64": MPI.DOUBLE,
    "int8": MPI.INT8_T,
    "uint8": MPI.UINT8_T,
    "int16": MPI.INT16_T,
    "uint16": MPI.UINT16_T,
    "int32": MPI.INT32_T,
    "uint32": MPI.UINT32_T,
    "int64": MPI.INT64_T,
    "uint64": MPI.UINT64_T,
}
_STAND_INS = {1: MPI.INT8_T, 2: MPI.INT16_T}
"""By the size of a dtype that MPI does not have."""


class Expected(NamedTuple):
    """Values that must stand in out: as many from first on, those of a tile from start on."""

    first: int
    values: int
    tile: Tile
    start: int


class Collective:
    """What there is to know about one collective; the class is a base of the real ones.

    Attributes:
        function: the name of MPI's own.
        x_parts, out_parts: whether x and out are n parts; a part is 1/n of the size if any of the two is.
        in_place: whether the result may replace the input.
    """

    function: ClassVar[str]
    x_parts: ClassVar[bool] = False
    out_parts: ClassVar[bool] = False
    in_place: ClassVar[bool] = False

    def __init__(
        self,
        communicator: Communicator,
        mpi: MPI.Comm,
        dtype: DType,
        tile: Tile,
        op: str,
        root: int,
        compress: str,
        algorithm: str,
    ) -> None:
        """Prepare calls on the data of a tile, over the ranks of both communicators."""
        self.communicator = communicator
        self.mpi = mpi
        self.rank = communicator.rank
        self.ranks = communicator.size
        self.dtype = dtype
        self.tile = tile
        self.op = op
        self.root = root
        self.compress = compress
        self.algorithm = algorithm

    def part_count(self, nbytes: int) -> int:
        """Return how many values a part has when the larger of x and out has at most nbytes bytes."""
        return nbytes // self.dtype.itemsize // (self.ranks if self.x_parts or self.out_parts else 1)

    def x_count(self, part: int) -> int:
        return part * (self.ranks if self.x_parts else 1)

    def out_count(self, part: int) -> int:
        return part * (self.ranks if self.out_parts else 1)

    @property
    def bus_factor(self) -> float:
        """Bytes that cross a rank's link for each byte of the size, in the best algorithm."""
        return (self.ranks - 1) / self.ranks if self.x_parts or self.out_parts else 1.0

    @property
    def baseline(self) -> str:
        """Describe what MPI does in comparison."""
        return f"{self.function} of MPI_BYTE"

    def run(self, x: Array, out: Array) -> None:
        """Call ours."""
        raise NotImplementedError

    def run_in_place(self, out: Array) -> None:
        """Call ours on what ``prepare_in_place`` left in out."""
        raise NotImplementedError

    def prepare_in_place(self, x: Array, out: Array) -> None:
        """Put x where the call in place expects it."""
        out[:] = x

    def run_mpi(self, x: Array, out: Array) -> None:
        """Call MPI's own, on the bytes of both arrays."""
        raise NotImplementedError

    def expected(self, part: int) -> Iterator[Expected]:
        """Yield what must stand in out."""
        raise NotImplementedError


class AllGather(Collective):
    function = "MPI_Allgather"
    out_parts = True
    in_place = True

    def run(self, x: Array, out: Array) -> None:
        self.communicator.all_gather(x, out=out, compress=self.compress, algorithm=self.algorithm)

    def run_in_place(self, out: Array) -> None:
        self.run(self._own(out), out)

    def prepare_in_place(self, x: Array, out: Array) -> None:
        self._own(out)[:] = x

    def run_mpi(self, x: Array, out: Array) -> None:
        self.mpi.Allgather([x, MPI.BYTE], [out, MPI.BYTE])

    def expected(self, part: int) -> Iterator[Expected]:
        for rank in range(self.ranks):
            yield Expected(rank * part, part, self.tile, start_of(rank))

    def _own(self, out: Array) -> Array:
        part = out.size // self.ranks
        return out[self.rank * part :][:part]


class AllToAll(Collective):
    function = "MPI_Alltoall"
    x_parts = True
    out_parts = True

    def run(self, x: Array, out: Array) -> None:
        self.communicator.all_to_all(x, out=out, compress=self.compress, algorithm=self.algorithm)

    def run_mpi(self, x: Array, out: Array) -> None:
        self.mpi.Alltoall([x, MPI.BYTE], [out, MPI.BYTE])

    def expected(self, part: int) -> Iterator[Expected]:
        for rank in range(self.ranks):
            yield Expected(rank * part, part, self.tile, start_of(rank) + self.rank * part)


class Broadcast(Collective):
    function = "MPI_Bcast"
    in_place = True

    def run(self, x: Array, out: Array) -> None:
        self.communicator.broadcast(x, root=self.root, out=out, compress=self.compress, algorithm=self.algorithm)

    def run_in_place(self, out: Array) -> None:
        self.run(out, out)

    def prepare_in_place(self, x: Array, out: Array) -> None:
        if self.rank == self.root:
            out[:] = x

    def run_mpi(self, x: Array, out: Array) -> None:
        self.mpi.Bcast([x if self.rank == self.root else out, MPI.BYTE], self.root)

    def expected(self, part: int) -> Iterator[Expected]:
        yield Expected(0, part, self.tile, start_of(self.root))


class SendReceive(Collective):
    """Every rank sends to the next one, the last to the first."""

    function = "MPI_Sendrecv"

    def run(self, x: Array, out: Array) -> None:
        self.communicator.send_recv(x, out, self._next, self._previous, compress=self.compress)

    def run_mpi(self, x: Array, out: Array) -> None:
        self.mpi.Sendrecv([x, MPI.BYTE], self._next, 0, [out, MPI.BYTE], self._previous, 0)

    def expected(self, part: int) -> Iterator[Expected]:
        yield Expected(0, part, self.tile, start_of(self._previous))

    @property
    def _next(self) -> int:
        return (self.rank + 1) % self.ranks

    @property
    def _previous(self) -> int:
        return (self.rank - 1) % self.ranks


class Reduction(Collective):
    """A base of those that reduce; the tile of the result is the same on all ranks."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.datatype = _MPI_DATATYPES.get(self.dtype.name) or _STAND_INS[self.dtype.itemsize]
        self.mpi_op = _MPI_OPS[self.op]
        self.result = reduced(self.tile, self.op, self.ranks)

    @property
    def baseline(self) -> str:
        text = f"{self.function} with MPI_{'SUM' if self.op == 'avg' else self.op.upper()} on {self.datatype.name}"
        if self.dtype.name not in _MPI_DATATYPES:
            text += f" of as many bytes, for MPI has no {self.dtype.name}"
        return f"{text}; in MPI's order, ours is in rank order and rounded once"


class AllReduce(Reduction):
    function = "MPI_Allreduce"
    in_place = True

    @property
    def bus_factor(self) -> float:
        return 2 * (self.ranks - 1) / self.ranks

    def run(self, x: Array, out: Array) -> None:
        self.communicator.all_reduce(x, op=self.op, out=out, compress=self.compress, algorithm=self.algorithm)

    def run_in_place(self, out: Array) -> None:
        self.run(out, out)

    def run_mpi(self, x: Array, out: Array) -> None:
        self.mpi.Allreduce([x, self.datatype], [out, self.datatype], self.mpi_op)

    def expected(self, part: int) -> Iterator[Expected]:
        yield Expected(0, part, self.result, 0)


class ReduceScatter(Reduction):
    function = "MPI_Reduce_scatter_block"
    x_parts = True

    def run(self, x: Array, out: Array) -> None:
        self.communicator.reduce_scatter(x, op=self.op, out=out, compress=self.compress, algorithm=self.algorithm)

    def run_mpi(self, x: Array, out: Array) -> None:
        self.mpi.Reduce_scatter_block([x, self.datatype], [out, self.datatype], self.mpi_op)

    def expected(self, part: int) -> Iterator[Expected]:
        yield Expected(0, part, self.result, self.rank * part)


COLLECTIVES: dict[str, type[Collective]] = {
    "all_gather": AllGather,
    "all_reduce": AllReduce,
    "reduce_scatter": ReduceScatter,
    "all_to_all": AllToAll,
    "broadcast": Broadcast,
    "send_recv": SendReceive,
}
