"""What moves the arrays of one place: of CPU memory, or of one device."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from zipccl import devices
from zipccl.arrays import ArrayView, join_streams
from zipccl.buffers import Buffer, BufferPool
from zipccl.codec.base import Codec
from zipccl.collectives.device_messages import DeviceMessages
from zipccl.collectives.messages import HostMessages, Messages
from zipccl.config import Config
from zipccl.devices.base import Device, Memory
from zipccl.errors import ArgumentError
from zipccl.strategy import Profile, Strategy
from zipccl.strategy.profile import CodecSpeed, measure_codec, measure_links
from zipccl.transport.base import Transfer
from zipccl.transport.device import DeviceTransport, Links, StagedLinks
from zipccl.transport.nccl import connect

if TYPE_CHECKING:
    from zipccl.transport.mpi import MpiTransport


_DEVICE_CODEC = {"bfloat16": CodecSpeed(encode=400e9, decode=600e9, decode_reduce=400e9, accumulate=700e9)}
"""Of a GPU: an estimate. It decides what is tried first, not what is chosen."""


class Lane(Protocol):
    """The means to move arrays that are in one place.

    Attributes:
        place: "cpu", or a device such as "cuda:0".
    """

    place: str
    strategy: Strategy

    def messages(self, view: ArrayView, target: ArrayView) -> Messages:
        """Return what makes the messages of a call with an array and its result."""

    def mark(self) -> Callable[[], None]:
        """Return what another thread calls so that its calls come after what this one has put on its stream so far."""

    def split(self, transport: MpiTransport) -> Lane:
        """Return the lane's like for some of its ranks; all of these must call it."""

    def close(self) -> None:
        """Free what the lane holds."""


class HostLane:
    """Arrays in CPU memory, moved by MPI."""

    place = "cpu"

    def __init__(self, transport: MpiTransport, config: Config, codec: Codec, profile: Profile | None = None) -> None:
        """Make the lane; all ranks must do so at once.

        Args:
            profile: by default it is read or measured.
        """
        if profile is None:
            profile = _host_profile(transport, config, codec)
        self.strategy = Strategy(transport.nodes, config, profile, transport.greatest)
        self._config = config
        self._transport = transport
        self._codec = codec
        self._pool = BufferPool()

    def messages(self, view: ArrayView, target: ArrayView) -> HostMessages:  # noqa: ARG002
        return HostMessages(self._transport, self._codec, view.dtype, self._pool)

    def mark(self) -> Callable[[], None]:
        return _nothing

    def split(self, transport: MpiTransport) -> HostLane:
        return HostLane(transport, self._config, self._codec, self.strategy.profile)

    def close(self) -> None:
        self._pool.clear()


class DeviceLane:
    """Arrays in a device's memory, in the order of the stream that is theirs when a call begins."""

    def __init__(self, host: MpiTransport, place: str, links: Links, config: Config, profile: Profile) -> None:
        self.place = place
        self.strategy = Strategy(host.nodes, config, profile, host.greatest, in_pieces=False)
        self._device, self._codec = devices.opened(place)
        self._config = config
        self._transport = DeviceTransport(host, self._device, links)

    def messages(self, view: ArrayView, target: ArrayView) -> DeviceMessages:
        stream = join_streams(self._device, view, target)
        return DeviceMessages(self._transport, self._device, self._codec, view.dtype, stream)

    def mark(self) -> Callable[[], None]:
        event = self._device.record(self._device.current_stream())
        return lambda: self._device.wait(self._device.current_stream(), event)

    def split(self, transport: MpiTransport) -> DeviceLane:
        return lane_of_device(
            transport, self._device.kind, self._device.index, self._config, profile=self.strategy.profile
        )

    def close(self) -> None:
        self._transport.close()


def _nothing() -> None:
    pass


def lane_of_device(
    host: MpiTransport, kind_name: str, index: int, config: Config, profile: Profile | None = None
) -> DeviceLane:
    """Return the lane for a device; all ranks must call it, with devices of one kind.

    The devices are connected by NCCL, or through the hosts' memory where there is none.

    Args:
        profile: by default it is measured.

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
    return DeviceLane(host, place, links, config, profile or _device_profile(host, device, links))


def _host_profile(transport: MpiTransport, config: Config, codec: Codec) -> Profile:
    """Return the profile of CPU ranks, the same on all of them."""
    if config.profile is not None:
        return Profile.load(config.profile)

    memory: list[Buffer] = []

    def allocate(nbytes: int) -> Buffer:
        memory.append(Buffer(nbytes))
        return memory[-1]

    def exchange(peer: int, source: int, target: int, nbytes: int) -> None:
        transport.transfer([Transfer(peer, source, nbytes)], [Transfer(peer, target, nbytes)], memory)

    links = measure_links(transport.rank, transport.nodes, exchange, allocate, transport.greatest)
    return Profile(*links, measure_codec(codec, transport.greatest))


def _device_profile(host: MpiTransport, device: Device, links: Links) -> Profile:
    """Return the profile of devices, the same on all ranks."""

    def exchange(peer: int, source: int, target: int, nbytes: int) -> None:
        links.move([Transfer(peer, source, nbytes)], [Transfer(peer, target, nbytes)], 0)
        device.synchronize(0)

    def allocate(nbytes: int) -> Memory:
        return device.allocate(nbytes, 0)

    return Profile(*measure_links(host.rank, host.nodes, exchange, allocate, host.greatest), _DEVICE_CODEC)
