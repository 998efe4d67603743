"""The emulated network: rates, refusals that say what to do, and real labs where the machine allows them."""

from __future__ import annotations

import functools
import importlib.util
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.lifeline import Lifeline
from zipccl import launch, netlab
from zipccl.errors import ArgumentError, TransportError
from zipccl.netlab import Link

ROOT = Path(netlab.__file__).resolve().parent.parent
SECONDS = 60.0

SHAPED = """
import time
import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
assert world.size == 2
assert world.Split_type(MPI.COMM_TYPE_SHARED).size == 1
assert len(set(world.allgather(MPI.Get_processor_name()))) == 2
message = np.full(16_000_000, 1 + world.rank, np.uint8)
world.Barrier()
start = time.perf_counter()
if world.rank == 0:
    world.Send(message, 1)
    world.recv(source=1)
    seconds = time.perf_counter() - start
    assert seconds >= 0.128, f"16 MB passed a link of 1 Gbit/s in {seconds} s"
else:
    world.Recv(message, 0)
    assert (message == 1).all()
    world.send(None, 0)
"""


@functools.cache
def why_no_lab() -> str | None:
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    try:
        return netlab.unavailable() or (launch.find_mpiexec() and None)
    except TransportError as error:
        return str(error)


@pytest.fixture
def lab() -> None:
    reason = why_no_lab()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def lifeline(tmp_path: Path) -> Iterator[Lifeline]:
    line = Lifeline(tmp_path / "lifeline")
    yield line
    line.close()


@pytest.fixture
def fake_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Leave no program in PATH but those the test writes."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(netlab, "_ADMIN_FOLDERS", ())

    def write(name: str, shell_text: str) -> None:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{shell_text}\n")
        path.chmod(0o755)

    return write


def outer_network() -> list[str]:
    ip, tc = (netlab._tool(name) for name in ("ip", "tc"))
    commands = ([ip, "-o", "link"], [ip, "netns", "list"], [tc, "qdisc", "show"])
    return [subprocess.run(command, capture_output=True, text=True, timeout=10).stdout for command in commands]


@pytest.mark.parametrize(
    ("text", "rate"), [("250mbit", 250e6), ("1gbit", 1e9), ("2.5gbit", 2.5e9), ("5gbit", 5e9), ("40gbit", 40e9)]
)
def test_parse_reads_rates(text: str, rate: float) -> None:
    assert Link.parse(text) == Link(rate)


@pytest.mark.parametrize(
    "text", ["", "5", "gbit", "5 gbit", "5Gbit", "5gbps", "-5gbit", "1e3mbit", "5gbit,50us", "5gbit\n", "٣gbit"]
)
def test_parse_refuses_other_text_and_quotes_it(text: str) -> None:
    with pytest.raises(ArgumentError, match="250mbit") as raised:
        Link.parse(text)
    assert repr(text) in str(raised.value)


@pytest.mark.parametrize("rate", [0.0, -1e9, 1e5, 1e13, float("nan"), float("inf")])
def test_link_refuses_rates_out_of_range(rate: float) -> None:
    with pytest.raises(ArgumentError, match="expected a rate from 1 mbit"):
        Link(rate)


def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "found darwin" in (netlab.unavailable() or "")


@pytest.mark.skipif(sys.platform != "linux", reason="labs need Linux")
class TestRefusals:
    """What the machine lacks, played by programs that fail."""

    @pytest.mark.parametrize(
        ("missing", "package"), [("ip", "iproute2"), ("tc", "iproute2"), ("unshare", "util-linux")]
    )
    def test_a_missing_tool_names_its_package(
        self, fake_tool: Callable[[str, str], None], missing: str, package: str
    ) -> None:
        for name in {"ip", "tc", "unshare", "hostname"} - {missing}:
            fake_tool(name, "exit 0")
        reason = netlab.unavailable() or ""
        assert repr(missing) in reason
        assert f"apt-get install {package}" in reason

    def test_forbidden_namespaces_name_the_switches(self, fake_tool: Callable[[str, str], None]) -> None:
        for name in ("ip", "tc", "hostname"):
            fake_tool(name, "exit 0")
        fake_tool("unshare", "echo unshare failed: Operation not permitted >&2; exit 1")
        reason = netlab.unavailable() or ""
        assert "Operation not permitted" in reason
        assert "Run as root" in reason
        assert "kernel.unprivileged_userns_clone" in reason
        assert "kernel.apparmor_restrict_unprivileged_userns" in reason
        with pytest.raises(TransportError, match="Run as root"):
            netlab.command("mpiexec", ["true"], ranks=2, hosts=2, link=Link(1e9))

    def test_a_kernel_without_the_shaper_is_told(self, fake_tool: Callable[[str, str], None]) -> None:
        for name in ("ip", "tc", "hostname"):
            fake_tool(name, "exit 0")
        fake_tool("unshare", 'case "$*" in *" sh "*) echo Specified qdisc kind is unknown >&2; exit 2; esac')
        reason = netlab.unavailable() or ""
        assert "Specified qdisc kind is unknown" in reason
        assert "sch_tbf" in reason

    def test_ranks_are_shared_out_in_blocks(self, fake_tool: Callable[[str, str], None]) -> None:
        for name in ("ip", "tc", "hostname", "unshare"):
            fake_tool(name, "exit 0")
        words = netlab.command("mpiexec", ["program"], ranks=5, hosts=3, link=Link(1e9))
        assert words[words.index("-hosts") + 1] == "10.99.0.1:2,10.99.0.2:2,10.99.0.3:1"
        assert words[-3:] == ["-n", "5", "program"]


@pytest.mark.parametrize(("ranks", "hosts"), [(2, 3), (2, 0), (300, 254)])
def test_host_counts_out_of_range_are_refused(ranks: int, hosts: int) -> None:
    with pytest.raises(ArgumentError, match=f"found {hosts}"):
        netlab.command("mpiexec", ["true"], ranks=ranks, hosts=hosts, link=Link(1e9))


@pytest.mark.usefixtures("lab")
class TestLab:
    """Real labs; every run is bounded in time."""

    def test_hosts_are_nodes_and_the_link_has_its_rate(self, tmp_path: Path) -> None:
        before = outer_network()
        program = tmp_path / "shaped.py"
        program.write_text(SHAPED)
        words = [sys.executable, "-m", "mpi4py", str(program)]
        assert launch.run_ranks(words, 2, link=Link(1e9), timeout=SECONDS) == 0
        assert outer_network() == before

    def test_ranks_of_a_host_share_a_node(self, capfd: pytest.CaptureFixture[str]) -> None:
        text = (
            "from mpi4py import MPI; world = MPI.COMM_WORLD;"
            "sizes = world.gather(world.Split_type(MPI.COMM_TYPE_SHARED).size);"
            "print(sizes) if world.rank == 0 else None"
        )
        words = [sys.executable, "-c", text]
        assert launch.run_ranks(words, 3, link=Link(1e9), hosts=2, timeout=SECONDS) == 0
        assert capfd.readouterr().out == "[2, 2, 1]\n"

    def test_two_labs_run_at_once(self) -> None:
        words = [sys.executable, "-m", "mpi4py", "-c", SHAPED]
        with ThreadPoolExecutor(2) as pool:
            runs = [pool.submit(launch.run_ranks, words, 2, link=Link(1e9), timeout=SECONDS) for _ in range(2)]
        assert [run.result() for run in runs] == [0, 0]

    def test_words_reach_the_ranks_unchanged(self, capfd: pytest.CaptureFixture[str]) -> None:
        arguments = ["two words", "$HOME", "it's", 'a "b"', "*", "line\nbreak", "back\\slash", ""]
        words = [sys.executable, "-c", "import sys; print(repr(sys.argv[1:]))", *arguments]
        assert launch.run_ranks(words, 1, link=Link(1e9), timeout=SECONDS) == 0
        assert capfd.readouterr().out.strip() == repr(arguments)

    def test_the_exit_status_is_the_programs(self) -> None:
        assert launch.run_ranks(["sh", "-c", "exit 3"], 2, link=Link(1e9), timeout=SECONDS) == 3

    def test_a_rank_that_crashes_ends_the_run(self) -> None:
        text = "import os; from mpi4py import MPI; MPI.COMM_WORLD.rank == 1 and os.abort(); MPI.COMM_WORLD.Barrier()"
        assert launch.run_ranks([sys.executable, "-c", text], 2, link=Link(1e9), timeout=SECONDS) != 0

    def test_the_bound_in_time_ends_the_ranks(self, lifeline: Lifeline) -> None:
        words = ["sh", "-c", f"{lifeline.hold}; exec sleep 100"]
        with pytest.raises(TransportError, match=r"2 ranks did not end within 2 s and were killed: sh .*sleep 100"):
            launch.run_ranks(words, 2, link=Link(1e9), timeout=2)
        lifeline.wait_for_holders(2, seconds=0)
        lifeline.wait_for_end(seconds=0)

    @pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    def test_a_lab_ends_with_its_caller(self, how: signal.Signals, lifeline: Lifeline) -> None:
        before = outer_network()
        words = [sys.executable, str(ROOT / "tools" / "netlab"), "--link", "1gbit", "--"]
        words += ["sh", "-c", f"{lifeline.hold}; exec sleep 100"]
        with subprocess.Popen(words, stderr=subprocess.DEVNULL) as caller:
            lifeline.wait_for_holders(2, SECONDS)
            caller.send_signal(how)
            assert caller.wait(SECONDS) != 0
        lifeline.wait_for_end(SECONDS)
        assert outer_network() == before


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize(
    "without_privileges",
    [
        ["--bounding-set", "-sys_admin,-net_admin", "--inh-caps", "-sys_admin,-net_admin"],
        ["--reuid", "65534", "--regid", "65534", "--clear-groups"],
    ],
    ids=["root without capabilities", "nobody"],
)
def test_a_lab_needs_no_privileges(without_privileges: list[str]) -> None:
    # setpriv itself still may start what the new user may not; the shell may not.
    prefix = ["setpriv", *without_privileges, "sh", "-c", 'exec "$0" "$@"', sys.executable]
    run = functools.partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    try:
        probe = run([*prefix, "-c", "from zipccl import netlab; print(netlab.unavailable() or '')"])
    except FileNotFoundError:
        pytest.skip("setpriv (util-linux) is missing")
    if probe.returncode != 0 or probe.stdout.strip():
        pytest.skip((probe.stdout + probe.stderr).strip())
    words = [*prefix, "tools/netlab", "--link", "1gbit", "--", "python", "-m", "mpi4py", "-c", SHAPED]
    assert run(words).returncode == 0


def test_the_tool_says_what_is_wrong() -> None:
    words = [sys.executable, str(ROOT / "tools" / "netlab"), "--link", "5gbps", "--", "true"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 2
    assert done.stderr.startswith("netlab: link: expected a rate")
