"""What every kernel must be, for every architecture: without spills, within its launch bounds, with subnormals."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.cuda import disassembly
from tests.cuda.nvrtc import needs_nvrtc
from zipccl.codec import wire
from zipccl.codec.wire import DType
from zipccl.devices import modules

pytestmark = needs_nvrtc

REGISTERS = 65536
"""Of one multiprocessor, of every architecture here."""
SHARED_NBYTES = {80: 164 << 10, 90: 228 << 10, 100: 228 << 10, 120: 100 << 10}
"""Of one multiprocessor."""
BLOCK_SHARED_NBYTES = (48 << 10) + 1024
"""What a thread block may declare, and what the system keeps for itself."""

FLOATS = [dtype for dtype in wire.DTYPES if dtype.is_float]
# Compiling takes seconds: integers, which are all alike, for one architecture, and the newest one for one type.
MODULES = [
    *((dtype, 90) for dtype in wire.DTYPES),
    *((dtype, architecture) for dtype in FLOATS for architecture in (80, 100)),
    (wire.dtype_named("bfloat16"), 120),
]

every_float = pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
every_module = pytest.mark.parametrize(
    ("dtype", "architecture"), MODULES, ids=[f"{dtype.name}-sm_{architecture}" for dtype, architecture in MODULES]
)


@cache
def compiled(dtype: DType, architecture: int) -> modules.Compiled:
    if modules.cubin_architecture(architecture) != architecture:
        pytest.skip(f"this NVRTC does not know sm_{architecture}")
    return modules.compile_module(modules.kernel_sources(), modules.compile_options(dtype, architecture))


@every_module
def test_kernels_fit(dtype: DType, architecture: int) -> None:
    if disassembly.find_tool("cuobjdump") is None:
        pytest.skip("no cuobjdump: pip install nvidia-cuda-cuobjdump")
    module = compiled(dtype, architecture)
    bounds = disassembly.launch_bounds(module.ptx)
    taken = disassembly.resources(module.cubin)
    assert taken, "the module holds no kernel"
    assert bounds.keys() == taken.keys()
    for kernel, resources in taken.items():
        threads, blocks = bounds[kernel].threads, max(bounds[kernel].blocks, 1)
        assert resources.stack_nbytes == 0, f"{kernel} spills {resources.stack_nbytes} bytes a thread"
        assert threads, f"{kernel} has no __launch_bounds__"
        per_warp = -(-resources.registers * 32 // 256) * 256
        assert per_warp * -(-threads // 32) * blocks <= REGISTERS, f"{kernel}: {resources} break {bounds[kernel]}"
        assert resources.shared_nbytes <= BLOCK_SHARED_NBYTES, f"{kernel}: {resources}"
        assert resources.shared_nbytes * blocks <= SHARED_NBYTES[architecture], f"{kernel}: {resources}"


@every_float
def test_subnormals_survive_an_option_that_flushes_them(dtype: DType) -> None:
    """CuPy gives that option to what it compiles; additions that matter are in inline PTX, which it does not reach."""
    options = (*modules.compile_options(dtype, 90), "-ftz=true")
    flushing = re.findall(r"^.*\.ftz\b.*$", modules.compile_module(modules.kernel_sources(), options).ptx, re.MULTILINE)
    assert not flushing


def test_parameters_are_64_bit_integers() -> None:
    """A Python int reaches a kernel as 8 bytes; a parameter of 4 would silently read its low half."""
    for kernel, parameters in re.findall(r"\.entry (\w+)\((.*?)\)", compiled(wire.DTYPES[0], 90).ptx, re.DOTALL):
        for parameter in filter(None, map(str.strip, parameters.split(","))):
            assert parameter.startswith(".param .u64"), f"{kernel} has {parameter}"
