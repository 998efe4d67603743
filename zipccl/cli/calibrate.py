"""zipccl calibrate: measure links and codec once, and keep what was found in a file for ZIPCCL_PROFILE."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

import zipccl
from zipccl import launch
from zipccl.cli import options as common
from zipccl.errors import ArgumentError, ZipcclError
from zipccl.netlab import Link

if TYPE_CHECKING:
    from zipccl.cli.options import Subparsers

_DEFAULT_RANKS = 2


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "calibrate",
        help="measure the links between ranks and the codec, for ZIPCCL_PROFILE",
        description="Measure the links between ranks and the codec's speed, print them, and write them to a file. With "
        "ZIPCCL_PROFILE=FILE communicators take them from there instead of measuring when they are made. Start it by "
        "mpiexec on the machines that it is for.",
    )
    parser.add_argument("-o", "--output-file", metavar="FILE", help="file to write (default: only print)")
    parser.add_argument(
        "--ranks", type=common.positive, metavar="N",
        help=f"start N ranks on this machine (default: {_DEFAULT_RANKS}, or those that mpiexec or srun started)",
    )  # fmt: skip
    parser.add_argument("--link", metavar="RATE", help="put each rank on an emulated host with a link of this rate")
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Measure as one of the ranks, or start the ranks that do; return the exit status."""
    try:
        if options.output_file is not None and not os.access(Path(options.output_file).absolute().parent, os.W_OK):
            raise ArgumentError(f"argument -o: {options.output_file} cannot be written")
        os.environ.pop("ZIPCCL_PROFILE", None)  # which would be taken for what was measured
        if not launch.under_launcher():
            link = None if options.link is None else Link.parse(options.link)
            ranks = options.ranks or _DEFAULT_RANKS
            return launch.run_ranks(["python", "-m", "zipccl", *options.words], ranks, link=link)
    except ZipcclError as error:
        options.parser.error(str(error))
    with zipccl.init(device="cpu") as communicator:
        if communicator.rank == 0:
            profile = communicator.profile
            for name, measured in (("inside a node", profile.inside), ("between nodes", profile.between)):
                print(
                    f"{name}: {1e6 * measured.latency:.1f} us, {8e-9 * measured.bandwidth:.2f} Gbit/s in each direction"
                )
            for dtype, speed in profile.codec.items():
                print(
                    f"{dtype}: encode {1e-9 * speed.encode:.1f} GB/s, decode {1e-9 * speed.decode:.1f}, "
                    f"decode and add {1e-9 * speed.decode_reduce:.1f}, add {1e-9 * speed.accumulate:.1f}"
                )
            if options.output_file is not None:
                profile.save(Path(options.output_file))
    return 0
