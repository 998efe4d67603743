"""The machine code that NVRTC makes, run on the CPU, codes as the native codec does."""

from __future__ import annotations

import pytest

from tests.cuda import disassembly
from tests.cuda.nvrtc import needs_nvrtc
from tests.cuda.on_device import OnDevice
from tests.cuda.sass import KernelFaultError, SassDevice
from tests.unit import codecs
from zipccl.codec import wire
from zipccl.codec.cuda import CudaCodec
from zipccl.codec.native import NativeCodec

pytestmark = [
    needs_nvrtc,
    pytest.mark.skipif(
        disassembly.find_tool("nvdisasm") is None, reason="no nvdisasm: pip install nvidia-cuda-nvdisasm"
    ),
]


@pytest.fixture(scope="module")
def device() -> SassDevice:
    return SassDevice()


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "int32"])
def test_kernels_code_as_the_native_codec(device: SassDevice, name: str) -> None:
    dtype = wire.dtype_named(name)
    both = [NativeCodec(), OnDevice(CudaCodec(device), device)]
    for kinds, tail in ((list(codecs.BLOCKS), 5), (["gaussian", "zero"] * 33, 0), ([], 7), ([], 0)):
        codecs.assert_all_agree(dtype, codecs.mixture(kinds, dtype, 3, tail), both)


def test_accesses_outside_of_memory_are_noticed(device: SassDevice) -> None:
    dtype = wire.dtype_named("bfloat16")
    memory = device.allocate(256, 0)
    with pytest.raises(KernelFaultError, match="not allocated"):
        device.launch("pack_values", dtype, 1, 256, [memory.address, memory.address, 200, 1], 0)
