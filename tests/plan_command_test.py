"""`thinwire plan` as scripts see it: plan_command_test.py PATH_TO_THINWIRE"""
import json
import os
import subprocess
import sys
import tempfile

THINWIRE = sys.argv[1]
KEYS = """spec workers elements buckets bits_per_second latency_seconds wire_bytes_formula frame_header_bytes
    messages host_bytes_sent rounds seconds_codec seconds_sockets seconds_step seconds_doubt seconds_compute
    seconds_exposed exposed_codec exposed_wire exposed_wait simulated_seconds seconds_step_at chosen
    reason""".split()
FREE = ("--codec", "off")


def run(*arguments, status=0):
    done = subprocess.run([THINWIRE, "plan", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == status, (f"{arguments}: exit status {done.returncode}\n"
                                       f"{done.stdout}{done.stderr}")
    return done


def rows(*arguments):
    return json.loads(run(*arguments, "--json", "-").stdout)


def the_formula_of_dense():
    """2 (W-1)/W * 4 bytes for each element at 1 Gbit/s, and 2 (W-1) latencies. Nothing is computed beside."""
    for workers in (2, 4, 16, 128):
        dense = rows("--buckets", "1024000", "--workers", str(workers), "--link", "1Gbit:50us", *FREE)[0]
        bytes_sent = 2 * (workers - 1) / workers * 4 * 1024000
        # Ranks compare what they exchange before.
        hops = sum(1 for power in range(8) if 8**power < workers)
        expected = bytes_sent * 8e-9 + (2 * (workers - 1) + hops) * 50e-6
        assert dense["wire_bytes_formula"] == bytes_sent, dense
        assert abs(dense["seconds_step"] / expected - 1) < 1e-3, (dense, expected)


def one_command_for_many_workers():
    arguments = ("--workers", "16,128,1024", "--elements", "1000000", "--model-step", "0.01", "--link",
                 "25Gbit:20us", *FREE)
    plans = rows(*arguments)
    assert plans == rows(*arguments), "without measuring, a plan repeats"
    assert [row["workers"] for row in plans] == [w for w in (16, 128, 1024) for _ in range(3)]
    for row in plans:
        assert list(row) == KEYS, list(row)
        parts = row["seconds_compute"] + row["exposed_codec"] + row["exposed_wire"] + row["exposed_wait"]
        assert abs(parts - row["seconds_step"]) < 1e-6 and row["seconds_compute"] == 0.01, row
    for workers in (16, 128, 1024):
        here = [row for row in plans if row["workers"] == workers]
        (chosen,) = [row for row in here if row["chosen"]]
        fastest = min(row["seconds_step"] for row in here)
        assert chosen["seconds_step"] <= 1.02 * fastest and chosen["reason"], here
        milder = here[: here.index(chosen)]
        assert all(row["seconds_step"] > 1.02 * fastest for row in milder), here


def what_backward_covers_costs_nothing():
    """All buckets but the last one can be on their way beside backward."""
    exposed = [rows("--elements", "20000000", "--workers", "4", "--link", "1Gbit:50us", "--model-step", step,
                    *FREE)[0]["seconds_exposed"]
               for step in ("0", "0.3", "3")]
    assert exposed[0] > exposed[1] > exposed[2], exposed


def a_codec_that_costs_more_than_it_saves_is_not_chosen():
    arguments = ("--elements", "1000000", "--workers", "4", "--link", "1Gbit:50us", "--model-step", "0.01",
                 "--sync", "dense,half")
    text = run(*arguments, "--codec", "off:10M").stdout
    assert ("choice (*): dense: compression cannot help you here: " in text
            and "every other candidate costs more" in text), text
    assert "choice (*): half: a step takes " in run(*arguments, "--codec", "off:10G").stdout


def shapes_matter():
    """PowerSGD sends vectors as they are."""
    common = ("--workers", "4", "--link", "1Gbit:50us", "--sync", "dense,power_sgd:rank=4", *FREE)
    vectors, matrices = (rows("--shapes", shapes, *common) for shapes in ("65536*4", "256x256*4"))
    assert (vectors[0]["wire_bytes_formula"] == matrices[0]["wire_bytes_formula"]
            == vectors[1]["wire_bytes_formula"])
    assert matrices[1]["wire_bytes_formula"] * 30 < vectors[1]["wire_bytes_formula"]
    told = run("--elements", "262144", *common).stdout
    assert ("assumed: parameters are matrices of 512 x 512" in told
            and "assumed: nothing is computed beside" in told), told
    assert "assumed: parameters" not in run("--shapes", "256x256*4", *common).stdout


def simulated_is_predicted():
    plans = rows("--buckets", "10000,22500", "--workers", "16", "--link", "1Gbit:50us", "--model-step",
                 "0.001", "--codec", "off:500M:500M",
                 "--simulate")
    for row in plans:
        assert abs(row["simulated_seconds"] / row["seconds_step"] - 1) < 0.02, row


def tiny_models_stay_dense():
    """Their candidates differ by a few latencies and what timing cannot tell."""
    for elements in ("1", "100", "1000"):
        dense = rows("--elements", elements, "--link", "1Gbit:50us")[0]
        assert dense["chosen"] and dense["seconds_doubt"] > 0, dense


def hosts_that_add_up_first_send_as_one_rank():
    """Of two hosts of four ranks each sends what two ranks alone would."""
    common = ("--shapes", "1000x1000", "--link", "1Gbit:50us", "--sync", "dense,half", *FREE)
    apart = rows(*common, "--workers", "8", "--ranks-per-host", "4")
    two = rows(*common, "--workers", "2")
    hosts = rows(*common, "--workers", "8", "--ranks-per-host", "4", "--reduce-in-host")
    for one, other, host in zip(apart, two, hosts):
        assert abs(host["exposed_wire"] / other["exposed_wire"] - 1) < 0.01, (host, other)
        assert host["exposed_wire"] < one["exposed_wire"] and host["rounds"] == other["rounds"], (host, one)
        assert host["host_bytes_sent"] == 2 * 4 * 1000 * 1000 * 3 / 4 and one["host_bytes_sent"] == 0, host
    text = run(*common, "--workers", "8", "--ranks-per-host", "4", "--reduce-in-host").stdout
    assert "hosts of 4 ranks, which add up first and act as one worker" in text, text


def bad_usage():
    good = ("--link", "1Gbit:50us", *FREE)
    for arguments, word in [
        ((*good,), "how large is the model?"),
        (("--elements", "1000", *FREE), "--link"),
        (("--elements", "1000", "--link", "fast", *FREE), "'fast' is not RATE:LATENCY"),
        ((*good, "--elements", "-5"), "--elements -5: 1 to "),
        ((*good, "--elements", "0"), "--elements 0: 1 to "),
        ((*good, "--elements", "1000", "--shapes", "10x100"), "leave out"),
        ((*good, "--shapes", "10y100"), "10y100"),
        ((*good, "--elements", "1000", "--buckets", "10,20"), "30 elements together"),
        ((*good, "--elements", "1000", "--workers", "0"), "--workers"),
        ((*good, "--elements", "1000", "--workers", "6", "--ranks-per-host", "4"),
         "6 workers do not fill hosts of 4"),
        ((*good, "--elements", "1000", "--reduce-in-host"), "--ranks-per-host"),
        ((*good, "--elements", "1000", "--workers", "4", "--ranks-per-host", "4", "--reduce-in-host"),
         "4 workers are one host of 4"),
        ((*good, "--elements", "1000", "--ranks-per-host", "2", "--reduce-in-host",
          "--sync", "clip+dense"), "clip"),
        ((*good, "--elements", "1000", "--ranks-per-host", "2", "--reduce-in-host", "--simulate"),
         "--simulate knows no hosts"),
        ((*good, "--elements", "1000", "--sync", "nonsense"), "nonsense"),
        ((*good, "--elements", "1000", "--sync", "dense,auto"), "it is what chooses"),
        ((*good, "--elements", "1000", "--model-step", "-1"), "a step of -1"),
        ((*good, "--elements", "1e6"), "--elements=1e6: a whole number without point or exponent is needed, "
                                       "such as 1000000; see thinwire plan --help"),
        ((*good, "--elements", "1000", "--model-step=250ms"),
         "--model-step=250ms: a number is needed, such as 0.25; see"),
        ((*good, "--elements", "1000", "--density", "0"), "--density: 0 must be above 0 and at most 1"),
        ((*good, "--elements", "1000", "--cores", "0"), "cores"),
        ((*good, "--elements", "1000", "--within", "-1"), "within"),
        ((*good, "--elements", "1000", "--training-threads", "nan"), "threads"),
        ((*good, "--elements", "1000", "--json", os.path.dirname(THINWIRE)), "is a folder: name a file"),
    ]:
        done = run(*arguments, status=2)
        assert word in done.stderr and done.stderr.count("\n") == 1, f"{arguments}: {done.stderr}"


def results_go_to_a_file():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.json")
        text = run("--elements", "5000", "--link", "1Gbit:50us", *FREE, "--json", path).stdout
        with open(path, encoding="utf-8") as file:
            assert len(json.load(file)) == text.count("at 1 Gbit") * 3 == 3


for test in (the_formula_of_dense, one_command_for_many_workers, what_backward_covers_costs_nothing,
             a_codec_that_costs_more_than_it_saves_is_not_chosen, shapes_matter, simulated_is_predicted,
             tiny_models_stay_dense, hosts_that_add_up_first_send_as_one_rank, bad_usage,
             results_go_to_a_file):
    test()
    print(test.__name__, "ok", flush=True)
