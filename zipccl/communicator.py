"""Communicator: checks arguments, asks the strategy, and runs the schedule."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from math import prod
from operator import index
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar, cast

import numpy as np

from zipccl import arrays, devices
from zipccl.arrays import ArrayView
from zipccl.background import Background, Handle
from zipccl.buffers import never_free
from zipccl.codec import default_codec
from zipccl.codec.base import MAX, MIN, PROD, SUM
from zipccl.codec.wire import DType
from zipccl.collectives import direct, hierarchical, ring, tree
from zipccl.collectives.messages import Messages, Parcel
from zipccl.collectives.schedule import Reduction, shard_counts
from zipccl.config import Config, codec_threads, log_level
from zipccl.errors import (
    ArgumentError,
    CollectiveTimeoutError,
    MismatchError,
    PeerFailedError,
    TransportError,
    UnsupportedArrayError,
)
from zipccl.lanes import HostLane, Lane, lane_of_device
from zipccl.stats import CallRecord, Totals
from zipccl.strategy import GATHER, NATIVE, Plan, Profile

if TYPE_CHECKING:
    from zipccl.transport.mpi import MpiTransport

_SCHEDULES: dict[str, ModuleType] = {"direct": direct, "ring": ring, "tree": tree, "hierarchical": hierarchical}
"""Modules, whose functions have the names of the collectives that they can do."""

_OPS = {"sum": SUM, "prod": PROD, "min": MIN, "max": MAX, "avg": SUM}

_MAX_INT = (1 << 31) - 1
"""Of MPI."""

Method = TypeVar("Method", bound=Callable[..., Any])


def init(device: str | None = None, timeout: float | None = None) -> Communicator:
    """Return a communicator of all ranks that mpiexec or srun started; all of them must call it.

    Args:
        device: "cpu"; "cuda", the GPU of this rank's number on its node; or "cuda:N". By default a GPU if CuPy sees
            one. A communicator with a GPU moves arrays in its memory, and those in CPU memory as well.
        timeout: seconds without any progress after which a call gives up; default ZIPCCL_TIMEOUT.

    Raises:
        TransportError: mpi4py or the MPI library is missing, or NCCL failed.
        DeviceError: the GPU failed.
        ArgumentError: an argument or an environment variable has a wrong value, or ranks share a GPU.
        MismatchError: the ranks have different kinds of devices.
    """
    config = Config.from_environment(timeout)
    from zipccl.bootstrap import connect

    world = connect(config.timeout)
    from zipccl.transport.mpi import MpiTransport

    transport = MpiTransport(world.communicator, world.nodes, config)
    transport.begin("init()", compare=False)
    try:
        _set_up_log(transport.rank)
        codec = default_codec(codec_threads(world.nodes.count(world.nodes[transport.rank])))
        kind, index = devices.choose(device, world.local_rank)
        origin = "from a file" if config.profile else "measured"
        transport.begin(f"init(device={kind}, profile {origin})", compare=True)
        lanes: list[Lane] = [HostLane(transport, config, codec)]
        if kind != "cpu":
            lanes.append(lane_of_device(transport, kind, index, config))
    except BaseException as error:
        if not isinstance(error, PeerFailedError):
            transport.announce(error)
        raise
    return Communicator(transport, lanes, world.local_rank, config)


def _set_up_log(rank: int) -> None:
    """Do what ZIPCCL_LOG says: tell on stderr what is decided, on one rank, for all decide the same."""
    level = log_level()
    if level is not None and rank == 0:
        log = logging.getLogger("zipccl")
        log.setLevel(level)
        if not log.handlers:
            log.addHandler(logging.StreamHandler())


def _collective(method: Method) -> Method:
    """Make a failure of a call known to the ranks that take part in it, and let it be made in the background."""

    def make(self: Communicator, *args: Any, **kwargs: Any) -> Any:
        self._begin_call(method.__name__)
        try:
            return method(self, *args, **kwargs)
        except BaseException as error:
            self._fail_call(error)
            raise

    @wraps(method)
    def call(self: Communicator, *args: Any, async_op: bool = False, **kwargs: Any) -> Any:
        return self._dispatch(method.__name__, partial(make, self, *args, **kwargs), async_op)

    return cast(Method, call)


def _point_to_point(method: Method) -> Method:
    """Let a call that some ranks make be made in the background."""

    @wraps(method)
    def call(self: Communicator, *args: Any, async_op: bool = False, **kwargs: Any) -> Any:
        return self._dispatch(method.__name__, partial(method, self, *args, **kwargs), async_op)

    return cast(Method, call)


class Communicator:
    """Collectives on arrays of NumPy, PyTorch, JAX and others, compressed on the wire where that is faster.

    All ranks call the same methods in the same order, with equal arguments unless said otherwise; strided arrays are
    copied first. A call returns when its result is there and its arguments may be changed. ``out`` is a C-contiguous
    array that receives the result; without it the result is a new array of the framework and dtype of x. ``compress``
    is "auto" (where it is faster), "always" (dtypes that have no coding still travel as they are) or "never"; it
    never changes the result's bits. ``algorithm`` is "auto", "direct", "ring", "tree" or "hierarchical"; not every
    collective has each. Only if it is one of the last three does a reduction not combine in rank order, but as
    docs/algorithms.md tells. With ``async_op=True`` any of them returns a Handle at once and goes on in the background,
    in the order of the calls; ``handle.wait()`` returns the result or raises. The arrays must not be touched meanwhile.

    Calls raise UnsupportedArrayError and ArgumentError before anything is sent, MismatchError if the ranks' calls
    differ, CollectiveTimeoutError and TransportError if a rank or the network fails. After an error that came when
    something may have been sent, the communicator is unusable.

    Attributes:
        rank: this process's number, of size.
        local_rank: its number among the ranks of its node.
        node: the number of its node.
        device: "cpu", or the device whose arrays it moves beside those in CPU memory, such as "cuda:0".
        last: record of the last call, None before the first.
    """

    def __init__(self, transport: MpiTransport, lanes: Sequence[Lane], local_rank: int, config: Config) -> None:
        """Make a communicator over a transport, for arrays of some places; ``init`` is the usual way."""
        self._transport = transport
        self._config = config
        self._lanes = {lane.place: lane for lane in lanes}
        self._lane = lanes[0]
        self._compared: set[str] = set()
        self._totals: dict[str, Totals] = defaultdict(Totals)
        self._unusable: str | None = None
        self._moving = False
        self._op = ""
        self._begun = False
        self._out_of_step = False
        self.rank = transport.rank
        self.size = transport.size
        self.local_rank = local_rank
        self.node = transport.nodes[transport.rank]
        self.device = lanes[-1].place
        self.last: CallRecord | None = None
        self._background = Background()
        self._group: list[Handle] | None = None

    @_collective
    def all_gather(
        self,
        x: Any,
        *,
        out: Any = None,
        counts: Sequence[int] | None = None,
        compress: str = "auto",
        algorithm: str = "auto",
    ) -> Any:
        """Concatenate the x of all ranks along the first axis, in rank order.

        Args:
            counts: rows (entries along the first axis) of each rank's x; all have as many as this one if not given.
        """
        view = self._input(x)
        rows = self._rows(view, "counts", counts, view.shape[:1] * self.size)
        if rows[self.rank] != view.shape[0]:
            raise ArgumentError(f"counts[{self.rank}] is {rows[self.rank]}, but x has {view.shape[0]} rows")
        target = self._target(view, out, (sum(rows), *view.shape[1:]))
        value_counts = _value_counts(view, rows)
        own = target.address + sum(value_counts[: self.rank]) * view.dtype.itemsize
        if own != view.address:
            arrays.check_separate(view, target)
        even = len(set(rows)) == 1 and not self._too_large(target)
        plan = self._plan(compress, algorithm, view, max(value_counts), even=even)
        self._begin(f"all_gather({_what(view)}, counts={rows}, {plan.text})")

        def move(messages: Messages) -> None:
            if plan.algorithm == NATIVE:
                messages.all_gather(view.address, view.nbytes, target.address)
                messages.add_sent(view.nbytes * (self.size - 1))
            else:
                schedules = _SCHEDULES[plan.algorithm]
                schedules.all_gather(messages, view.address, target.address, value_counts, plan)

        self._move(view, target, move, plan)
        return self._result(target, x, out)

    @_collective
    def all_to_all(
        self,
        x: Any,
        *,
        out: Any = None,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        compress: str = "auto",
        algorithm: str = "auto",
    ) -> Any:
        """Send the p-th part of x's rows to rank p, and return the parts that came, in rank order.

        Args:
            send_counts: rows for each rank; equal parts if not given.
            recv_counts: rows from each rank; the ranks tell each other if not given.
        """
        view = self._input(x)
        even = send_counts is None and recv_counts is None
        send_rows = self._rows(view, "send_counts", send_counts, self._parts(view) if send_counts is None else ())
        if sum(send_rows) != view.shape[0]:
            raise ArgumentError(f"send_counts add up to {sum(send_rows)}, but x has {view.shape[0]} rows")
        if recv_counts is not None:
            recv_counts = self._rows(view, "recv_counts", recv_counts, ())
        if even:
            plan = self._plan(compress, algorithm, view, view.count // self.size, even=not self._too_large(view))
            self._begin(f"all_to_all({_what(view)}, rows={send_rows[0]}, {plan.text})")
            receive_rows = send_rows
        else:
            # What two ranks have for each other tells only them how it is done; nothing is learnt from that.
            schedule = "direct" if algorithm == "auto" else algorithm
            plan = self._plan(compress, schedule, view, 0)
            self._begin(f"all_to_all({_what(view)}, uneven rows, {schedule}, {compress=})")
            rows = self._rows_of_all(send_rows)
            receive_rows = [row[self.rank] for row in rows]
        if recv_counts is not None and list(recv_counts) != receive_rows:
            raise MismatchError(
                f"recv_counts is {list(recv_counts)} on rank {self.rank}, but the ranks send {receive_rows}"
            )
        target = self._target(view, out, (sum(receive_rows), *view.shape[1:]))
        arrays.check_separate(view, target)

        def plan_for(count: int) -> Plan:
            return plan if even else self._plan(compress, "direct", view, count, alone=True)

        def move(messages: Messages) -> None:
            if plan.algorithm == NATIVE:
                messages.all_to_all(view.address, view.nbytes // self.size, target.address)
                messages.add_sent(view.nbytes // self.size * (self.size - 1))
            elif plan.algorithm == "hierarchical":
                counts = [_value_counts(view, row) for row in ([send_rows] * self.size if even else rows)]
                largest = plan if even else self._plan(compress, schedule, view, max(map(max, counts)), alone=True)
                hierarchical.all_to_all(messages, view.address, target.address, counts, largest)
            else:
                sent, received = _value_counts(view, send_rows), _value_counts(view, receive_rows)
                direct.all_to_all(messages, view.address, sent, target.address, received, plan_for)

        self._move(view, target, move, plan)
        return self._result(target, x, out)

    @_collective
    def reduce_scatter(
        self,
        x: Any,
        *,
        op: str = "sum",
        out: Any = None,
        counts: Sequence[int] | None = None,
        compress: str = "auto",
        algorithm: str = "auto",
    ) -> Any:
        """Reduce x over ranks in rank order and return this rank's part of the rows.

        Floats narrower than fp64 are combined in fp32 and rounded once; integers wrap; a NaN result is the positive
        quiet NaN.

        Args:
            op: "sum", "prod", "min", "max" or "avg".
            counts: rows of each rank's part; equal parts if not given.
        """
        view = self._input(x)
        reduction = self._reduction(op, view.dtype)
        rows = self._rows(view, "counts", counts, self._parts(view) if counts is None else ())
        if sum(rows) != view.shape[0]:
            raise ArgumentError(f"counts add up to {sum(rows)}, but x has {view.shape[0]} rows")
        target = self._target(view, out, (rows[self.rank], *view.shape[1:]))
        arrays.check_separate(view, target)
        value_counts = _value_counts(view, rows)
        plan = self._plan(compress, algorithm, view, max(value_counts), even=len(set(rows)) == 1)
        self._begin(f"reduce_scatter({_what(view)}, counts={rows}, {op=}, {plan.text})")

        def move(messages: Messages) -> None:
            if plan.algorithm != GATHER:
                schedules = _SCHEDULES[plan.algorithm]
                schedules.reduce_scatter(messages, view.address, target.address, value_counts, reduction, plan)
                return
            gathered = messages.take(view.nbytes)
            messages.all_to_all(view.address, target.nbytes, gathered.address)
            messages.add_sent(view.nbytes - target.nbytes)
            direct.reduce_gathered(messages, gathered.address, target.address, target.count, self.size, reduction)
            messages.give_back(gathered)

        self._move(view, target, move, plan, reduction)
        return self._result(target, x, out)

    @_collective
    def all_reduce(
        self, x: Any, *, op: str = "sum", out: Any = None, compress: str = "auto", algorithm: str = "auto"
    ) -> Any:
        """Reduce x over ranks in rank order; the result has the same bits on every rank. out may be x.

        Floats narrower than fp64 are combined in fp32 and rounded once; integers wrap; a NaN result is the positive
        quiet NaN.

        Args:
            op: "sum", "prod", "min", "max" or "avg".
        """
        view = self._input(x)
        reduction = self._reduction(op, view.dtype)
        target = self._target(view, out, view.shape)
        if target.address != view.address:
            arrays.check_separate(view, target)
        plan = self._plan(compress, algorithm, view, shard_counts(view.count, self.size)[0])
        self._begin(f"all_reduce({_what(view)}, shape={view.shape}, {op=}, {plan.text})")

        def move(messages: Messages) -> None:
            if plan.algorithm != GATHER:
                schedules = _SCHEDULES[plan.algorithm]
                schedules.all_reduce(messages, view.address, target.address, view.count, reduction, plan)
                return
            gathered = messages.take(view.nbytes * self.size)
            messages.all_gather(view.address, view.nbytes, gathered.address)
            messages.add_sent(view.nbytes * (self.size - 1))
            direct.reduce_gathered(messages, gathered.address, target.address, view.count, self.size, reduction)
            messages.give_back(gathered)

        self._move(view, target, move, plan, reduction)
        return self._result(target, x, out)

    @_collective
    def broadcast(
        self, x: Any, *, root: int = 0, out: Any = None, compress: str = "auto", algorithm: str = "auto"
    ) -> Any:
        """Return the root's x on every rank; the other ranks' x only tells shape, dtype and framework. out may be x."""
        view = self._input(x)
        root = self._peer("root", root)
        target = self._target(view, out, view.shape)
        if target.address != view.address:
            arrays.check_separate(view, target)
        plan = self._plan(compress, algorithm, view, view.count, even=not self._too_large(view))
        self._begin(f"broadcast({_what(view)}, shape={view.shape}, {root=}, {plan.text})")

        def move(messages: Messages) -> None:
            if self.rank == root:
                messages.copy(view.address, target.address, view.nbytes)
            if plan.algorithm == NATIVE:
                messages.broadcast(target.address, view.nbytes, root)
                messages.add_sent(view.nbytes * (self.size - 1) if self.rank == root else 0)
            else:
                _SCHEDULES[plan.algorithm].broadcast(messages, target.address, view.count, root, plan)

        self._move(view, target, move, plan)
        return self._result(target, x, out)

    @_collective
    def reduce(
        self,
        x: Any,
        *,
        root: int = 0,
        op: str = "sum",
        out: Any = None,
        compress: str = "auto",
        algorithm: str = "auto",
    ) -> Any:
        """Reduce x over ranks in rank order; return the result on the root and None on the others. out may be x.

        Args:
            op: "sum", "prod", "min", "max" or "avg"; see all_reduce.
            out: only the root's is used.
        """
        view = self._input(x)
        root = self._peer("root", root)
        reduction = self._reduction(op, view.dtype)
        target = self._target(view, out, view.shape) if self.rank == root else view
        if target.address != view.address:
            arrays.check_separate(view, target)
        plan = self._plan(compress, algorithm, view, view.count)
        self._begin(f"reduce({_what(view)}, shape={view.shape}, {op=}, {root=}, {plan.text})")

        def move(messages: Messages) -> None:
            schedules = _SCHEDULES[plan.algorithm]
            schedules.reduce(messages, view.address, target.address, view.count, root, reduction, plan)

        self._move(view, target, move, plan, reduction)
        return self._result(target, x, out) if self.rank == root else None

    @_collective
    def gather(
        self,
        x: Any,
        *,
        root: int = 0,
        out: Any = None,
        counts: Sequence[int] | None = None,
        compress: str = "auto",
        algorithm: str = "auto",
    ) -> Any:
        """Concatenate the x of all ranks on the root, along the first axis in rank order; return None on the others.

        Args:
            out: only the root's is used.
            counts: rows (entries along the first axis) of each rank's x; all have as many as this one if not given.
        """
        view = self._input(x)
        root = self._peer("root", root)
        rows = self._rows(view, "counts", counts, view.shape[:1] * self.size)
        if rows[self.rank] != view.shape[0]:
            raise ArgumentError(f"counts[{self.rank}] is {rows[self.rank]}, but x has {view.shape[0]} rows")
        target = self._target(view, out, (sum(rows), *view.shape[1:])) if self.rank == root else view
        value_counts = _value_counts(view, rows)
        if self.rank == root and target.address + sum(value_counts[:root]) * view.dtype.itemsize != view.address:
            arrays.check_separate(view, target)
        plan = self._plan(compress, algorithm, view, max(value_counts))
        self._begin(f"gather({_what(view)}, counts={rows}, {root=}, {plan.text})")

        def move(messages: Messages) -> None:
            schedules = _SCHEDULES[plan.algorithm]
            schedules.gather(messages, view.address, target.address, value_counts, root, plan)

        self._move(view, target, move, plan)
        return self._result(target, x, out) if self.rank == root else None

    @_collective
    def scatter(
        self,
        x: Any = None,
        *,
        root: int = 0,
        out: Any = None,
        counts: Sequence[int] | None = None,
        compress: str = "auto",
        algorithm: str = "auto",
    ) -> Any:
        """Send the p-th part of the root's rows to rank p, and return this rank's part.

        Args:
            x: on ranks other than the root it only tells shape, dtype and framework; there it may be None if out is
                given.
            counts: rows of each rank's part; equal parts if not given.
        """
        root = self._peer("root", root)
        if x is None and out is not None and self.rank != root:
            view = target = self._on_lane(arrays.view_output(out), "out")
            rows = self._rows(view, "counts", counts, view.shape[:1] * self.size)
            if rows[self.rank] != view.shape[0]:
                raise ArgumentError(f"counts[{self.rank}] is {rows[self.rank]}, but out has {view.shape[0]} rows")
        else:
            view = self._input(x)
            rows = self._rows(view, "counts", counts, self._parts(view) if counts is None else ())
            if sum(rows) != view.shape[0]:
                raise ArgumentError(f"counts add up to {sum(rows)}, but x has {view.shape[0]} rows")
            target = self._target(view, out, (rows[self.rank], *view.shape[1:]))
        value_counts = _value_counts(view, rows)
        if self.rank == root and view.address + sum(value_counts[:root]) * view.dtype.itemsize != target.address:
            arrays.check_separate(view, target)
        plan = self._plan(compress, algorithm, view, max(value_counts))
        self._begin(f"scatter({_what(view)}, counts={rows}, {root=}, {plan.text})")

        def move(messages: Messages) -> None:
            schedules = _SCHEDULES[plan.algorithm]
            schedules.scatter(messages, view.address, target.address, value_counts, root, plan)

        self._move(view, target, move, plan)
        return self._result(target, x, out)

    @_point_to_point
    def send(self, x: Any, peer: int, *, compress: str = "auto") -> None:
        """Send x to a peer that calls ``recv`` with an array of its count and dtype and the same compress."""
        view = self._input(x)
        self._exchange("send", view, view, compress, to=("peer", peer))

    @_point_to_point
    def recv(self, out: Any, peer: int, *, compress: str = "auto") -> Any:
        """Receive into out what a peer sends with ``send``, and return out."""
        target = self._on_lane(arrays.view_output(out), "out")
        self._exchange("recv", target, target, compress, origin=("peer", peer))
        return out

    @_point_to_point
    def send_recv(self, x: Any, out: Any, dest: int, source: int, *, compress: str = "auto") -> Any:
        """Send x to dest while receiving from source into out, and return out; both peers call it too."""
        view, target = self._input(x), arrays.view_output(out)
        arrays.check_output(target, view.place, view.dtype, target.shape)
        arrays.check_separate(view, target)
        self._exchange("send_recv", view, target, compress, to=("dest", dest), origin=("source", source))
        return out

    @_collective
    def barrier(self) -> None:
        """Wait until all ranks have called it."""
        self._begin("barrier()")
        if self.size > 1:
            self._moving = True
            self._transport.barrier()
            self._moving = False

    @_collective
    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Return a communicator of the ranks that give the same color; all ranks must call it.

        Args:
            color: a whole number, 0 or more; None to be in no new communicator and get None.
            key: ranks are numbered in the order of their keys, and where these are equal as they are in this one.
        """
        if color is not None and (not isinstance(color, SupportsIndex) or not 0 <= index(color) <= _MAX_INT):
            raise ArgumentError(f"color is {color!r}; expected None or a whole number from 0 to {_MAX_INT}")
        if not isinstance(key, SupportsIndex) or not -_MAX_INT <= index(key) <= _MAX_INT:
            raise ArgumentError(f"key is {key!r}; expected a whole number from {-_MAX_INT} to {_MAX_INT}")
        self._begin("split()")
        transport = self._transport.split(color if color is None else index(color), index(key))
        if transport is None:
            return None
        transport.begin("split()", compare=False)
        try:
            lanes = [lane.split(transport) for lane in self._lanes.values()]
        except BaseException as error:
            if not isinstance(error, PeerFailedError):
                transport.announce(error)
            raise
        before = transport.nodes[: transport.rank]
        return Communicator(transport, lanes, before.count(transport.nodes[transport.rank]), self._config)

    @property
    def profile(self) -> Profile:
        """How fast the links and the codec of the communicator's arrays in CPU memory are; the same on all ranks."""
        return self._lanes["cpu"].strategy.profile

    def stats(self) -> Mapping[str, Totals]:
        """Return the totals of this rank's calls, by the name of the method."""
        return dict(self._totals)

    def close(self) -> None:
        """Free the communicator; all ranks must call it, and nothing after it."""
        if self._unusable != "it is closed":
            if not self._unusable and not self._background.is_idle:
                self._background.submit("close", lambda: None).wait()
            self._unusable = self._unusable or "it is closed"
            for lane in self._lanes.values():
                lane.close()
            self._transport.close()

    def __repr__(self) -> str:
        return f"<zipccl.Communicator rank {self.rank} of {self.size}, node {self.node}, {self.device}>"

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()

    @contextmanager
    def group(self) -> Iterator[None]:
        """Make the calls within in the background, as with ``async_op=True``, and wait for all of them at the end.

        Raises:
            ZipcclError: what the first call that failed raised; the others were made.
        """
        if self._group is not None:
            raise ArgumentError("group() is open already; close it before the next one")
        handles: list[Handle] = []
        self._group = handles
        try:
            yield
        finally:
            self._group = None
            errors = [error for handle in handles if (error := handle.failure()) is not None]
        if errors:
            raise errors[0]

    def _dispatch(self, op: str, call: Callable[[], Any], async_op: bool) -> Any:
        """Make a call now, or in the background after those that are there."""
        if self._background.runs_here():
            return call()
        if not (async_op or self._group is not None) and self._background.is_idle:
            return call()
        if not self._transport.allows_threads:
            raise TransportError(
                "MPI was initialised for calls by one thread; async_op and group() need MPI_THREAD_MULTIPLE, which "
                "mpi4py asks for unless mpi4py.rc says otherwise"
            )
        marks = [lane.mark() for lane in self._lanes.values()]

        def follow() -> Any:
            for mark in marks:
                mark()
            return call()

        handle = self._background.submit(op, follow)
        if self._group is not None:
            self._group.append(handle)
        return handle if async_op or self._group is not None else handle.wait()

    def _begin_call(self, op: str) -> None:
        if self._unusable:
            raise TransportError(f"the communicator cannot be used: {self._unusable}")
        self._op = op
        self._begun = False

    def _begin(self, call: str) -> None:
        """Begin a call whose arguments are good on this rank."""
        self._begun = True
        if self.size > 1:
            known = call in self._compared
            compare = self._out_of_step or self._config.check == 2 or (self._config.check == 1 and not known)
            self._transport.begin(call, compare=compare)
            if compare:
                self._compared.add(call)
                self._out_of_step = False

    def _fail_call(self, error: BaseException) -> None:
        if self.size == 1:
            return
        if not self._begun:
            self._transport.begin(self._op, compare=False)
        if not isinstance(error, PeerFailedError):
            self._transport.announce(error)
        # Ranks that did not fail wait in this call: meet no other of theirs than one that they compare.
        self._out_of_step = True
        if (
            self._moving
            or self._transport.failed
            or self._transport.broken
            or isinstance(error, CollectiveTimeoutError)
        ):
            self._end(f"{self._op} failed with {type(error).__name__}: {error}")

    def _end(self, reason: str) -> None:
        """Make the communicator unusable, and those of the other ranks when they call something."""
        self._unusable = reason
        if self.size > 1:
            self._transport.announce_end(reason)

    def _move(
        self,
        view: ArrayView,
        target: ArrayView,
        move: Callable[[Messages], None],
        plan: Plan,
        reduction: Reduction | None = None,
    ) -> None:
        """Run what moves the data of a call, and record it."""
        begin = time.perf_counter()
        messages = self._lane.messages(view, target)
        if self.size == 1 and reduction:
            direct.reduce_gathered(messages, view.address, target.address, view.count, 1, reduction)
            messages.finish()
        elif self.size == 1:
            messages.copy(view.address, target.address, view.nbytes)
            messages.finish()
        else:
            self._moving = True
            try:
                move(messages)
                messages.finish()
                self._lane.strategy.record(plan, time.perf_counter() - begin)
            except BaseException:
                never_free((view.owner, target.owner, messages))
                raise
            self._moving = False
        seconds = time.perf_counter() - begin
        self.last = CallRecord(
            self._op,
            plan.algorithm,
            messages.compressed,
            messages.raw_nbytes,
            messages.wire_nbytes,
            seconds,
            plan.reason,
        )
        self._totals[self._op].add(self.last)

    def _exchange(
        self,
        op: str,
        view: ArrayView,
        target: ArrayView,
        compress: str,
        to: tuple[str, Any] | None = None,
        origin: tuple[str, Any] | None = None,
    ) -> None:
        """Send view to one rank and receive target from another, each given with the name of its argument."""
        self._begin_call(op)

        def parcel(argument: str, peer: Any, view: ArrayView) -> Parcel:
            if self._peer(argument, peer) == self.rank:
                raise ArgumentError(f"{argument} is {peer}, this rank itself; expected another rank")
            plan = self._plan(compress, "auto", view, view.count, op="send", alone=True)
            return Parcel(int(peer), view.address, view.count, plan)

        outgoing = parcel(*to, view) if to else None
        incoming = parcel(*origin, target) if origin else None
        plan = next(parcel.plan for parcel in (outgoing, incoming) if parcel)
        try:
            self._move(view, target, lambda messages: direct.send_receive(messages, outgoing, incoming), plan)
        except BaseException as error:
            self._end(f"{op} failed with {type(error).__name__}: {error}")
            raise

    def _input(self, x: Any) -> ArrayView:
        """Describe x, whose place tells how this call moves it."""
        return self._on_lane(arrays.view_input(x), "x")

    def _on_lane(self, view: ArrayView, argument: str) -> ArrayView:
        if view.place not in self._lanes:
            raise UnsupportedArrayError(
                f"{argument} is on {view.place}; this communicator moves arrays on {' and '.join(self._lanes)}; "
                "zipccl.init(device=...) chooses the device"
            )
        self._lane = self._lanes[view.place]
        return view

    def _target(self, view: ArrayView, out: Any, shape: tuple[int, ...]) -> ArrayView:
        """Return where the result of a call on view goes: out, or a new array."""
        if out is None:
            return arrays.view_output(arrays.new(view, shape, view.dtype))
        target = arrays.view_output(out)
        arrays.check_output(target, view.place, view.dtype, shape)
        return target

    def _result(self, target: ArrayView, x: Any, out: Any) -> Any:
        """Return what a call returns whose result is at target: out, or an array like x."""
        return arrays.result(target.owner, x) if out is None else out

    def _plan(
        self,
        compress: str,
        algorithm: str,
        view: ArrayView,
        count: int,
        *,
        op: str | None = None,
        even: bool = True,
        alone: bool = False,
    ) -> Plan:
        """Decide on this call; see Strategy.plan."""
        strategy = self._lane.strategy
        return strategy.plan(op or self._op, compress, algorithm, view.dtype, count, even=even, alone=alone)

    def _reduction(self, op: str, dtype: DType) -> Reduction:
        if not isinstance(op, str) or op not in _OPS:
            raise ArgumentError(f"op is {op!r}; expected one of {', '.join(_OPS)}")
        if op == "avg" and "float" not in dtype.name:
            raise ArgumentError(f'op is "avg", but x has dtype {dtype.name}; expected a float dtype')
        return Reduction(_OPS[op], self.size if op == "avg" else 1)

    def _rows(self, view: ArrayView, argument: str, counts: Sequence[int] | None, default: Sequence[int]) -> list[int]:
        """Return counts, checked, or the default."""
        if not view.shape:
            raise ArgumentError("x has no axis; expected at least one, pass x.reshape(1)")
        if counts is None:
            return list(default)
        try:
            rows = [index(count) for count in counts]
        except TypeError:
            rows = []
        if len(rows) != self.size or min(rows) < 0:
            raise ArgumentError(
                f"{argument} is {counts!r}; expected {self.size} whole numbers, none negative, one for each rank"
            )
        return rows

    def _parts(self, view: ArrayView) -> list[int]:
        """Return the rows of equal parts."""
        rows = view.shape[0] if view.shape else 0
        if rows % self.size:
            raise ArgumentError(
                f"x has {rows} rows, which {self.size} ranks cannot share evenly; pass counts for uneven parts"
            )
        return [rows // self.size] * self.size

    def _rows_of_all(self, send_rows: Sequence[int]) -> list[list[int]]:
        """Learn from all ranks how many rows each sends to each."""
        return cast("list[list[int]]", self._transport.gather_numbers(np.array(send_rows, np.int64)).tolist())

    def _peer(self, argument: str, rank: Any) -> int:
        if not isinstance(rank, SupportsIndex) or not 0 <= index(rank) < self.size:
            raise ArgumentError(f"{argument} is {rank!r}; expected a rank from 0 to {self.size - 1}")
        return index(rank)

    def _too_large(self, view: ArrayView) -> bool:
        return view.nbytes > self._config.max_message_nbytes


def _what(view: ArrayView) -> str:
    where = "" if view.place == "cpu" else f", on {view.place.partition(':')[0]}"
    return f"dtype={view.dtype.name}, row={view.shape[1:]}{where}"


def _value_counts(view: ArrayView, rows: Sequence[int]) -> list[int]:
    row = prod(view.shape[1:])
    return [n * row for n in rows]
