"""torch's own tests of DistributedDataParallel: each plain,
and again with ``dense`` registered on every model that it wraps.

    torch_tests.py [PATTERN]       those whose names the regular expression fits; all of them unless given

They are those of torch.testing._internal.distributed.distributed_test that wrap a model, on 2 ranks over
Gloo. The module comes with torch from PyPI, and needs the package expecttest. Most of these tests ask for
CUDA devices: on_cpu.py gives them the CPU. What nevertheless does not pass without Thinwire is left out.

Fails where a test passes plain and not with Thinwire, unless torch_tests_that_differ.py has it with the words
of its error, and where a test that stands there passes. Some tests pass before any gradient is synchronized:
these are counted apart, since they show little of Thinwire.
"""
import collections
import contextlib
import inspect
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback

RANKS = 2
os.environ.update(BACKEND="gloo", WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", OMP_NUM_THREADS="1")

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal import common_distributed

# The tests take these when they are imported.
common_distributed.skip_if_lt_x_gpu = lambda count, **_: lambda test: test
common_distributed.skip_if_no_gpu = lambda test: test
common_distributed.init_multigpu_helper = (
    lambda world_size, backend: {rank: [rank] for rank in range(world_size)})

from torch.testing._internal.distributed import distributed_test

import on_cpu
import thinwire
from torch_tests_that_differ import DIFFER

LIMIT_SECONDS = 300  # of a test
FEWEST = 60  # that must pass plain, or nothing is shown
FEWEST_STEPPED = 40  # of them, with Thinwire and a step
FAILED = common_distributed.MultiProcessTestCase.TEST_ERROR_EXIT_CODE
SKIPPED = {skip.exit_code for skip in common_distributed.TEST_SKIPS.values()}
BASE = distributed_test.DistributedTest._DistTestBase
# 10 s are short on a busy machine.
distributed_test.Barrier.sync.__func__.__defaults__ = (None, LIMIT_SECONDS)

Outcome = collections.namedtuple("Outcome", "verdict output models steps")


class Tests(distributed_test.TestDistBackend, BASE):
    pass


def wraps_a_model(name, seen=()):
    """Whether the method of that name does, or one that it calls."""
    source = inspect.getsource(getattr(BASE, name))
    if "DistributedDataParallel(" in source:
        return True
    called = set(re.findall(r"self\.(\w+)", source)) - {name, *seen}
    return any(wraps_a_model(one, (*seen, name))
               for one in called if inspect.isfunction(getattr(BASE, one, None)))


def register_every_model(handles):
    wrap = DistributedDataParallel.__init__

    def wrap_and_register(model, *arguments, **options):
        wrap(model, *arguments, **options)
        if any(parameter.requires_grad for parameter in model.parameters()):
            handles.append(thinwire.register(model, "dense"))

    DistributedDataParallel.__init__ = wrap_and_register


def be_rank(rank, name, folder, with_thinwire):
    """Ends the process with the status that torch's own runner looks for."""
    for stream in (1, 2):
        os.dup2(os.open(os.path.join(folder, f"output.{rank}"), os.O_CREAT | os.O_WRONLY | os.O_APPEND,
                        0o600), stream)
    os.environ["TEMP_DIR"] = folder
    torch.set_num_threads(1)
    on_cpu.emulate()
    handles = []
    if with_thinwire:
        register_every_model(handles)
    runners, own = torch.multiprocessing.Pipe()  # by which a rank tells torch's own runner its error
    status = FAILED
    try:
        Tests._run(rank, name, os.path.join(folder, "store"), own)
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(EOFError):
        while runners.poll():
            print(runners.recv())
    with open(os.path.join(folder, f"counts.{rank}"), "w") as counts:
        counts.write(f"{len(handles)} {sum(handle.step for handle in handles)}")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def wait_for(ranks):
    """The status of each rank that ended by itself. Others are killed when one has failed,
    and at the limit."""
    statuses = {}
    end = time.monotonic() + LIMIT_SECONDS
    while len(statuses) < len(ranks) and time.monotonic() < end and set(statuses.values()) <= {0, *SKIPPED}:
        time.sleep(0.02)
        for rank, process in enumerate(ranks):
            if rank not in statuses:
                ended, status = os.waitpid(process, os.WNOHANG)
                if ended:
                    statuses[rank] = os.waitstatus_to_exitcode(status)
    for rank, process in enumerate(ranks):
        if rank not in statuses:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    return statuses


def reason(output):
    """The last error in it."""
    errors = re.findall(r"^(?:\w+\.)*\w+(?:Error|Exception): .+$", output, re.MULTILINE)
    return errors[-1][:160] if errors else "which says no error"


def run(name, with_thinwire):
    """On processes of its own, which are copies of this one: so torch is loaded once."""
    folder = tempfile.mkdtemp()
    for needed in ("barrier", "test_dir", "init_dir"):
        os.mkdir(os.path.join(folder, needed))
    ranks = []
    for rank in range(RANKS):
        process = os.fork()
        if process == 0:
            be_rank(rank, name, folder, with_thinwire)
        ranks.append(process)
    statuses = wait_for(ranks)
    output, models, steps = "", 0, 0
    for rank in range(RANKS):
        output += f"--- rank {rank}: " + (f"exit status {statuses[rank]}" if rank in statuses
                                          else "was ended") + "\n"
        with open(os.path.join(folder, f"output.{rank}")) as file:
            output += file.read()
        if rank == 0 and 0 in statuses and statuses[0] >= 0:
            with open(os.path.join(folder, f"counts.{rank}")) as file:
                models, steps = map(int, file.read().split())
    shutil.rmtree(folder)
    ended = set(statuses.values()) if len(statuses) == RANKS else {FAILED}
    verdict = "passed" if ended == {0} else "skipped" if len(ended) == 1 and ended <= SKIPPED else "failed"
    return Outcome(verdict, output, models, steps)


def what_is_wrong(name, ours):
    """With a test's run with Thinwire; None where nothing is."""
    passes = ours.verdict == "passed"
    if name not in DIFFER:
        return None if passes else f"{name} passes plain and not with Thinwire:\n{ours.output}"
    _, words = DIFFER[name]
    if passes:
        return f"{name} passes with Thinwire: take it from the list"
    return None if words in ours.output else (f"{name} is listed with {words!r}, "
                                              f"and fails otherwise:\n{ours.output}")


def summary(names, plain, ours, listed):
    good = [one for one in ours.values() if one.verdict == "passed"]
    stepped = [one for one in good if one.steps]
    wrapped = sum(1 for one in good if one.models and not one.steps)
    counts = collections.Counter(one.verdict for one in plain.values())
    print(f"torch {torch.__version__}: of {len(names)} tests that wrap a model {counts['passed']} pass "
          f"plain, {counts['failed']} do not on a CPU, {counts['skipped']} torch skips")
    print(f"of the {len(ours)} that pass plain {len(good)} pass with Thinwire: "
          f"{len(stepped)} with {sum(one.steps for one in stepped)} steps of "
          f"{sum(one.models for one in stepped)} models, {wrapped} register models and take no step, "
          f"{len(good) - len(stepped) - wrapped} have no model that is registered; {len(listed)} are listed")
    return len(stepped)


def main():
    pattern = sys.argv[1] if len(sys.argv) > 1 else ""
    names = [name for name in dir(BASE) if name.startswith("test_") and re.search(pattern, name)
             and wraps_a_model(name)]
    listed = {name for name in DIFFER if re.search(pattern, name)}
    plain, ours, wrong = {}, {}, [f"{name} is listed, and torch {torch.__version__} has no such test"
                                  for name in listed - set(names)]
    for name in names:
        plain[name] = run(name, False)
        if plain[name].verdict != "passed":
            why = f", {reason(plain[name].output)}" if plain[name].verdict == "failed" else ""
            print(f"{name}: {plain[name].verdict} plain{why}", flush=True)
            if name in listed:
                wrong.append(f"{name} is listed, and does not pass plain")
            continue
        ours[name] = run(name, True)
        why = "" if ours[name].verdict == "passed" else f", {reason(ours[name].output)}"
        print(f"{name}: {ours[name].verdict}, {ours[name].models} models, {ours[name].steps} steps{why}",
              flush=True)
        problem = what_is_wrong(name, ours[name])
        wrong += [problem] if problem else []
    stepped = summary(names, plain, ours, listed)
    for what, found, fewest in (("pass plain", len(ours), FEWEST),
                                ("pass with Thinwire and a step", stepped, FEWEST_STEPPED)):
        if not pattern and found < fewest:
            wrong.append(f"only {found} tests {what}, {fewest} are needed: "
                         f"does on_cpu.py fit torch {torch.__version__}?")
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
