"""python3 -m thinwire.plan on scripts as people write them."""
import json
import os
import shutil
import tempfile
import time

from forked import Rank

SCRIPT = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import thinwire

dist.init_process_group("gloo")
assert dist.get_world_size() == 1
torch.manual_seed(1)
layers = [nn.Linear(64, 600), nn.ReLU(), nn.Linear(600, 600), nn.ReLU(), nn.Linear(600, 10)]
model = DistributedDataParallel(nn.Sequential(*layers))
handle = thinwire.register(model, "casq")
report = thinwire.HtmlReport(handle, sys.argv[2] + ".html")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(int(sys.argv[1])):
    with model.no_sync():  # accumulation
        model(torch.randn(8, 64)).square().mean().backward()
    model(torch.randn(8, 64)).square().mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    report.step(loss=1.0)
    report.write()  # nothing, as nothing is trained
    optimizer.zero_grad()
    try:
        print("step", step, handle.report()["total"]["wire_bytes_sent"])
    except Exception:
        pass
open(sys.argv[2], "w").close()
"""
WRAPPED = "model = DistributedDataParallel(nn.Sequential(*layers))"
PARAMETERS = 64 * 600 + 600 + 600 * 600 + 600 + 600 * 10 + 10

ROWS = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(100, 8, sparse=True)
        self.scale = nn.Parameter(torch.ones(9, 8, dtype=torch.float16))
    def forward(self, words):
        return self.words(words) * self.scale.float().sum(0)
model = DDP(Model())
model.register_comm_hook(None, lambda state, bucket: 1 / 0)
while True:
    model(torch.randint(100, (4,))).sum().backward()
    model.zero_grad()
"""

SEVERAL = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
layers = [torch.nn.Linear(512, 512) for _ in range(12)]
model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=2)
try:
    while True:
        model(torch.randn(4, 512)).sum().backward()
except Exception:
    raise SystemExit("the end of the dry run was taken for an error")
"""


class Bench:
    def __init__(self, folder):
        self.folder = folder
        self.marker = os.path.join(folder, "ended")
        self.json = os.path.join(folder, "plan.json")

    def run(self, script, *arguments, options=(), status=0, raises=False):
        path = os.path.join(self.folder, "script.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(script)
        process = Rank("thinwire.plan", ["--json", self.json, *options, path, *arguments], {})
        ended = process.wait(time.monotonic() + 150)
        output = process.output()
        assert ended == status, f"{options}: exit status {ended}\n{output}"
        assert output.count("Traceback") == raises, output
        return output

    def rows(self):
        with open(self.json, encoding="utf-8") as file:
            return json.load(file)


def a_training_is_ended_and_planned(bench):
    text = bench.run(SCRIPT, "1000", bench.marker,
                     options=("--workers", "2,64", "--link", "1Mbit:1ms", "--steps", "4"))
    assert not os.path.exists(bench.marker), "the script went on"
    assert not os.path.exists(bench.marker + ".html"), "a page of a training that was none"
    assert "step 6 0" in text and "step 7" not in text, text  # the eighth step's forward ends it
    assert ("seen in 4 steps on this machine" in text
            and "choice (*): power_sgd:rank=32:bits=8: a step takes" in text), text
    rows = bench.rows()
    assert [(row["workers"], row["spec"].split(":")[0])
            for row in rows] == [(w, s) for w in (2, 64) for s in ("dense", "half", "power_sgd")]
    for row in rows:
        assert row["elements"] == PARAMETERS and row["seconds_compute"] > 0, row
        parts = row["seconds_compute"] + row["exposed_codec"] + row["exposed_wire"] + row["exposed_wait"]
        assert abs(parts / row["seconds_step"] - 1) < 1e-6, row
        assert list(row["seconds_step_at"]) == ["1 Gbit", "10 Gbit", "25 Gbit"], row
    # 2 (W-1)/W * 4 bytes, at 1 Mbit/s.
    assert (rows[0]["wire_bytes_formula"] == 4 * PARAMETERS
            and rows[0]["seconds_step"] > 4 * PARAMETERS * 8 / 1e6), rows[0]
    assert [row["chosen"] for row in rows] == [False, False, True] * 2, rows


def where_a_step_computes_for_long_compression_cannot_help(bench):
    """A small model, and half a second of other work in every step."""
    script = SCRIPT.replace("    optimizer.step()", "    __import__('time').sleep(0.5)\n    optimizer.step()")
    assert script != SCRIPT
    text = bench.run(script, "1000", bench.marker, options=("--workers", "4", "--link", "100Gbit:1us",
                                                            "--steps", "3", "--sync", "dense,casq"))
    assert "choice (*): dense: compression cannot help you here" in text, text


def steps_that_take_different_times_are_told(bench):
    script = SCRIPT.replace("    optimizer.step()",
                            "    __import__('time').sleep(step % 2); optimizer.step()")
    assert script != SCRIPT
    text = bench.run(script, "1000", bench.marker, options=("--workers", "4", "--link", "1Gbit:50us",
                                                            "--steps", "4"))
    assert "noisy: half of these steps took from" in text, text


def buckets_are_those_of_ddp(bench):
    bench.run(SEVERAL, options=("--workers", "4", "--link", "1Gbit:50us"))
    row = bench.rows()[0]
    assert row["elements"] == 12 * (512 * 512 + 512), row
    assert row["buckets"] >= 5, row  # one of 1 MB, then 2 MB each


def rows_are_left_out_and_types_told(bench):
    text = bench.run(ROWS, options=("--workers", "4", "--link", "1Gbit:50us"))
    assert "left out: rows of sparse embeddings" in text and "gradients are float16" in text, text
    assert bench.rows()[0]["elements"] == 9 * 8


def ranks_of_a_host_are_planned(bench):
    text = bench.run(SCRIPT, "1000", bench.marker,
                     options=("--workers", "4", "--link", "1Gbit:50us", "--steps", "3",
                              "--sync", "dense,half", "--ranks-per-host", "2", "--reduce-in-host"))
    assert "not known: how much longer a step computes" in text, text
    assert "hosts of 2 ranks, which add up first and act as one worker" in text, text
    for row in bench.rows():
        assert row["host_bytes_sent"] == 4 * PARAMETERS, row  # half of the bytes, there and back


def workers_and_link_that_are_not_given_are_assumed(bench):
    text = bench.run(SCRIPT, "1000", bench.marker, options=("--steps", "3"))
    assert "assumed: 4 workers (--workers) and links of 10Gbit:50us (--link)" in text, text
    assert "4 workers, 10 Gbit/s and 50 us" in text and "at 25 Gbit" in text, text
    text = bench.run(SCRIPT, "1000", bench.marker, options=("--steps", "3", "--workers", "2"))
    assert "assumed: links of 10Gbit:50us (--link)" in text and "2 workers, 10 Gbit/s" in text, text
    text = bench.run(SCRIPT, "1000", bench.marker, options=("--steps", "3", "--json", "-"))
    assert json.loads(text[text.index("\n[\n"):])[0]["workers"] == 4 and not os.path.exists("-"), text


def what_cannot_be_planned_is_told(bench):
    good = ("--workers", "4", "--link", "1Gbit:50us")
    text = bench.run(SCRIPT, "4", bench.marker, options=good, status=1)
    assert "ended after 3 steps" in text and "4 are needed" in text, text
    assert "seen in 1 step on" in bench.run(SCRIPT, "5", bench.marker, options=good)
    os.remove(bench.marker)
    assert "wrapped no model" in bench.run("print('nothing')", options=good, status=1)
    for options, word in [(("--workers", "4", "--link", "fast"), "'fast' is not RATE:LATENCY"),
                          ((*good, "--sync", "nonsense"), "nonsense"),
                          ((*good, "--sync", "auto"), "it is what chooses"),
                          (("--workers", "0", "--link", "1Gbit:50us"), "'0': whole numbers from 1 on"),
                          ((*good, "--steps", "2,3"), "'2,3': a whole number from 1 on"),
                          ((*good, "--ranks-per-host", "3"), "4 workers do not fill hosts of 3"),
                          ((*good, "--ranks-per-host", "4", "--reduce-in-host"), "4 workers are one host"),
                          ((*good, "--ranks-per-host", "2", "--reduce-in-host", "--sync", "clip+dense"),
                           "clip"),
                          ((*good, "--reduce-in-host"), "--ranks-per-host")]:
        text = bench.run(SCRIPT, "1000", bench.marker, options=options, status=2)
        assert word in text and "step 0" not in text, text


def a_script_may_use_what_a_handle_offers(bench):
    """Every public name of Handle, by register and by comm_hook."""
    from thinwire.handle import Handle
    from thinwire.plan import _NoHandle

    missing = [name for name in dir(Handle) if not name.startswith("_") and not hasattr(_NoHandle, name)]
    assert not missing, missing
    script = SCRIPT.replace("    optimizer.step()", "    optimizer.step(); state.handle.explain()")
    hooked = script.replace(WRAPPED, WRAPPED + "\n"
                            "hook, state = thinwire.comm_hook('auto')\n"
                            "model.register_comm_hook(state, hook)")
    assert hooked != script != SCRIPT, "the script has other lines"
    text = bench.run(hooked, "1000", bench.marker, options=("--workers", "4", "--link", "1Gbit:50us"))
    assert "choice (*)" in text, text


def what_goes_wrong_in_a_script_is_shown_once(bench):
    good = ("--workers", "4", "--link", "1Gbit:50us")
    text = bench.run("def inner():\n    raise KeyError('lost')\ninner()", options=good, status=1,
                     raises=True)
    assert "KeyError: 'lost'" in text and "in inner" in text, text
    assert "runpy" not in text and "wrapped no model" not in text, text
    text = bench.run("import sys\nsys.exit('no data')", options=good, status=1)
    assert "the script ended by itself: no data" in text and "wrapped no model" not in text, text
    assert "stand before" not in text, text
    passed = ["half", "--workers", "4", "--link=x", "--workers"]
    text = bench.run(f"import sys\nsys.exit(sys.argv[1:] != {passed})", *passed, status=1)
    assert "thinwire.plan: --workers, --link went to " in text and "have to stand before /" in text, text
    assert "wrapped no model" in text, f"they were not passed on: {text}"
    assert "went to" not in bench.run("pass", "--epochs", "4", status=1)
    text = bench.run("import sys\nsys.exit(2)", "--workers", "4", status=1)
    assert "Options of this command stand before" in text and "--workers, 4 went to it" in text, text
    text = bench.run("import torch.distributed as dist\n"
                     "dist.init_process_group('gloo', world_size=2, rank=0, init_method='env://')",
                     options=good, status=1, raises=True)
    assert "world_size=2" in text and "environment" in text, text
    for options, word in [(("--cores", "inf"), "--cores inf"),
                          (("--json", "/nowhere/plan.json"), "--json /nowhere/plan.json")]:
        assert word in bench.run("print('began')", options=(*good, *options), status=2), options
    two = SCRIPT.replace(WRAPPED, WRAPPED + "; other = DistributedDataParallel(nn.Linear(2, 2))")
    assert two != SCRIPT
    text = bench.run(two, "1000", bench.marker, options=good)
    assert "left out: 1 more model;" in text, text


for test in (a_script_may_use_what_a_handle_offers, what_goes_wrong_in_a_script_is_shown_once,
             a_training_is_ended_and_planned,
             where_a_step_computes_for_long_compression_cannot_help, buckets_are_those_of_ddp,
             steps_that_take_different_times_are_told,
             rows_are_left_out_and_types_told, ranks_of_a_host_are_planned,
             workers_and_link_that_are_not_given_are_assumed, what_cannot_be_planned_is_told):
    temporary, own = tempfile.mkdtemp(), os.getpid()
    try:
        test(Bench(temporary))
    finally:
        if os.getpid() == own:  # a process that was forked comes through here, too, when it ends
            shutil.rmtree(temporary)
    print(test.__name__, "ok", flush=True)
