"""What needs NVRTC, CUDA's compiler, but no GPU."""

from __future__ import annotations

import pytest


def _why_not() -> str | None:
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except Exception as error:  # whatever CuPy says where a library is missing
        return f"no NVRTC: {error}"
    return None


_REASON = _why_not()
needs_nvrtc = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))
