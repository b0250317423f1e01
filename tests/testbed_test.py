"""The emulated network: that ranks meet over it, and that nothing of it stays behind, however up and run end.

testbed_test.py FOLDER_OF_TESTBED THINWIRE

Needs root and a kernel with namespaces, bridges, veth pairs and tbf; else it says so and exits with 77. The
testbeds have names of this process, so one that somebody uses is left alone.
"""

import glob
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

FOLDER, THINWIRE = (os.path.abspath(path) for path in sys.argv[1:])
SKIPPED = 77
HANG = 30
NAME = f"test-{os.getpid()}"
ENVIRONMENT = {**os.environ, "THINWIRE_TESTBED": NAME}
for variable in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
    ENVIRONMENT.pop(variable, None)
failures = []


def check(name, condition, detail=""):
    print("ok    " if condition else "FAILED", name, "" if condition else detail)
    if not condition:
        failures.append(name)


def namespaces():
    return glob.glob(f"/var/run/netns/thinwire-testbed-{NAME}-*")


def skip_unless_possible():
    """Tries each thing that up needs, by ip and tc alone."""
    if os.geteuid() != 0:
        print("skipped: testbed_test needs root, to make network namespaces")
        sys.exit(SKIPPED)
    name = f"thinwire-testbed-{NAME}-probe"
    steps = (
        f"ip netns add {name}",
        f"ip -n {name} link add bridge type bridge",
        f"ip -n {name} link add left type veth peer name right",
        f"tc -n {name} qdisc add dev left root tbf rate 1mbit burst 64kb latency 20ms",
        f"ip netns exec {name} true",
    )
    try:
        for step in steps:
            done = subprocess.run(step.split(), capture_output=True, text=True, timeout=HANG, check=False)
            if done.returncode != 0:
                print(f"skipped: testbed_test cannot make an emulated network here: {step}: "
                      f"{done.stderr.strip()}")
                sys.exit(SKIPPED)
    except FileNotFoundError as error:
        print(f"skipped: testbed_test needs iproute2: {error}")
        sys.exit(SKIPPED)
    finally:
        if namespaces():
            subprocess.run(["ip", "netns", "delete", name], timeout=HANG, check=False)


def testbed(script, *arguments, **changes):
    return subprocess.run(
        [os.path.join(FOLDER, script), *arguments],
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
        env={**ENVIRONMENT, **changes},
    )


def run_shell(script, *options):
    return testbed("run", *options, "--", "sh", "-c", script)


def default_signals():
    # A parent that ignores SIGINT, as a shell's background job does, would pass that on.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(script, *arguments):
    return subprocess.Popen(
        [os.path.join(FOLDER, script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=ENVIRONMENT,
        preexec_fn=default_signals,
        start_new_session=True,
    )


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(condition, pause=0.05, times=100):
    """A killed process takes a moment to disappear."""
    for _ in range(times):
        if condition():
            return True
        time.sleep(pause)
    return False


def starts_ranks(run):
    """Whether a child of run's leads a session of its own, as ranks do."""
    with open(f"/proc/{run}/task/{run}/children", encoding="ascii") as children:
        for child in children.read().split():
            try:
                if os.getsid(int(child)) == int(child):
                    return True
            except ProcessLookupError:
                pass
    return False


def all_gone(pids):
    return eventually(lambda: not any(is_running(int(pid)) for pid in pids))


def hosts_empty():
    def pids(path):
        listing = ["ip", "netns", "pids", os.path.basename(path)]
        return subprocess.run(listing, capture_output=True, text=True, timeout=HANG,
                              check=True).stdout.split()

    return eventually(lambda: not any(pids(path) for path in namespaces()))


def the_machines_links():
    """Names of the links, addresses and routes outside; their counters and ages do not matter."""
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, timeout=HANG,
                           check=True).stdout
    routes = subprocess.run(["ip", "route"], capture_output=True, text=True, timeout=HANG, check=True).stdout
    return sorted(line.split(": ")[1] for line in links.splitlines()), routes


def bad_input():
    for arguments in ((), ("2",), ("0", "1Gbit"), ("17", "1Gbit"), ("2", "1gbit"),
                      ("2", "1Gbit", "--burst", "1kb")):
        done = testbed("up", *arguments)
        check(f"up {' '.join(arguments)}", done.returncode == 2 and len(done.stderr.splitlines()) == 1, done)
    none = testbed("run", "--", "true")
    check("run without a testbed", none.returncode == 1 and "testbed/up" in none.stderr, none)
    none = testbed("down")
    check("down without a testbed", none.returncode == 0 and none.stdout == "nothing is up\n", none)


def a_failing_step():
    """A tc that fails at its third call stands for a kernel without tbf."""
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/tc", "w", encoding="ascii") as script:
            script.write(
                f'#!/bin/sh\necho >>{folder}/calls\n[ "$(wc -l <{folder}/calls)" -lt 3 ] && exit\n'
                "echo 'Error: Specified qdisc kind is unknown.' >&2\nexit 2\n"
            )
        os.chmod(f"{folder}/tc", 0o755)
        done = testbed("up", "2", "100Mbit", PATH=f"{folder}:{os.environ['PATH']}")
    says = "host 1" in done.stderr and "qdisc kind is unknown" in done.stderr and "sch_tbf" in done.stderr
    check("a failing step is named with a remedy", done.returncode == 1 and says, done)
    check("a failing up leaves nothing", not namespaces(), namespaces())


def every_link_has(rate):
    for rank in range(3):
        host = f"thinwire-testbed-{NAME}-host{rank}"
        for namespace, device in ((host, "eth0"), (f"thinwire-testbed-{NAME}-bridge", f"host{rank}")):
            limit = subprocess.run(
                ["tc", "-n", namespace, "qdisc", "show", "dev", device], capture_output=True, text=True,
                timeout=HANG, check=True
            ).stdout
            check(f"limit of {device} in {namespace}", "tbf" in limit and rate in limit, limit)


def made_and_used():
    made = testbed("up", "3", "100Mbit", "--burst", "64kb")
    check("up", made.returncode == 0 and made.stdout.startswith("3 hosts, rate 100Mbit burst 64Kb lat 20ms"),
          made)
    check("namespaces", len(namespaces()) == 4, namespaces())
    again = testbed("up", "2", "1Gbit")
    check("up twice", again.returncode == 1 and "3 hosts are up, rate 100Mbit" in again.stderr, again)
    every_link_has("rate 100Mbit")
    for wrong in ((), ("3",), ("1Gbit", "--burst", "1kb")):
        refused = testbed("limit", *wrong)
        check(f"limit {' '.join(wrong)}", refused.returncode == 2, refused)
    changed = testbed("limit", "50Mbit", "--burst", "32kb")
    check("limit", changed.returncode == 0 and changed.stdout == "3 hosts, rate 50Mbit burst 32Kb lat 20ms\n",
          changed)
    every_link_has("rate 50Mbit")

    words = "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT $GLOO_SOCKET_IFNAME"
    done = run_shell(f"echo {words}", "--all")
    expected = [f"[{rank}] {rank} 3 0 1 10.83.0.1 29500 eth0" for rank in range(3)]
    check("environment of every rank",
          done.returncode == 0 and sorted(done.stdout.splitlines()) == expected, done)
    done = run_shell("echo $RANK $WORLD_SIZE; echo error >&2", "-n", "2")
    check("output of rank 0",
          done.stdout == "0 2\n" and sorted(done.stderr.splitlines()) == ["[1] error", "error"], done)

    bench = ["bench", "--engine", "gloo", "--sync", "dense,marsit:full_every=2", "--workers", "3",
             "--steps", "2"]
    done = testbed("run", "--", THINWIRE, *bench, "--elements", "1250000", "--json", "-")
    check("bench", done.returncode == 0, done)
    results = json.loads(done.stdout) if done.returncode == 0 else []
    check("ranks agree", len(results) == 2 and all(result["ranks_agree"] for result in results), results)
    check("bench leaves no process", hosts_empty())


def failing_commands():
    failed = run_shell("[ $RANK != 1 ] || exit 7")
    check("the failing rank's status",
          failed.returncode == 7 and "rank 1 failed with status 7" in failed.stderr, failed)
    killed = run_shell("[ $RANK != 2 ] || kill -9 $$")
    check("128 + signal", killed.returncode == 137 and len(killed.stderr.splitlines()) == 1, killed)
    check("unknown command", testbed("run", "--", "no-such-command").returncode == 127)
    check("too many ranks", testbed("run", "-n", "4", "--", "true").returncode == 2)
    deaf = run_shell('trap "" TERM; [ $RANK = 0 ] && exit 3; while :; do sleep 0.1; done', "--grace", "0.2")
    check("ends those that ignore SIGTERM", deaf.returncode == 3 and hosts_empty(), deaf)
    stopped = run_shell("[ $RANK = 0 ] && exit 4; kill -STOP $$", "--grace", "0.2")
    check("ends stopped ones", stopped.returncode == 4 and hosts_empty(), stopped)
    orphans = run_shell("sleep 1000 & setsid sleep 1000 & env -i sleep 1000 & exit 0")
    check("ends what ranks left behind", orphans.returncode == 0 and hosts_empty(), orphans)


def pressed_until_it_ends(process):
    """Ctrl-C, and again where nothing comes of it: bash drops a SIGINT during a command that then ends well.

    A command that run waits for may take the signal for itself; from the first rank on it waits for none.
    """
    for _ in range(HANG // 5):
        os.killpg(process.pid, signal.SIGINT)
        try:
            return process.wait(5)
        except subprocess.TimeoutExpired:
            pass
    return "nothing"


def interrupted_run():
    for number in (signal.SIGINT, signal.SIGTERM):
        process = start("run", "--all", "--", "sh", "-c", "echo $$; exec sleep 1000")
        pids = [process.stdout.readline().split()[1] for _ in range(3)]
        process.send_signal(number)
        status = process.wait(HANG)
        check(f"run ends by {number.name}",
              status == 128 + number and all_gone(pids) and hosts_empty(), status)
    # As a terminal does it, to run and all that it started in its group, from the first rank's start on.
    # Before that bash itself reads the script, and 5.2 may take SIGINT for anything.
    for delay in (0, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064):
        process = start("run", "--", "sleep", "1000")
        check("run starts a rank", eventually(lambda: starts_ranks(process.pid), 0.001, 30_000))
        time.sleep(delay)
        status = pressed_until_it_ends(process)
        check(f"run ends by Ctrl-C after {delay} s", status == 130 and hosts_empty(), status)
    process = start("run", "--all", "--", "sh", "-c", "echo $$; exec sleep 1000")
    pids = [process.stdout.readline().split()[1] for _ in range(3)]
    process.kill()
    process.wait(HANG)
    check("ranks end with a killed run", all_gone(pids))


def taken_down():
    process = start("run", "--", "sh", "-c", "echo; trap '' TERM; while :; do sleep 0.1; done")
    process.stdout.readline()
    done = testbed("down")
    check("down", done.returncode == 0 and "removed" in done.stdout and not namespaces(), done)
    check("down ends a run", process.wait(HANG) != 0)


def interrupted_up():
    for number in (signal.SIGINT, signal.SIGTERM):
        for delay in (0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3):
            process = start("up", "16", "100Mbit")
            time.sleep(delay)
            if number == signal.SIGINT:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
            output = process.communicate(timeout=HANG)[0]
            # It may have come to its end before.
            if process.returncode == 0:
                check("down", testbed("down").returncode == 0)
            else:
                check("status of up", process.returncode in (128 + number, -number),
                      (process.returncode, output))
            check(f"up ends by {number.name} after {delay} s", not namespaces(), namespaces())


def interrupted_check():
    for number in (signal.SIGINT, signal.SIGTERM):
        with tempfile.TemporaryDirectory() as folder:
            waiting = f"{folder}/thinwire"
            with open(waiting, "w", encoding="ascii") as script:
                script.write(f"#!/bin/sh\necho $$ >>{folder}/pids\nexec sleep 1000\n")
            os.chmod(waiting, 0o755)
            process = start("check", "100Mbit", waiting)

            def pids(path=f"{folder}/pids"):
                try:
                    with open(path, encoding="ascii") as lines:
                        return lines.read().split()
                except FileNotFoundError:
                    return []

            check("check starts its ranks", eventually(lambda: len(pids()) == 4), pids())
            os.killpg(process.pid, number)
            status = process.wait(HANG)
            left = glob.glob(f"/var/run/netns/thinwire-testbed-check-{process.pid}-*")
            ended = status == 128 + number and not left and all_gone(pids())
            check(f"check ends by {number.name}", ended, (status, left))


def main():
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    skip_unless_possible()
    before = the_machines_links()
    try:
        bad_input()
        a_failing_step()
        made_and_used()
        failing_commands()
        interrupted_run()
        taken_down()
        interrupted_up()
        interrupted_check()
    finally:
        testbed("down")
    check("the machine's links and routes are as before", the_machines_links() == before,
          (before, the_machines_links()))
    if failures:
        sys.exit(f"{len(failures)} failed")


if __name__ == "__main__":
    main()
