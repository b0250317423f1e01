"""The launcher: environment, exit statuses, signals, and that nothing is left running.

launch_test.py THINWIRE
"""

import json
import os
import re
import signal
import subprocess
import sys
import time

THINWIRE = os.path.abspath(sys.argv[1])
HANG = 30
failures = []


def check(name, condition, detail=""):
    print("ok    " if condition else "FAILED", name, "" if condition else detail)
    if not condition:
        failures.append(name)


def launch(*arguments):
    return subprocess.run(
        [THINWIRE, "launch", *arguments], capture_output=True, text=True, timeout=HANG, check=False
    )


def shell(ranks, script, *options):
    return launch("-n", str(ranks), *options, "--", "sh", "-c", script)


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def all_gone(pids):
    # A killed process takes a moment to disappear.
    for _ in range(100):
        if not any(is_running(int(pid)) for pid in pids):
            return True
        time.sleep(0.05)
    return False


done = shell(3, 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT"')
lines = sorted(done.stdout.splitlines())
check("status 0", done.returncode == 0, done)
check("environment",
      all(re.fullmatch(rf"{r} {r} 3 3 127\.0\.0\.1 \d+", line) for r, line in enumerate(lines)), lines)
threads = [shell(ranks, "echo $OMP_NUM_THREADS").stdout for ranks in (2, 1)]
check("one OpenMP thread for each of several",
      os.environ.get("OMP_NUM_THREADS") or threads == ["1\n1\n", "\n"], threads)
jobs = [set(shell(2, "echo $THINWIRE_JOB").stdout.split()) for _ in range(2)]
check("a token for each job", [len(job) for job in jobs] == [1, 1] and jobs[0] != jobs[1], jobs)
check("one port for all", len({line.split()[-1] for line in lines}) == 1, lines)
check("--port", shell(1, "echo $MASTER_PORT", "--port", "23456").stdout == "23456\n")
words = launch("-n", "1", "--", "echo", "bench", "--sync", "a", "--", "-n", "7").stdout
check("arguments arrive untouched", words == "bench --sync a -- -n 7\n", words)

# A bench without --workers takes as many as were started, where its engine joins them;
# else it says that each is alone.
bench = ("bench", "--sync", "dense", "--elements", "1000", "--steps", "1")
alone = launch("-n", "3", "--", THINWIRE, *bench)
check("processes that nothing joins are told",
      alone.stderr.count("--engine gloo makes them one job") == 1, alone.stderr)
joined = launch("-n", "3", "--", THINWIRE, *bench, "--engine", "gloo", "--json", "-")
if "no torch with Gloo" in joined.stderr:
    print("skipped: bench joins the ranks that were started: no Gloo")
else:
    workers = ([result["workers"] for result in json.loads(joined.stdout)] if joined.returncode == 0
               else joined.stderr)
    check("bench joins the ranks that were started", workers == [3], workers)

check("first failure's status", shell(2, "[ $RANK = 0 ] || exit 7").returncode == 7)
killed = shell(2, "[ $RANK = 0 ] || kill -9 $$")
check("128 + signal", killed.returncode == 137, killed)
check("says who was killed", re.search(r"rank 1 .* was killed by signal 9", killed.stderr), killed)
# By its parent, which is the launcher, a rank sees that the one before it is gone.
crashed = shell(
    3,
    """[ $RANK = 0 ] && exit 3
    while [ $(cat /proc/$PPID/task/$PPID/children | wc -w) -gt 2 ]; do sleep 0.05; done
    [ $RANK = 1 ] && sleep 1000
    kill -SEGV $$""",
    "--grace",
    "2",
)
check("says who crashed after another's failure",
      re.search(r"rank 2 .* was killed by signal 11", crashed.stderr), crashed)
check("the first failure's status all the same", crashed.returncode == 3, crashed)

unknown = launch("-n", "2", "--", "no-such-command")
check("unknown command", unknown.returncode == 127 and len(unknown.stderr.splitlines()) == 1, unknown)
check("no command", launch("-n", "2").returncode == 2)
check("no ranks", launch("-n", "0", "--", "true").returncode == 2)
check("no number of ranks", launch("--", "true").returncode == 2)

# The others get their grace, then SIGTERM, then SIGKILL, also when they ignore or cannot hear it.
deaf = shell(3, 'echo $$; trap "" TERM; [ $RANK = 0 ] && exit 3; while :; do sleep 0.1; done',
             "--grace", "0.5")
check("ends those that ignore SIGTERM", deaf.returncode == 3 and all_gone(deaf.stdout.split()), deaf)
stopped = shell(2, "echo $$; [ $RANK = 0 ] && exit 4; kill -STOP $$")
check("ends stopped ones without waiting",
      stopped.returncode == 4 and all_gone(stopped.stdout.split()), stopped)
orphans = shell(2, "sleep 1000 & echo $!; exit 0")
check("ends what the ranks left behind",
      orphans.returncode == 0 and all_gone(orphans.stdout.split()), orphans)


def interrupted(number, script):
    """The launcher's status after that signal, and the ids that its ranks had printed."""
    process = subprocess.Popen(
        [THINWIRE, "launch", "-n", "2", "--grace", "5", "--", "sh", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    pids = [process.stdout.readline().strip() for _ in range(2)]
    process.send_signal(number)
    errors = process.communicate(timeout=HANG)[1]
    return process.returncode, pids, errors


for number in (signal.SIGINT, signal.SIGTERM):
    status, pids, errors = interrupted(number, "echo $$; exec sleep 1000")
    check(f"forwards {number.name}", status == 128 + number and all_gone(pids), status)
    check(f"{number.name} is no crash", not errors, errors)
_, pids, _ = interrupted(signal.SIGKILL, "echo $$; exec sleep 1000")
check("ranks end with a killed launcher", all_gone(pids), pids)

if failures:
    sys.exit(f"{len(failures)} failed")
