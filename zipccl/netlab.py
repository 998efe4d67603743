"""An emulated cluster on one Linux machine: hosts with a network of their own, joined by links of a chosen rate.

Each host is a network namespace with one interface on a common bridge; a token bucket at both ends of its cable limits
what the host sends and what it receives. MPICH's Hydra starts the ranks through a small agent where it would use ssh.
Everything is made inside private namespaces (network, mounts, processes), so nothing outside is touched, labs run side
by side, and the kernel removes all of a lab when its first process ends, however it ends.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zipccl.errors import ArgumentError, TransportError

MAX_HOSTS = 253
"""The hosts are 10.99.0.1 to 10.99.0.253; the machine itself is 10.99.0.254 on their bridge."""

_DEBIAN_PACKAGES = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "hostname": "hostname"}
_ADMIN_FOLDERS = ("/usr/sbin", "/sbin")  # where ip and tc are; not in the PATH of ordinary users

_NAMESPACES = ["--net", "--mount", "--mount-proc", "--pid", "--fork", "--kill-child"]
_NAMESPACES_OF_A_USER = ["--user", "--map-root-user", *_NAMESPACES]
_USER_NAMESPACE_SWITCHES = {
    "kernel/unprivileged_userns_clone": "0",
    "kernel/apparmor_restrict_unprivileged_userns": "1",
    "user/max_user_namespaces": "0",
}
"""Files under /proc/sys, and the value with which each forbids what _NAMESPACES_OF_A_USER asks for."""

# Arguments: IP TC HOSTS RATE BURST THREADS COMMAND... A private /run holds the hosts' names and the agent; a private
# /dev/shm takes what MPI leaves there when it is killed. Each host has a name of its own, for programs that tell nodes
# by it. Unless told not to, UCX sees through the namespaces and uses shared memory between the hosts, and each rank
# would take the machine's cores for its own host's. The shell stays the first process, for mpiexec expects no orphans
# of others.
_LAB_SCRIPT = r"""
set -e
ip=$1 tc=$2 hosts=$3 rate=$4 burst=$5 threads=$6
shift 6
shape() { device=$1; shift; "$tc" "$@" qdisc add dev "$device" root tbf rate "$rate" burst "$burst" latency 100ms; }

mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /dev/shm
cat >/run/agent <<END
#!/bin/sh
# agent [OPTION...] ADDRESS WORD...: run the words, which are quoted for a shell, on the host with that address.
while [ "\${1#-}" != "\$1" ]; do shift; done
host=host\${1##*.}
shift
exec "$ip" netns exec "\$host" unshare --uts sh -c "hostname \$host; \$*"
END
chmod +x /run/agent

"$ip" link set lo up
"$ip" link add netlab type bridge
"$ip" address add 10.99.0.254/24 dev netlab
"$ip" link set netlab up
for i in $(seq "$hosts"); do
    "$ip" netns add "host$i"
    "$ip" link add "port$i" type veth peer name eth0 netns "host$i"
    "$ip" link set "port$i" master netlab up
    "$ip" -n "host$i" address add "10.99.0.$i/24" dev eth0
    "$ip" -n "host$i" link set lo up
    "$ip" -n "host$i" link set eth0 up
    shape "port$i"
    shape eth0 -n "host$i"
done
export UCX_TLS=tcp,self ZIPCCL_NUM_THREADS="${ZIPCCL_NUM_THREADS:-$threads}"
"$@" || exit $?
"""


@dataclass(frozen=True)
class Link:
    """The cable between a host and the switch; the rate holds in each direction, headers included."""

    rate_bits_per_s: float

    def __post_init__(self) -> None:
        if not 1e6 <= self.rate_bits_per_s <= 1e12:
            raise ArgumentError(
                f"link: expected a rate from 1 mbit to 1000 gbit per second, found {self.rate_bits_per_s:g} bit/s"
            )

    @classmethod
    def parse(cls, text: str) -> Link:
        """Read a rate per second such as "250mbit" or "5gbit"."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(mbit|gbit)", text, re.ASCII)
        if match is None:
            raise ArgumentError(
                f'link: expected a rate per second in mbit or gbit, such as "250mbit" or "5gbit", found {text!r}'
            )
        return cls(float(match[1]) * {"mbit": 1e6, "gbit": 1e9}[match[2]])

    @property
    def burst_nbytes(self) -> int:
        """Bytes that pass unshaped after a pause: what 0.5 ms of the rate carry, or two of the kernel's large packets.

        With less the shaper does not reach its rate; more would flatter every message that follows a pause.
        """
        return max(2 * 64 * 1024, int(self.rate_bits_per_s / 8 * 0.5e-3))


def unavailable() -> str | None:
    """Say why no lab can be made here and what would change that; None where one can be made."""
    try:
        probe = subprocess.run(_lab(["true"], hosts=1, link=Link(1e9), ranks=1), capture_output=True, text=True)
    except TransportError as error:
        return str(error)
    if probe.returncode != 0:
        return (
            f"an emulated network needs a Linux kernel with bridge, veth and sch_tbf; making one failed with "
            f"{probe.stderr.strip()!r}. As root, try: modprobe -a bridge veth sch_tbf"
        )
    return None


def command(mpiexec: str, program: Sequence[str], *, ranks: int, hosts: int, link: Link) -> list[str]:
    """Build the command that runs an MPI program on an emulated cluster; it ends with the program's exit status.

    Args:
        mpiexec: Path of MPICH's launcher.
        program: The program of every rank and its arguments.
        ranks: Ranks in all, in blocks: the first hosts get one more where the hosts do not divide them.
        hosts: Emulated hosts, at most `MAX_HOSTS` and no more than ranks.
        link: Every host's link.

    Raises:
        ArgumentError: A count is out of range.
        TransportError: No lab can be made here.
    """
    if not 1 <= hosts <= min(ranks, MAX_HOSTS):
        raise ArgumentError(f"hosts: expected from 1 to {min(ranks, MAX_HOSTS)} for {ranks} ranks, found {hosts}")
    reason = unavailable()
    if reason is not None:
        raise TransportError(reason)
    each, left_over = divmod(ranks, hosts)
    places = ",".join(f"10.99.0.{host + 1}:{each + (host < left_over)}" for host in range(hosts))
    through_agent = ["-launcher", "ssh", "-launcher-exec", "/run/agent", "-iface", "netlab", "-hosts", places]
    return _lab([mpiexec, *through_agent, "-n", str(ranks), *program], hosts, link, ranks)


def _lab(inner: Sequence[str], hosts: int, link: Link, ranks: int) -> list[str]:
    """Build the command that makes a lab and runs the inner command in it, beside the hosts."""
    if sys.platform != "linux":
        raise TransportError(f"an emulated network needs Linux's namespaces, found {sys.platform}; use a Linux machine")
    ip, tc, unshare, _ = (_tool(name) for name in _DEBIAN_PACKAGES)
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    numbers = [str(hosts), f"{link.rate_bits_per_s:.0f}bit", str(link.burst_nbytes), str(threads)]
    return [unshare, *_namespaces(unshare), "sh", "-c", _LAB_SCRIPT, "netlab", ip, tc, *numbers, *inner]


def _tool(name: str) -> str:
    path = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *_ADMIN_FOLDERS]))
    if path is None:
        raise TransportError(
            f"an emulated network needs the program {name!r}, which was not found; "
            f"on Debian or Ubuntu: apt-get install {_DEBIAN_PACKAGES[name]}"
        )
    return path


def _namespaces(unshare: str) -> list[str]:
    """Choose the options of unshare that work for this user."""
    for options in (_NAMESPACES, _NAMESPACES_OF_A_USER):
        attempt = subprocess.run([unshare, *options, "true"], capture_output=True, text=True)
        if attempt.returncode == 0:
            return options
    switches = [name.replace("/", ".") for name in _USER_NAMESPACE_SWITCHES]
    forbidding = [
        f"{switch} is {value}"
        for switch, (name, value) in zip(switches, _USER_NAMESPACE_SWITCHES.items(), strict=True)
        if (file := Path("/proc/sys", name)).exists() and file.read_text().strip() == value
    ]
    raise TransportError(
        f"an emulated network needs root or user namespaces; unshare failed with {attempt.stderr.strip()!r} "
        f"({', '.join(forbidding) or 'no sysctl forbids it'}). Run as root, give the container CAP_SYS_ADMIN, "
        f"or allow user namespaces through the sysctls {', '.join(switches)}"
    )
