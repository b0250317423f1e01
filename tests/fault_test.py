"""Kills or freezes one of four ranks in mid-run, or keeps it busy, and checks what becomes of the others.

fault_test.py gloo|mpi STARTER WORKER reduce|ring|casq HOW VICTIM

STARTER is the thinwire executable, or mpirun with its options, as one word. HOW is one of

    kill, stop    all other ranks must end by themselves with one line that names the victim
    frozen        stop, long before the deadline: the process shows no sign of life, and that is what they say
    away          the victim is busy by itself for longer than the deadline: they say that it lives
    late          busy by itself for longer than a frozen rank is waited for, and shorter than the deadline:
                  all go on
    pause         frozen for shorter than that: all go on

Nothing may hang, dump core or stay behind. Time limits only tell a hang from an end: they are several times
what is needed.
"""

import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time

RANKS = 4
LIMITS = {  # seconds that a rank waits for another, and for a frozen one
    "kill": (3,),
    "stop": (3,),
    "frozen": (60, 4),
    "away": (3,),
    "late": (60, 4),
    "pause": (60, 6),
}
SIGNALS = {
    "kill": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "frozen": signal.SIGSTOP,
    "away": signal.SIGUSR1,
    "late": signal.SIGUSR1,
    "pause": signal.SIGSTOP,
}
ENDS_AFTER = {"late": (7, signal.SIGUSR2), "pause": (2, signal.SIGCONT)}  # the fault itself
HANG = 50


def fail(what, output):
    sys.exit(f"FAILED: {what}\n--- output of the ranks ---\n{output}")


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Job:
    """The ranks, with everything that they print."""

    def __init__(self, command, folder):
        self.text = ""
        self.pids = {}
        self.ready = threading.Event()
        self.went_on = set()  # ranks, after the fault
        self.all_went_on = threading.Event()
        self.ends = 0  # ranks that said why they end
        self.others_ended = threading.Event()
        self.process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.text += line
            started = re.match(r"rank (\d+) ready (\d+)", line)
            if started:
                self.pids[int(started[1])] = int(started[2])
                if len(self.pids) == RANKS:
                    self.ready.set()
            self.ends += line.startswith("process_worker: ")
            if self.ends == RANKS - 1:
                self.others_ended.set()
            went_on = re.match(r"rank (\d+) went on", line)
            if went_on:
                self.went_on.add(int(went_on[1]))
                if len(self.went_on) >= RANKS - 1:  # the victim itself may not have waited
                    self.all_went_on.set()

    def end(self):
        """Kills whatever is left, by its own id, and says what it was."""
        # mpirun ends without waiting for those that it has just killed; they take a moment to disappear.
        patience = time.monotonic() + 2
        while ((left := [pid for pid in self.pids.values() if is_running(pid)])
               and time.monotonic() < patience):
            time.sleep(0.01)
        if self.process.poll() is None:
            left.append(self.process.pid)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return left


WORDS = {"away": "has not come"}
PROOF = {"away": "its process is alive", "frozen": " for 4 s; "}


def check_gloo(job, status, how, victim):
    for rank in range(RANKS):
        lines = re.findall(rf"^process_worker: rank {rank}: .*$", job.text, re.M)
        if rank == victim and how == "away":
            continue  # it finds its connections closed when it comes back, or is ended by the launcher
        if rank == victim:
            if lines:
                fail(f"the victim spoke: {lines}", job.text)
        elif len(lines) != 1:
            fail(f"rank {rank} printed {len(lines)} lines about its end instead of one", job.text)
        elif (f"rank {rank}: rank {victim} {WORDS.get(how, 'is gone or silent')}" not in lines[0]
              or ", step " not in lines[0]):
            fail(f"rank {rank} does not name rank {victim}", job.text)
    if PROOF.get(how, "") not in job.text:
        fail(f"nobody says: {PROOF[how]}", job.text)
    killed = 128 + signal.SIGKILL
    # A victim that waits is killed here, perhaps before the survivors have ended.
    expected = (killed,) if how == "kill" else (1, killed)
    if status not in expected:
        fail(f"the launcher's status is {status}, expected {' or '.join(map(str, expected))}", job.text)
    known = r"rank \d ready|rank \d went on|process_worker: |thinwire launch: rank \d .*killed by signal 9|$"
    for line in job.text.splitlines():
        if not re.match(known, line):
            fail(f"an unexpected line: {line}", job.text)


def check_mpi(job, status, how, victim):
    if status == 0:
        fail("mpirun's status is 0", job.text)
    if how == "stop" and f": rank {victim} is gone or silent" not in job.text:
        fail(f"nobody names rank {victim}", job.text)


def goes_on(job, how, victim):
    """Ends the fault and the job; all ranks must have gone on between."""
    seconds, end = ENDS_AFTER[how]
    time.sleep(seconds)
    if job.process.poll() is not None:
        fail("the job did not wait", job.text)
    os.kill(job.pids[victim], end)
    if not job.all_went_on.wait(HANG):
        fail(f"only ranks {sorted(job.went_on)} went on", job.text)
    os.kill(job.process.pid, signal.SIGTERM)
    job.process.wait(HANG)
    job.reader.join(5)
    if "process_worker: " in job.text:
        fail("a rank failed", job.text)
    print(f"all went on:\n{job.text}")


def main():
    engine, starter, worker, mode, how, victim = sys.argv[1:]
    victim = int(victim)
    if engine == "gloo":
        starter = os.path.abspath(starter)
    preload = os.environ.get("THINWIRE_TEST_PRELOAD")  # into the ranks: see slow_sockets.cc
    slowed = ["env", f"LD_PRELOAD={preload}"] if preload else []
    ranks = [*slowed, os.path.abspath(worker), engine, mode, *(str(seconds) for seconds in LIMITS[how])]
    if engine == "gloo":
        command = [starter, "launch", "-n", str(RANKS), "--", *ranks]
    else:
        command = [*starter.split(), "-n", str(RANKS), *ranks]
    # A crash would leave a core file in the folder, where it is seen.
    resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
    with tempfile.TemporaryDirectory() as folder:
        job = Job(command, folder)
        try:
            if not job.ready.wait(HANG):
                fail("the ranks did not start", job.text)
            time.sleep(0.3)  # so that they are in the middle of their steps
            start = time.monotonic()
            os.kill(job.pids[victim], SIGNALS[how])
            if how in ENDS_AFTER:
                goes_on(job, how, victim)
                return
            if how == "away" and job.others_ended.wait(HANG):
                os.kill(job.pids[victim], signal.SIGKILL)  # the launcher would wait for it
            try:
                status = job.process.wait(HANG)
            except subprocess.TimeoutExpired:
                fail(f"still running {HANG} s after the fault", job.text)
            seconds = time.monotonic() - start
            job.reader.join(5)
        finally:
            left = job.end()
        if left:
            fail(f"processes {left} were left running", job.text)
        if "terminate called" in job.text or "core dumped" in job.text or "Aborted" in job.text:
            fail("a rank crashed", job.text)
        cores = [name for name in os.listdir(folder) if name.startswith("core")]
        if cores:
            fail(f"core dumps: {cores}", job.text)
    (check_gloo if engine == "gloo" else check_mpi)(job, status, how, victim)
    print(f"all ended {seconds:.1f} s after the fault:\n{job.text}")


if __name__ == "__main__":
    main()
