"""`thinwire simulate` and `thinwire systems` as scripts see them: simulate_test.py PATH_TO_THINWIRE"""
import json
import os
import subprocess
import sys
import tempfile

THINWIRE = sys.argv[1]
KEYS = """system spec engine workers elements row_width density_in density_out steps wire_bytes_sent_max
    wire_bytes_sent_mean wire_bytes_formula modelled_seconds formula_seconds time_vs_dense gamma
    relative_error ranks_agree imbalance_push imbalance_pull seed link scale codec""".split()
# What a run measures of this machine's CPU; all else repeats.
MEASURED = ("seconds_compress", "seconds_decompress")


def run(*arguments, status=0):
    done = subprocess.run([THINWIRE, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == status, (f"{arguments}: exit status {done.returncode}\n"
                                       f"{done.stdout}{done.stderr}")
    return done


def simulate(*arguments):
    return json.loads(run("simulate", *arguments, "--json", "-").stdout)


def repeats():
    arguments = ("--sync", "half,signsgd", "--workers", "2,5", "--elements", "3000", "--density", "0.1",
                 "--zipf", "1")
    runs = [simulate(*arguments) for _ in range(2)]
    for results in runs:
        assert [(r["workers"], r["spec"]) for r in results] == [
            (w, s) for w in (2, 5) for s in ("dense", "half", "signsgd")]
        for result in results:
            assert not [key for key in KEYS if key not in result], result.keys()
            assert result["ranks_agree"] and result["engine"] == "virtual"
            assert abs(result["modelled_seconds"] / result["formula_seconds"] - 1) < 0.02
            for key in MEASURED:
                del result[key]
    assert runs[0] == runs[1]


def bench_agrees():
    common = ("--elements", "8000", "--link", "1Gbit:50us", "--steps", "2", "--json", "-",
              "--sync", "dense,half")
    bench = json.loads(run("bench", "--engine", "virtual", "--workers", "4", *common).stdout)
    for one, other in zip(bench, simulate("--workers", "4", *common[:-4], *common[-2:])):
        assert one["modelled_seconds"] == other["modelled_seconds"] == one["seconds_median"]


def bad_usage():
    for arguments, word in [
        (("--sync", "nonsense"), "nonsense"),
        (("--sync", "dense,auto"), "auto chooses in tens of steps"),
        (("--sync", "rows=auto,dense=half"), "auto chooses in tens of steps"),
        (("--gamma", "40", "--density", "0.01", "--workers", "16"), "gamma 40"),
        (("--gamma", "2", "--zipf", "1"), "excludes"),
        (("--gradients", "a", "b", "--density", "0.1"), "excludes"),
        (("--elements", "10", "--row-width", "3"), "row width 3"),
        (("--link", "slow"), "slow"),
        (("--codec", "slow"), "slow"),
        (("--workers", "0"), "--workers"),
        (("--plot", os.path.dirname(THINWIRE)), "folder"),
        (("--json", os.path.dirname(THINWIRE)), "is a folder: name a file"),
        (("--bogus", "3"), "not expected: --bogus 3; see"),
        (("--worker", "3"), "not expected: --worker 3 (did you mean --workers?); see"),
        (("--elemnets=3",), "not expected: --elemnets=3 (did you mean --elements?)"),
        (("--ssed", "3", "--ploot", "x"), "(did you mean --seed?) (did you mean --plot?)"),
        (("--density", "0.1,2.0"), "--density: 2.0 must be above 0 and at most 1; see"),
        (("--zipf", "steep"), "--zipf=steep: a number is needed, such as 0.25; see"),
        (("--workers", "4,many"), "--workers=many: a whole number is needed, such as 3; see"),
        (("--elements", "1e6"), "--elements=1e6: a whole number without point or exponent is needed, "
                                "such as 1000000; see thinwire simulate --help"),
        (("--errors=maybe",), "--errors=maybe: it takes no value"),
    ]:
        done = run("simulate", *arguments, status=2)
        assert word in done.stderr and done.stderr.count("\n") == 1 and not done.stdout, done
    assert "missing" in run("simulate", "--gradients", "missing", status=1).stderr
    for arguments, words in [
        (("nosuch",), ("no such command: nosuch;", "simulate")),
        (("bnech",), ("no such command: bnech (did you mean 'bench'?)",)),
        (("bench", "--stpes", "5"), ("--stpes 5 (did you mean --steps?)",)),
        ((), ("no command", "simulate")),
        (("--bogus", "3"), ("--bogus", "simulate")),
        (("bench", "--workers", "0"), ("--workers", "range", "1")),
        (("bench", "--workers", "2.0"), ("--workers=2.0", "without point or exponent", "such as 2;")),
        (("bench", "--elements", "5e9"), ("--elements=5e9", "such as 5000000000;")),
        (("bench", "--elements", "1.5"), ("--elements=1.5: a whole number is needed, such as 3;",)),
        (("bench", "--density", "2.0"), ("--density: 2.0 must be above 0 and at most 1;",)),
        (("bench", "--tails", "9"), ("--tails 9 must be from 0 to 5",)),
        (("launch", "-n", "two", "--", "true"), ("--processes=two: a whole number is needed, such as 3;",)),
        (("launch", "-n", "1", "--grace", "-1", "--", "true"), ("--grace: -1 must not be negative;",)),
        (("bench", "--json", os.path.dirname(THINWIRE)), ("is a folder: name a file",)),
        *([(("train", "--epochs", "one"), ("--epochs=one: a whole number is needed, such as 3; see",)),
           (("train", "--epochs", "99999999999"), ("--epochs=99999999999: a smaller whole number",)),
           (("train", "--lr", "0,5"), ("--lr=0,5: a number is needed, such as 0.25; see thinwire train",)),
           ] if os.path.exists(THINWIRE + "-torch") else []),
    ]:
        done = run(*arguments, status=2)
        assert (all(word in done.stderr for word in words) and done.stderr.count("\n") == 1
                and not done.stdout), done


def gradient_files_are_separated_by_commas_or_spaces():
    # Neither is there: the first of them is missed, not a file with a comma in its name.
    for arguments in (("first,second",), ("first", "second")):
        message = run("simulate", "--gradients", *arguments, status=1).stderr
        assert "first" in message and "first,second" not in message, message


def failing_runs_leave_no_file():
    with tempfile.TemporaryDirectory() as folder:
        run("simulate", "--gamma", "40", "--density", "0.01", "--json",
            os.path.join(folder, "results.json"), status=2)
        assert not os.listdir(folder)


def plots():
    with tempfile.TemporaryDirectory() as folder:
        picture = os.path.join(folder, "curve.png")
        arguments = ("simulate", "--sync", "half", "--workers", "2,4", "--elements", "1000",
                     "--plot", picture)
        done = subprocess.run([THINWIRE, *arguments], capture_output=True, text=True, check=False)
        if "matplotlib is missing" in done.stderr:
            assert not os.listdir(folder)
            return
        assert done.returncode == 0, done.stderr
        assert os.listdir(folder) == ["curve.png"]
        with open(picture, "rb") as file:
            assert file.read(8) == b"\x89PNG\r\n\x1a\n"


def impossible_plots_are_refused_before_the_run():
    with tempfile.TemporaryDirectory() as folder:
        picture = os.path.join(folder, "no", "curve.png")
        done = subprocess.run([THINWIRE, "simulate", "--workers", "2", "--elements", "100", "--plot",
                               picture], capture_output=True,
                              text=True, check=False, env={**os.environ, "TMPDIR": folder})
        assert (done.returncode == 1 and not done.stdout and picture in done.stderr
                and "no folder" in done.stderr), done
        assert not os.listdir(folder)


def a_failing_plot_leaves_no_temporary():
    with tempfile.TemporaryDirectory() as folder:
        # The picture's place is taken while it is drawn.
        picture = os.path.join(folder, "curve.png")
        os.mkdir(picture + ".partial")
        done = subprocess.run([THINWIRE, "simulate", "--workers", "2", "--elements", "100", "--plot",
                               picture], capture_output=True,
                              text=True, check=False, env={**os.environ, "TMPDIR": folder})
        assert done.returncode == 1 and "thinwire-simulation" not in done.stderr, done
        assert os.listdir(folder) == ["curve.png.partial"]


def systems_by_name():
    everything = json.loads(run("systems", "--json").stdout)
    named = json.loads(run("systems", "casq", "auto", "--json").stdout)
    assert [one["system"] for one in named] == ["auto", "casq"] and len(everything) > 20, named
    assert all(one in everything for one in named)
    text = run("systems", "casq").stdout
    assert "\ncasq\n" in text and "\nauto\n" not in text and "clusters=" in text, text
    assert "no system is called 'nope'; known: auto" in run("systems", "casq", "nope", status=2).stderr


systems_by_name()
repeats()
bench_agrees()
bad_usage()
gradient_files_are_separated_by_commas_or_spaces()
failing_runs_leave_no_file()
impossible_plots_are_refused_before_the_run()
a_failing_plot_leaves_no_temporary()
plots()
