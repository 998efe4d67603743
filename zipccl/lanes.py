"""What moves the arrays of one place: of CPU memory, or of one device."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from zipccl import devices
from zipccl.arrays import ArrayView, join_streams
from zipccl.buffers import BufferPool
from zipccl.codec import default_codec
from zipccl.collectives.device_messages import DeviceMessages
from zipccl.collectives.messages import HostMessages, Messages
from zipccl.config import Config, codec_threads
from zipccl.errors import ArgumentError
from zipccl.strategy import Strategy
from zipccl.transport.device import DeviceTransport, Links, StagedLinks
from zipccl.transport.nccl import connect

if TYPE_CHECKING:
    from zipccl.transport.mpi import MpiTransport


class Lane(Protocol):
    """The means to move arrays that are in one place.

    Attributes:
        place: "cpu", or a device such as "cuda:0".
    """

    place: str
    strategy: Strategy

    def messages(self, view: ArrayView, target: ArrayView) -> Messages:
        """Return what makes the messages of a call with an array and its result."""

    def close(self) -> None:
        """Free what the lane holds."""


class HostLane:
    """Arrays in CPU memory, moved by MPI."""

    place = "cpu"

    def __init__(self, transport: MpiTransport, config: Config) -> None:
        self.strategy = Strategy(transport.nodes, config)
        self._transport = transport
        self._codec = default_codec(codec_threads(transport.nodes.count(transport.nodes[transport.rank])))
        self._pool = BufferPool()

    def messages(self, view: ArrayView, target: ArrayView) -> HostMessages:  # noqa: ARG002
        return HostMessages(self._transport, self._codec, view.dtype, self._pool)

    def close(self) -> None:
        self._pool.clear()


class DeviceLane:
    """Arrays in a device's memory, in the order of the stream that is theirs when a call begins."""

    def __init__(self, host: MpiTransport, place: str, links: Links, config: Config) -> None:
        self.place = place
        self.strategy = Strategy(host.nodes, config, in_pieces=False)
        self._device, self._codec = devices.opened(place)
        self._transport = DeviceTransport(host, self._device, links)

    def messages(self, view: ArrayView, target: ArrayView) -> DeviceMessages:
        stream = join_streams(self._device, view, target)
        return DeviceMessages(self._transport, self._device, self._codec, view.dtype, stream)

    def close(self) -> None:
        self._transport.close()


def lane_of_device(host: MpiTransport, kind_name: str, index: int, config: Config) -> DeviceLane:
    """Return the lane for a device; all ranks must call it, with devices of one kind.

    The devices are connected by NCCL, or through the hosts' memory where there is none.

    Raises:
        ArgumentError: two ranks have the same device, and nobody said that they may.
        TransportError: NCCL failed, or another rank did.
    """
    kind = devices.kind_named(kind_name)
    own = f"node {host.nodes[host.rank]} {kind_name} {kind.identity(index)}"
    names = host.gather_texts(own)
    # What NCCL takes for the host, if the variable is set.
    seen_by_nccl = host.gather_texts(f"{own} {os.environ.get('NCCL_HOSTID', '')}")
    shared = {name: [rank for rank in range(host.size) if names[rank] == name] for name in names}
    several = [f"ranks {', '.join(map(str, ranks))} ({name})" for name, ranks in shared.items() if len(ranks) > 1]
    if several and not config.share_gpu:
        raise ArgumentError(
            f"these have the same device: {'; '.join(several)}; "
            "start as many ranks on a node as it has devices, or set ZIPCCL_SHARE_GPU=1"
        )
    place = f"{kind_name}:{index}"
    device = devices.opened(place).device
    # NCCL refuses ranks that share a device of one host.
    if kind.nccl is None or len(set(seen_by_nccl)) < host.size or host.size == 1:
        links: Links = StagedLinks(host, device, direct=config.cuda_aware_mpi)
    else:
        links = connect(kind.nccl, host, device, config.max_message_nbytes)
    return DeviceLane(host, place, links, config)
