"""Build zipccl's native extension; all metadata is in setup.cfg."""

from __future__ import annotations

from pathlib import Path

from setuptools import Extension, setup

# The results of the reductions are the same for every instruction set: no contraction to fused multiply-adds. What
# the loops may assume, so that they vectorise, changes no result.
COMPILE_ARGS = [
    "-std=c++17",
    "-O3",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
]

setup(
    ext_modules=[
        Extension(
            "zipccl._native",
            sources=[str(path) for path in sorted(Path("zipccl/native").glob("*.cpp"))],
            depends=[str(path) for path in sorted(Path("zipccl/native").glob("*.hpp"))],
            language="c++",
            extra_compile_args=COMPILE_ARGS,
            define_macros=[("Py_LIMITED_API", "0x030A0000")],
            py_limited_api=True,
            optional=True,
        )
    ]
)
