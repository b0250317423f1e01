"""What a user may get wrong when starting Gloo ranks: each must end soon with one line that says what to do.

gloo_bad_input_test.py THINWIRE WORKER
"""

import os
import re
import socket
import subprocess
import sys
import time

LAUNCHER, WORKER = (os.path.abspath(path) for path in sys.argv[1:3])
HANG = 30
failures = []


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(variables, deadline=1):
    names = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "GLOO_SOCKET_IFNAME", "THINWIRE_JOB")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment.update({name: str(value) for name, value in variables.items()})
    return subprocess.Popen(
        [WORKER, "gloo", "collectives", str(deadline)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def expect(name, process, pattern):
    try:
        output, _ = process.communicate(timeout=HANG)
    except subprocess.TimeoutExpired:
        process.kill()
        failures.append(f"{name}: still running after {HANG} s")
        return
    lines = [line for line in output.splitlines() if not line.startswith("rank ")]
    good = process.returncode == 1 and len(lines) == 1 and re.search(pattern, lines[0])
    print(f"{'ok' if good else 'FAILED'}  {name} (status {process.returncode}): {output.strip()}")
    if not good:
        failures.append(f"{name}: expected status 1 and one line with '{pattern}'")


def ranks(port, rank, world, **more):
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": rank, "WORLD_SIZE": world, **more}


expect("no environment", start({}), "MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE.*thinwire launch")
expect("half an environment", start({"MASTER_ADDR": "127.0.0.1", "RANK": 0}), "but MASTER_PORT, WORLD_SIZE")
expect("rank outside", start(ranks(29500, 4, 4)), "RANK=4: a number from 0 to 3")
expect("no number", start(ranks("http", 0, 1)), "MASTER_PORT=http: a number from 1 to 65535")
expect("unknown host", start({**ranks(29500, 1, 2), "MASTER_ADDR": "no-such-host.invalid"}),
       "no-such-host.invalid")
expect("nobody listens", start(ranks(free_port(), 1, 2)),
       r"cannot reach the rendezvous at 127\.0\.0\.1:\d+ within 1 s")
expect("a rank is missing", start(ranks(free_port(), 0, 3)), "ranks 1 and 2 of 3 did not join")
expect("no such interface", start(ranks(free_port(), 0, 1, GLOO_SOCKET_IFNAME="nosuch0")),
       "nosuch0: this machine has no")

with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    port = taken.getsockname()[1]
    expect("the port is taken", start(ranks(port, 0, 2)), f"127.0.0.1:{port}: the port is in use")
    expect("something else answers", start(ranks(port, 1, 2)), f"127.0.0.1:{port} does not answer as a torch")

port = free_port()
first, second, third = (start(ranks(port, rank, 3), 3) for rank in (0, 1, 1))
outputs = [process.communicate(timeout=HANG)[0] for process in (first, second, third)]
if sum("two processes have RANK=1" in output for output in outputs) != 1:
    failures.append(f"two ranks 1: {outputs}")

# Two jobs at one port: the second one's rank 1 comes to the first one's rendezvous,
# in which a rank 1 is awaited.
port = free_port()
first = start(ranks(port, 0, 2, THINWIRE_JOB="first"), 20)
other = start(ranks(port, 1, 2, THINWIRE_JOB="second"), 20)
expect("another job's rendezvous", other, r"is of another job \(first; THINWIRE_JOB of this one: second\)")
missing = start(ranks(port, 1, 2, THINWIRE_JOB="first"), 20)
statuses = [process.communicate(timeout=HANG)[0] or process.returncode for process in (first, missing)]
if [process.returncode for process in (first, missing)] != [0, 0]:
    failures.append(f"the first job of two: {statuses}")


def reaches(host, port):
    try:
        with socket.create_connection((host, port), 5):
            return True
    except ConnectionRefusedError:
        return False


# A rank that signs in and ends before it connects: Gloo itself would wait for it, and says nothing of it.
SIGNS_IN_AND_ENDS = """
import datetime, os, sys, time
from torch.distributed import PrefixStore, TCPStore
base = TCPStore("127.0.0.1", int(sys.argv[1]), None, False, datetime.timedelta(seconds=20))
store = PrefixStore("thinwire//attempt_0", base)
store.set("joined/1", "mark")
store.add("joined", 1)
while store.add("joined", 0) < 3:
    time.sleep(0.02)
"""
python = "/usr/bin/python3"
if subprocess.run([python, "-c", "import torch.distributed"], capture_output=True,
                  check=False).returncode == 0:
    port = free_port()
    survivors = [start(ranks(port, rank, 3), 4) for rank in (0, 2)]
    # Rank 0 has opened the port when a client gets through; c10d tries until then.
    fake = subprocess.Popen([python, "-c", SIGNS_IN_AND_ENDS, str(port)], stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)
    for rank, process in zip((0, 2), survivors):
        expect(f"a rank ends before it connects, seen by rank {rank}", process,
               "not all ranks connected.*: rank 1 is gone or silent")
    if fake.wait(HANG) != 0:
        failures.append("the rank that signs in and ends did not")

# The store ends while ranks wait for one that does not come: c10d itself names a socket.
WATCHES = """
import datetime, sys, time
from torch.distributed import PrefixStore, TCPStore
base = TCPStore("127.0.0.1", int(sys.argv[1]), None, False, datetime.timedelta(seconds=20))
store = PrefixStore("thinwire//attempt_0", base)
while store.add("joined", 0) < 2:
    time.sleep(0.02)
"""
# An agent serves the store before rank 0 has come.
# Rank 1 of another job finds out when that one's rank 0 comes.
SERVES_AND_CLAIMS = """
import datetime, sys, time
from torch.distributed import PrefixStore, TCPStore
patience = datetime.timedelta(seconds=20)
base = TCPStore("127.0.0.1", int(sys.argv[1]), None, True, patience, wait_for_workers=False)
store = PrefixStore("thinwire/second/attempt_0", base)
while store.add("joined", 0) < 1:
    time.sleep(0.02)
base.compare_set("thinwire/job", "", "job first")
sys.stdin.read()
"""
if subprocess.run([python, "-c", "import torch.distributed"], capture_output=True,
                  check=False).returncode == 0:
    port = free_port()
    host, waiting = [start(ranks(port, rank, 3), 20) for rank in (0, 1)]
    if subprocess.run([python, "-c", WATCHES, str(port)], capture_output=True, timeout=HANG,
                      check=False).returncode != 0:
        failures.append("the ranks did not join")
    host.kill()
    host.communicate()
    expect("the store's rank ends while others join", waiting,
           "rank 0, whose process serves it, is gone or silent")

    port = free_port()
    agent = subprocess.Popen([python, "-c", SERVES_AND_CLAIMS, str(port)], stdin=subprocess.PIPE,
                             stderr=subprocess.DEVNULL)
    other = start(ranks(port, 1, 2, THINWIRE_JOB="second", TORCHELASTIC_USE_AGENT_STORE="True"), 20)
    expect("another job's agent", other, r"is of another job \(first; THINWIRE_JOB of this one: second\)")
    agent.communicate()

# On loopback nobody else is let in; elsewhere rank 0 listens for the others.
own_addresses = [host for host in subprocess.run(["hostname", "-I"], capture_output=True, text=True,
                                                 check=False).stdout.split() if "." in host]
if own_addresses:
    for master, outside in (("127.0.0.1", False), ("localhost", False), (own_addresses[0], True)):
        port = free_port()
        process = start({**ranks(port, 0, 2), "MASTER_ADDR": master}, 20)
        end = time.monotonic() + HANG
        while not reaches(master, port) and time.monotonic() < end:
            time.sleep(0.02)
        # The port is open a moment before it is restricted.
        while (found := reaches(own_addresses[0], port)) != outside and time.monotonic() < end:
            time.sleep(0.02)
        print(f"{'ok' if found == outside else 'FAILED'}  MASTER_ADDR={master}: "
              f"reached from outside: {found}")
        if found != outside:
            failures.append(f"MASTER_ADDR={master}: reached from outside: {found}")
        process.kill()
        process.communicate()

if failures:
    sys.exit("\n".join(failures))
