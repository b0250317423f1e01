"""bench/plan without a network: what it reads and prints."""
import importlib.machinery
import importlib.util
import os
import sys

sys.dont_write_bytecode = True
PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench", "plan")
loader = importlib.machinery.SourceFileLoader("bench_plan", PATH)
bench_plan = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_plan", loader))
loader.exec_module(bench_plan)


def the_doctors_latency_is_found():
    assert bench_plan.latency_of("python 3\nlink        4 ranks, each to the next one, the slowest: 213 us, "
                                 "0.10 Gbit/s\n") == "213us"
    try:
        bench_plan.latency_of("link        not measured")
    except SystemExit as end:
        assert "measured no link" in str(end)
    else:
        raise AssertionError("a link was found where none was measured")


def predictions_stand_beside_measurements():
    row = {"spec": "half", "seconds_step": 0.5, "seconds_compute": 0.1, "exposed_codec": 0.05,
           "exposed_wire": 0.3, "exposed_wait": 0.05}
    lines = bench_plan.table([row], {"half": 0.4, "plain": 1.0}).splitlines()
    assert lines[2] == "| `half` | 500 | 400 | 1.25 | 100 | 50 | 300 | 50 |", lines
    assert all(line.count("|") == lines[0].count("|") for line in lines)


def predictions_of_hosts_are_averaged():
    one = {"spec": "half", "workers": 2, "seconds_step": 0.5, "exposed_codec": 0.25, "chosen": True}
    other = {"spec": "half", "workers": 2, "seconds_step": 0.7, "exposed_codec": 0.75, "chosen": False}
    (mean,) = bench_plan.mean_rows([[one], [other]])
    assert abs(mean["seconds_step"] - 0.6) < 1e-12 and mean["exposed_codec"] == 0.5, mean
    assert mean["spec"] == "half" and mean["workers"] == 2 and mean["chosen"] is True, mean


for test in (the_doctors_latency_is_found, predictions_stand_beside_measurements,
             predictions_of_hosts_are_averaged):
    test()
    print(test.__name__, "ok", flush=True)
