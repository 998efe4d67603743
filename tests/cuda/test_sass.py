"""The machine code that NVRTC makes, run on the CPU, codes as the native codec does."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cuda import disassembly
from tests.cuda.nvrtc import needs_nvrtc
from tests.cuda.on_device import OnDevice
from tests.cuda.sass import KernelFaultError, SassDevice
from tests.unit import codecs
from tests.unit.test_codec_reductions import OPS, random_patterns, reduce
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


@pytest.mark.parametrize("name", ["bfloat16", "float32", "float8_e4m3fn", "int32"])
def test_kernels_code_as_the_native_codec(device: SassDevice, name: str) -> None:
    dtype = wire.dtype_named(name)
    both = [NativeCodec(), OnDevice(CudaCodec(device), device)]
    for kinds, tail in ((list(codecs.BLOCKS), 5), (["gaussian", "zero"] * 33, 0), ([], 7), ([], 0)):
        codecs.assert_all_agree(dtype, codecs.mixture(kinds, dtype, 3, tail), both)


@pytest.mark.parametrize("name", ["bfloat16", "float32", "float8_e4m3fn"])
def test_kernels_reduce_as_the_native_codec(device: SassDevice, name: str) -> None:
    """Of all patterns, subnormals, infinities and NaNs among them."""
    dtype = wire.dtype_named(name)
    inputs = [random_patterns(dtype, 600, seed) for seed in range(3)]
    for op, divisor in (("sum", 1), ("sum", 3), ("prod", 1), ("min", 1), ("max", 1)):
        found = reduce(OnDevice(CudaCodec(device), device), dtype, OPS[op], inputs, divisor)
        assert np.array_equal(found, reduce(NativeCodec(), dtype, OPS[op], inputs, divisor)), (op, divisor)


def test_accesses_outside_of_memory_are_noticed(device: SassDevice) -> None:
    dtype = wire.dtype_named("bfloat16")
    memory = device.allocate(256, 0)
    with pytest.raises(KernelFaultError, match="not allocated"):
        device.launch("pack_values", dtype, 1, 256, [memory.address, memory.address, 200, 1], 0)
