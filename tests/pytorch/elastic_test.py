"""torchrun starts examples/elastic.py again after a rank has died: elastic_test.py [restarts|hosts] [SPEC].

restarts: a rank dies between two steps, then one dies while it saves. The end is that of an undisturbed run,
bit for bit; three ranks then go on from the checkpoint of two.
hosts: of two torchruns one dies with its rank, and the other goes on alone.
Takes half a minute, most of it torchrun's own waiting.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

import torch
from thinwire.launch import free_port

LIMIT_SECONDS = 180  # for each of three runs, together less than the whole test has
# Debian's torch 1.13 under Python 3.11 has no default for these two.
# Rank 9 does not exist, so this redirects nothing.
QUIET = ["--redirects", "9:1", "--tee", "9:1"] if torch.__version__.startswith("1.13") else []
worker = pathlib.Path(__file__).resolve().parent / "elastic_worker.py"


def start(folder, torchrun, arguments, **environment):
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--monitor_interval", "0.2", "--max_restarts", "3",
         *QUIET, *torchrun, str(worker), "--checkpoints", str(folder / "checkpoints"), *arguments],
        env={**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1",
             "CUDA_VISIBLE_DEVICES": "", "THINWIRE_TEST_FOLDER": str(folder), **environment},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )


def output_of(process):
    try:
        return process.communicate(timeout=LIMIT_SECONDS)[0]
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun ends its ranks
        raise AssertionError(f"torchrun did not end within {LIMIT_SECONDS} s:\n"
                             f"{process.communicate()[0]}") from None


def require_good_end(process, *words):
    output = output_of(process)
    missing = [word for word in words if word not in output]
    assert process.returncode == 0 and not missing, f"status {process.returncode}, lacks {missing}:\n{output}"


def on_one_host(folder, ranks, arguments, *words, **environment):
    # As --standalone, which is at one port for all jobs of a machine in torch 1.13.
    rendezvous = ["--rdzv_backend", "c10d", "--rdzv_endpoint", f"127.0.0.1:{free_port()}", "--rdzv_id", "one"]
    require_good_end(start(folder, [*rendezvous, "--nproc_per_node", str(ranks)], arguments, **environment),
                     *words)


def loaded(path):
    return torch.load(path, weights_only=torch.__version__ >= "2")


def require_same(one, other, where):
    assert type(one) is type(other), (where, type(one), type(other))
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), f"{where} differs by {(one - other).abs().max()}"
    elif isinstance(one, (dict, list)):
        assert len(one) == len(other), where
        for key in one if isinstance(one, dict) else range(len(one)):
            require_same(one[key], other[key], f"{where}: {key}")
    else:
        assert one == other, f"{where}: {one} and {other}"


def residual_sums(paths):
    states = [loaded(path)["values"] for path in paths]
    sums = {name: sum(state[name].double() for state in states)
            for name in states[0] if name.startswith("residual/")}
    assert sums and all(value.abs().sum() > 0
                        for name, value in sums.items() if name.endswith("weight")), (sorted(states[0]))
    return sums


def require_conserved(folder, step, before, now):
    saved = residual_sums([folder / "checkpoints" / f"step_{step:08d}" / f"thinwire_{rank}_of_{before}.pt"
                           for rank in range(before)])
    gone_on = residual_sums([folder / f"loaded_{rank}_of_{now}.pt" for rank in range(now)])
    assert set(saved) == set(gone_on)
    for name, value in saved.items():
        gap = (gone_on[name] - value).abs().max()
        assert gap <= 1e-6 * value.abs().max().clamp(min=1.0), (f"{name}: "
                                                                f"the sum of residuals differs by {gap}")


def names_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def restarts(folder, arguments):
    calm, disturbed = folder / "calm", folder / "disturbed"
    steps = ["--steps", "40", "--every", "10", *arguments]
    on_one_host(calm, 2, steps, "loss")
    # From step 10 on the second process's files are those of steps 20 and 30.
    on_one_host(disturbed, 2, steps, "resumed from step 10 of 2", "resumed from step 20 of 2",
                THINWIRE_TEST_DIES="step=13,save=2")
    assert (disturbed / "died_at_step").exists() and (disturbed / "died_at_save").exists()
    expected = [f"step_{step:08d}/{name}" for step in (30, 40)
                for name in ("model.pt", "thinwire_0_of_2.pt", "thinwire_1_of_2.pt")]
    for run in (calm, disturbed):
        assert names_in(run / "checkpoints") == expected, names_in(run / "checkpoints")
    for name in expected:
        require_same(loaded(calm / "checkpoints" / name), loaded(disturbed / "checkpoints" / name), name)
    print("ok     a run with two deaths ends as one without")
    on_one_host(disturbed, 3, ["--steps", "42", "--every", "10", *arguments],
                "resumed from step 40 of 2 ranks, with 3")
    require_conserved(disturbed, 40, 2, 3)
    assert loaded(disturbed / "checkpoints" / "step_00000042" / "model.pt")["world"] == 3
    print("ok     three ranks go on from two, with the same sum of residuals")


def hosts(folder, arguments):
    endpoint = f"127.0.0.1:{free_port()}"

    def host(serves, **environment):
        return start(folder, ["--nnodes", "1:2", "--nproc_per_node", "1", "--rdzv_id", "job",
                              "--rdzv_backend", "c10d", "--rdzv_endpoint",
                              endpoint, "--rdzv_conf", f"is_host={serves},last_call_timeout=10"],
                     ["--steps", "20", "--every", "10", *arguments], **environment)

    stays = host("true")
    dies = host("false", THINWIRE_TEST_HOST="1", THINWIRE_TEST_DIES="step=13")
    output_of(dies)
    assert dies.returncode == -9 and (folder / "died_at_step").exists(), dies.returncode
    require_good_end(stays, "resumed from step 10 of 2 ranks, with 1")
    require_conserved(folder, 10, 2, 1)
    assert loaded(folder / "checkpoints" / "step_00000020" / "model.pt")["world"] == 1
    print("ok     one host goes on without the other, with the same sum of residuals")


with tempfile.TemporaryDirectory() as place:
    tests = {"restarts": restarts, "hosts": hosts}
    tests[sys.argv[1]](pathlib.Path(place), ["--spec", sys.argv[2]] if len(sys.argv) > 2 else [])
