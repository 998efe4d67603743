"""The command line: zipccl bench COLLECTIVE, zipccl bench codec, zipccl calibrate, zipccl inspect FILE, zipccl info."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import zipccl
from zipccl.cli import bench, calibrate, codec, info, inspect
from zipccl.cli.options import Parser
from zipccl.launch import under_launcher

_INTERRUPTED = 130
"""Exit status of a program that Ctrl-C ended, as shells have it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0, 1 where values were wrong, 2 where it could not be run.

    Args:
        argv: the words after the program's name; by default those that it was started with.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    parser = Parser(prog="zipccl", description=zipccl.__doc__)
    parser.add_argument("--version", action="version", version=f"zipccl {zipccl.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    benches = commands.add_parser(
        "bench",
        help="measure a collective against MPI's own, or the codec against memcpy",
        description="Measure a collective against MPI's own, or the codec against memcpy. "
        "Each has its options: zipccl bench all_reduce --help.",
    ).add_subparsers(metavar="WHAT", required=True)
    bench.add_parsers(benches)
    codec.add_parser(benches)
    calibrate.add_parser(commands)
    inspect.add_parser(commands)
    info.add_parser(commands)
    options = parser.parse_args(words)
    options.words = words
    try:
        status: int = options.run(options)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except (MemoryError, OSError) as error:
        if under_launcher():
            raise  # the traceback tells which rank it was
        parser.error(str(error) or "there is not enough memory for arrays of this size")
    return status
