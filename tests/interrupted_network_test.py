"""Ranks on an emulated network that is slow, interrupted and cut:
interrupted_network_test.py FOLDER_OF_TESTBED LAUNCHER WORKER

An outage below the deadline is survived to the bit, by every system. A link on which a message takes longer
than the deadline is no silence. A cut above the deadline is named by the rank that is cut off,
and the connections to it are.

Needs root and a kernel with namespaces, bridges, veth pairs and tbf; else it exits with 77.
"""

import os
import re
import subprocess
import sys
import tempfile
import time

FOLDER, LAUNCHER, WORKER = (os.path.abspath(path) for path in sys.argv[1:])
GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden", "gloo.txt")
SKIPPED = 77
HANG = 100
RANKS = 3
CUT_OFF = 2
BRIDGE = None


def testbed(script, *arguments):
    return subprocess.run([os.path.join(FOLDER, script), *arguments], capture_output=True, text=True,
                          timeout=HANG, check=False)


def up(rate):
    """Links of that rate, whose queues hold what TCP sends before it slows down."""
    done = testbed("up", str(RANKS), rate, "--burst", "20kb", "--mtu", "1500", "--latency", "2s")
    if done.returncode != 0:
        print(f"skipped: {done.stderr.strip()}")
        sys.exit(SKIPPED)


def start(*command):
    output = tempfile.TemporaryFile()
    process = subprocess.Popen(
        [os.path.join(FOLDER, "run"), "--all", "--grace", "20", "--", *command], stdout=output,
        stderr=subprocess.STDOUT
    )
    process.output = output
    return process


def end_of(process):
    """The ranks' output, when they have all ended; then the network is taken down."""
    try:
        process.wait(HANG)
    except subprocess.TimeoutExpired:
        fail(f"still running after {HANG} s", text_of(process))
    testbed("down")
    return text_of(process)


def plug(is_in):
    """Takes the bridge's end of a link out of the bridge, or puts it back:
    packets are lost, and nobody hears of it."""
    change = ["master", "bridge"] if is_in else ["nomaster"]
    subprocess.run(["ip", "-n", BRIDGE, "link", "set", "dev", f"host{CUT_OFF}", *change],
                   check=True, timeout=HANG)


def await_lines(process, words, count):
    """Until so many lines have the words; stands for an event of the ranks."""
    for _ in range(20 * HANG):
        if text_of(process).count(words) >= count:
            return
        if process.poll() is not None:
            break
        time.sleep(0.05)
    fail(f"fewer than {count} times: {words}", text_of(process))


def text_of(process):
    # The ranks write at the position that a seek would change.
    descriptor = process.output.fileno()
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")


def fail(what, output):
    sys.exit(f"FAILED: {what}\n{output}")


def an_outage_is_survived():
    """Several, each 0.8 of the deadline, anywhere in what all systems do."""
    up("200Mbit")
    process = start(WORKER, "gloo", "golden", "4")
    await_lines(process, "golden begins", RANKS)
    outages = 0
    while process.poll() is None and outages < 2:
        plug(False)
        time.sleep(3.2)
        plug(True)
        if process.poll() is None:
            outages += 1
        time.sleep(4.5)  # what was lost is sent again as late as this
    text = end_of(process)
    with open(GOLDEN, encoding="utf-8") as record:
        expected = [line[2:].strip() for line in record if line.startswith(f"{RANKS} ")]
    got = [line.split("golden ", 1)[1] for line in text.splitlines() if " golden " in line
           and "golden begins" not in line]
    if process.returncode != 0 or outages == 0 or sorted(got) != sorted(expected):
        fail(f"{outages} outages: status {process.returncode}, {len(got)} lines of {len(expected)}", text)
    print(f"ok     {outages} outages of 3.2 s below a deadline of 4 s, {len(got)} results to the bit")


def a_slow_link_is_no_silence(rate, deadline, spec, elements):
    up(rate)
    begin = time.monotonic()
    process = start(
        LAUNCHER, "bench", "--engine", "gloo", "--workers", str(RANKS), "--sync", spec, "--elements",
        str(elements), "--steps", "1", "--warm-up", "1", "--deadline", str(deadline),
    )
    text = end_of(process)
    seconds = time.monotonic() - begin
    if process.returncode != 0:
        fail(f"{spec} at {rate} with a deadline of {deadline} s ended with {process.returncode}", text)
    if seconds < 2 * deadline:
        fail(f"{spec} at {rate} took {seconds:.0f} s: too fast to show anything", text)
    print(f"ok     {spec} at {rate} with a deadline of {deadline} s: {seconds:.0f} s in all")


def a_cut_is_named(mode):
    up("200Mbit")
    process = start(WORKER, "gloo", mode, "3")
    await_lines(process, " ready ", RANKS)
    time.sleep(1)  # until ranks have told each other which connections they share
    plug(False)
    text = end_of(process)
    for rank in range(RANKS):
        lines = re.findall(rf"process_worker: rank {rank}: .*", text)
        words = ("its own network is interrupted" if rank == CUT_OFF
                 else f"rank {rank}: rank {CUT_OFF} is gone or silent")
        if len(lines) != 1 or words not in lines[0]:
            fail(f"rank {rank} should say: {words}", text)
    if f"nothing has moved on the connection from rank {CUT_OFF} for 3 s" not in text:
        fail("no connection is named", text)
    print(f"ok     a cut in {mode} is named")


def main():
    global BRIDGE
    if os.geteuid() != 0:
        print("skipped: needs root, to make network namespaces")
        sys.exit(SKIPPED)
    name = os.environ["THINWIRE_TESTBED"] = f"interrupted-{os.getpid()}"
    BRIDGE = f"thinwire-testbed-{name}-bridge"
    try:
        an_outage_is_survived()
        a_slow_link_is_no_silence("500Kbit", 2, "dense", 30_000)
        a_slow_link_is_no_silence("50Kbit", 4, "casq:feedback=on", 3_000)
        a_cut_is_named("casq")
        a_cut_is_named("reduce")
    finally:
        testbed("down")


main()
