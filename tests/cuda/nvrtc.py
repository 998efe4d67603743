"""What needs NVRTC, CUDA's compiler; it needs no GPU."""

from __future__ import annotations

import pytest


def missing() -> str | None:
    """Return why there is no NVRTC, or None if there is."""
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except Exception as error:  # whatever CuPy says where a library is missing
        return f"no NVRTC: {error}"
    return None


_REASON = missing()
needs_nvrtc = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))
