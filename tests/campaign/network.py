"""The places where a run's ranks live: namespaces of its own for the network and for /dev/shm,
which are gone with it.

Nothing here has a name, so nothing can be left behind, and the machine's own network is not touched. Needs
root; without it ranks share the machine's loopback.
"""
import contextlib
import ctypes
import os
import subprocess
from typing import List, Set

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_MOUNTS, _NEW_NETWORK = 0x00020000, 0x40000000
_RECURSIVE_PRIVATE = 0x4000 | 0x40000
SUBNET = "10.84.0"
#: What passes at once after a pause.
_BURST = "4kb"


def is_possible() -> bool:
    """Whether namespaces, bridges, veth pairs and token buckets can be made here;
    tried in a process of its own."""
    if os.geteuid() != 0:
        return False
    tries = ("ip link add one type bridge && ip link add two type veth peer name three && "
             "tc qdisc add dev two root tbf rate 1mbit burst 4kb latency 1s")
    try:
        return subprocess.run(["unshare", "-n", "-m", "sh", "-c", tries], capture_output=True,
                              check=False).returncode == 0
    except FileNotFoundError:
        return False


def _call(name: str, *arguments) -> None:
    if getattr(_LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _ip(lines: List[str], *prefix: str) -> None:
    done = subprocess.run([*prefix, "ip", "-batch", "-"], input="\n".join(lines) + "\n", text=True,
                          capture_output=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"ip: {done.stderr.strip()}: {lines}")


def enter_own() -> None:
    """Gives this process, and those that it starts,
    a network with nothing but loopback and an empty /dev/shm."""
    _call("unshare", _NEW_NETWORK | _NEW_MOUNTS)
    _call("mount", b"none", b"/", None, _RECURSIVE_PRIVATE, None)
    _call("mount", b"tmpfs", b"/dev/shm", b"tmpfs", 0, None)
    _ip(["link set lo up"])


def enter_host() -> None:
    """In a rank's process, which join() then joins to the others."""
    _call("unshare", _NEW_NETWORK)


class Links:
    """A bridge in this process's network, with a link to the network of each rank."""

    def __init__(self):
        _ip(["link add name bridge type bridge forward_delay 0", "link set bridge up"])

    def join(self, rank: int, pid: int) -> None:
        _ip([
            f"link add name host{rank} type veth peer name eth0 netns {pid}",
            f"link set host{rank} master bridge up",
        ])
        _ip(["link set lo up", f"address add {SUBNET}.{rank + 1}/24 dev eth0", "link set eth0 up"], "nsenter",
            "-n", "-t", str(pid))

    def cut(self, rank: int) -> None:
        """Nothing passes any more, and neither end can tell."""
        _ip([f"link set host{rank} nomaster"])

    def restore(self, rank: int) -> None:
        _ip([f"link set host{rank} master bridge"])

    def slow(self, rank: int, pid: int, bits_per_second: int) -> None:
        rule = f"root tbf rate {bits_per_second}bit burst {_BURST} latency 400ms"
        for place, prefix in ((f"host{rank}", []), ("eth0", ["nsenter", "-n", "-t", str(pid)])):
            subprocess.run([*prefix, "tc", "qdisc", "add", "dev", place, *rule.split()], check=True,
                           capture_output=True)


def open_sockets() -> List[str]:
    """Sockets of this network that still belong to somebody:
    those that only wait for their end do not count."""
    ending = {"04", "05", "06", "07", "08", "09", "0B"}
    found = []
    for table in ("tcp", "tcp6"):
        with open(f"/proc/self/net/{table}", encoding="ascii") as lines:
            found += [f"{table} {line.split()[1]}-{line.split()[2]}"
                      for line in list(lines)[1:] if line.split()[3] not in ending]
    return found


def local_ports(pid: int) -> Set[int]:
    """Of the process's TCP connections."""
    inodes = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                inodes.add(os.readlink(f"/proc/{pid}/fd/{name}"))
        lines = []
        for table in ("tcp", "tcp6"):
            with open(f"/proc/{pid}/net/{table}", encoding="ascii") as file:
                lines += [line.split() for line in file.readlines()[1:]]
    except OSError:  # ended meanwhile
        return set()
    established = "01"
    return {int(line[1].rsplit(":", 1)[1], 16) for line in lines if line[3] == established
            and f"socket:[{line[9]}]" in inodes}
