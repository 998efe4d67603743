"""zipccl bench COLLECTIVE: the options, and the ranks that measure ours against MPI's own."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import zipccl
from zipccl import launch
from zipccl.cli import data
from zipccl.cli import options as common
from zipccl.config import Config
from zipccl.errors import ArgumentError, ZipcclError
from zipccl.netlab import Link

if TYPE_CHECKING:
    from zipccl.cli.options import Subparsers

_DEFAULT_RANKS = 2
_REDUCTIONS = ("all_reduce", "reduce_scatter")
_SUMMARIES = {
    "all_gather": "concatenate what the ranks have",
    "all_reduce": "reduce over the ranks, for all of them",
    "reduce_scatter": "reduce over the ranks, a part for each",
    "all_to_all": "send a part to each rank",
    "broadcast": "send what the root has to all",
    "send_recv": "send to the next rank and receive from the one before",
}
_EPILOG = """
Options with a letter are nccl-tests', with their meaning; sizes are too (of all_gather the output, of reduce_scatter
the input of a rank). Its -t, -g, -p, -m, -N, -z, -G, -C, -R and others have none for ranks on CPUs and are left out,
and -a too: the time of an iteration is always the slowest rank's, and times are medians. Fewer iterations than
nccl-tests' 20 and 5 are the default, for slow links. The last columns are ratio (raw bytes per byte on the wire),
wire (bytes that the rank which sends most sends), MPI (time of MPI's own collective) and vs raw (that time per
out-of-place time of ours: more than 1 is faster). Exit status: 1 if a value is wrong.
"""


def add_parsers(subparsers: Subparsers) -> None:
    """Add one command for each collective."""
    for name, summary in _SUMMARIES.items():
        description = f"Measure {name} ({summary}) against MPI's own collective, in turns, and check every bit."
        parser = subparsers.add_parser(name, help=summary, description=description, epilog=_EPILOG)
        common.add_size_options(parser, "32M")
        common.add_run_options(parser, "bfloat16", iters=7, warmup_iters=2)
        if name in _REDUCTIONS:
            parser.add_argument(
                "-o", "--op", choices=("sum", "prod", "min", "max", "avg"), default="sum", help="default: %(default)s"
            )
        if name == "broadcast":
            parser.add_argument(
                "-r", "--root", type=common.count, default=0, metavar="RANK", help="default: %(default)s"
            )
        parser.add_argument(
            "-T", "--timeout", type=common.seconds, metavar="SECONDS",
            help="end the run if one size takes longer; every rank then tells where it was (default: no limit)",
        )  # fmt: skip
        parser.add_argument(
            "-u", "--unalign", type=common.count, default=0, metavar="N",
            help="start the arrays N elements after a cache line's start (default: %(default)s)",
        )  # fmt: skip
        parser.add_argument(
            "--ranks", type=common.positive, metavar="N",
            help=f"start N ranks on this machine (default: {_DEFAULT_RANKS}, or those that mpiexec or srun started)",
        )  # fmt: skip
        parser.add_argument(
            "--link", metavar="RATE",
            help='put each rank on an emulated host with a link of this rate, such as "5gbit" (needs Linux and MPICH)',
        )  # fmt: skip
        parser.add_argument("--compress", choices=("auto", "always", "never"), default="auto", help="default: auto")
        # For the ranks that this command starts: that it did, and who else writes to the terminal of their stderr.
        parser.add_argument("--started-for", choices=("pipe", "progress", "progress+table"), help=argparse.SUPPRESS)
        parser.set_defaults(run=run, parser=parser, collective=name, **_defaults(name))


def run(options: argparse.Namespace) -> int:
    """Measure as one of the ranks, or start the ranks that do; return the exit status."""
    try:
        link = _check(options)
        if not launch.under_launcher():
            return _start_ranks(options, link)
    except ZipcclError as error:
        options.parser.error(str(error))
    return _run_rank(options)


def _defaults(name: str) -> dict[str, object]:
    """Return what the table shows for options that a collective does not have."""
    return ({} if name in _REDUCTIONS else {"op": "none"}) | ({} if name == "broadcast" else {"root": -1})


def _check(options: argparse.Namespace) -> Link | None:
    """Check what can be checked before there are ranks, and return the link.

    Raises:
        ArgumentError: an option has a value that cannot be used.
    """
    Config.from_environment()
    common.sizes(options)
    link = None if options.link is None else Link.parse(options.link)
    if link is not None and options.started_for is None and launch.under_launcher():
        raise ArgumentError("argument --link: the ranks are there already; start them without mpiexec or srun")
    if options.op == "avg" and "float" not in options.datatype.name:
        raise ArgumentError(f"argument -o: avg needs a float type, found -d {options.datatype.name}")
    data.load(options.data, options.datatype, max_count=1)
    common.check_output_file(options)
    return link


def _check_ranks(options: argparse.Namespace, ranks: int) -> None:
    if options.root >= ranks:
        options.parser.error(f"argument -r: expected a rank from 0 to {ranks - 1}, found {options.root}")
    if options.collective == "send_recv" and ranks == 1:
        options.parser.error("argument --ranks: expected at least 2, which send to each other, found 1")


def _start_ranks(options: argparse.Namespace, link: Link | None) -> int:
    ranks = options.ranks or _DEFAULT_RANKS
    _check_ranks(options, ranks)
    program = ["python", "-m", "zipccl", *options.words, "--ranks", str(ranks), "--started-for", _terminals()]
    return launch.run_ranks(program, ranks, link=link)


def _terminals() -> str:
    """Tell for the ranks, whose output goes through pipes, where it ends."""
    if not sys.stderr.isatty():
        return "pipe"
    return "progress+table" if sys.stdout.isatty() else "progress"


def _run_rank(options: argparse.Namespace) -> int:
    from zipccl.cli.measure import measure  # only here, for it starts MPI

    with zipccl.init(device="cpu") as communicator:
        if options.ranks not in (None, communicator.size):
            options.parser.error(f"argument --ranks: {communicator.size} ranks are there already, not {options.ranks}")
        _check_ranks(options, communicator.size)
        return 1 if measure(communicator, options) else 0
