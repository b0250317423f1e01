"""One rank of frameworks_test.py: framework_worker.py FRAMEWORK PHASE FOLDER.
Phases share the folder, and each is of new processes."""
import logging
import os
import shutil
import sys

import torch
import torch.distributed as dist

import framework_misuse
import framework_scripts
from common import RANK, WORLD, end, require_error, require_same
from thinwire import adapter

LOSSY = ["top_k:ratio=0.05+zen", "casq", "power_sgd:rank=4"]
FRAMEWORK, PHASE, FOLDER = sys.argv[1:4]
LIMITS = {"deadline_seconds": 60.0}
SHARDS = FRAMEWORK == "fully_shard"  # by torch itself, without an adapter
if SHARDS:
    LOSSY = ["top_k:ratio=0.05+zen", "casq:bits=4", "half"]
if PHASE.startswith("four"):  # the same as two and resumed, on four ranks
    FOLDER, LOSSY = os.path.join(FOLDER, "four"), ["casq:bits=4"] if SHARDS else ["casq"]


def folder_of(script, what):
    folder = os.path.join(FOLDER, script.__name__, what.replace(":", "_").replace("+", "_"))
    if RANK == 0:
        os.makedirs(folder, exist_ok=True)
    barrier()
    return folder


def barrier():
    if dist.is_initialized():
        dist.barrier()


def residual_sums(states):
    sums = {}
    for state in states:
        for name, value in state["values"].items():
            if name.startswith("residual/") and isinstance(value, torch.Tensor):
                sums[name] = sums.get(name, 0) + value.double()
    return sums


def of_all_ranks(state):
    states = [None] * WORLD
    dist.all_gather_object(states, state)
    return states


# --- Phases -------------------------------------------------------------------------------------------------

def two(script):
    """dense is the framework's own run; lossy systems train, and leave a checkpoint.
    All in one process, one after another."""
    plain = script(folder_of(script, "plain"), None)
    show_figures(script, "none", plain)
    runs = []
    dense = script(folder_of(script, "dense"), "dense", probe=runs.append, **LIMITS)
    # Among four ranks torch's own reduce-scatter adds in another order.
    rounds = script is framework_scripts.scattered and WORLD > 2
    require_same(dense.values, plain.values, "dense, beside the framework's own run", 1e-6 if rounds else 0.0)
    assert rounds or plain.losses == dense.losses, (plain.losses, dense.losses)
    show_figures(script, "dense", dense, runs[0])
    if not SHARDS:  # loss_scale_is_followed has it
        with_a_loss_scale(script)
    for spec in LOSSY:
        runs = []
        result = script(folder_of(script, spec), spec, probe=runs.append, **LIMITS)
        show_figures(script, spec, result, runs[0])
        # Four ranks take half as many steps.
        assert result.losses[1] < (0.8 if WORLD == 2 else 0.9) * result.losses[0], (spec, result.losses)
        assert any(not torch.equal(a, b) for a, b in zip(result.values, plain.values)), spec
        if SHARDS or RANK == 0:
            torch.save({"values": result.values, "checkpoint": result.checkpoint},
                       folder_of_uninterrupted(script, spec))
        if RANK == 0 and not SHARDS:
            assert result.logged["thinwire/wire_bytes_sent"] > 0 and "loss" in result.logged, result.logged
            states = framework_scripts.states_in(result.checkpoint)
            assert [state["rank"] for state in states] == list(range(WORLD)), states
            if "casq" not in spec and "power" not in spec:
                assert all(value.abs().sum() > 0 for value in residual_sums(states).values())
        barrier()


def with_a_loss_scale(script):
    """The framework's own GradScaler: its first steps overflow, and later ones have other scales."""
    def run(spec, **more):
        return script(folder_of(script, f"scaled-{spec}"), spec, scaled=True, **more)

    plain, dense = run(None), run("dense", **LIMITS)
    require_same(dense.values, plain.values, "dense with a loss scale, beside the framework's own run")
    runs = []
    result = run("top_k:ratio=0.05+zen", probe=runs.append, **LIMITS)
    assert all(value.isfinite().all() for value in result.values)
    assert any(not torch.equal(one, other) for one, other in zip(result.values, plain.values))
    state = runs[0].handle.state_dict()
    assert state["loss_scale"] is not None and 1 <= state["loss_scale"] < 2.0**127, state["loss_scale"]
    assert 0 < runs[0].handle.step


def show_figures(script, spec, result, run=None):
    """A line of the table in results/frameworks.md. What was sent is what the systems' formulas say."""
    sent = ["", "", ""]
    if run is not None:
        total = run.handle.report()["total"]
        sent = [total[key] for key in ("wire_bytes_sent", "formula_bytes", "frame_header_bytes")]
        assert sent[0] == sent[1] + sent[2], (spec, total)
    if RANK == 0:
        cells = [script.__name__, WORLD, spec, f"{result.losses[1]:.6f}", *sent]
        print("|", " | ".join(map(str, cells)), "|")


def folder_of_uninterrupted(script, spec):
    shard = f"-{RANK}" if SHARDS else ""  # else all ranks have the same values
    return os.path.join(FOLDER, f"{script.__name__}-{LOSSY.index(spec)}{shard}.pt")


def resumed(script):
    """In new processes, bit for bit."""
    resumed_exactly(script)
    if not SHARDS:
        refuses_what_is_not_all_there(script)


def resumed_exactly(script):
    for spec in LOSSY:
        saved = torch.load(folder_of_uninterrupted(script, spec))
        result = script(folder_of(script, spec + "-resumed"), spec, resume=saved["checkpoint"], **LIMITS)
        require_same(result.values, saved["values"], f"{script.__name__}, {spec}: resumed")


def refuses_what_is_not_all_there(script):
    without = folder_of(script, "without")
    plain = script(without, None).checkpoint
    again = folder_of(script, "without-again")
    if script is framework_scripts.fabric:  # which says it by itself
        require_error(KeyError, ["'thinwire'", "strict=False"],
                      lambda: script(again, "casq", resume=plain, **LIMITS))
        return
    require_error(ValueError, ["no state of Thinwire", "require_state=False"],
                  lambda: script(again, "casq", resume=plain, **LIMITS))
    script(again, "casq", resume=plain, require_state=False, **LIMITS)
    checkpoint = torch.load(folder_of_uninterrupted(script, LOSSY[0]))["checkpoint"]
    if not os.path.isdir(checkpoint):
        return
    damaged = os.path.join(FOLDER, script.__name__, "damaged")
    for damage, words in ((os.remove, ["rank_1_of_2.pt"]),
                          (cut, ["rank 1 cannot load its state of Thinwire"]),
                          (emptied, ["rank 1 cannot load its state of Thinwire", "is damaged (EOFError: "])):
        if RANK == 0:
            shutil.rmtree(damaged, ignore_errors=True)
            shutil.copytree(checkpoint, damaged)
            damage(next(os.path.join(damaged, name)
                        for name in os.listdir(damaged) if name.endswith("rank_1_of_2.pt")))
        barrier()
        require_error(ValueError, words, lambda: script(again, LOSSY[0], resume=damaged, **LIMITS))
        barrier()


def cut(path):
    with open(path, "r+b") as file:
        file.truncate(100)


def emptied(path):
    with open(path, "wb"):
        pass


def three(script):
    """A checkpoint of two ranks: what they had not delivered is there, whole."""
    for spec in LOSSY:
        checkpoint = torch.load(folder_of_uninterrupted(script, spec))["checkpoint"]
        expected = residual_sums(framework_scripts.states_in(checkpoint))
        seen = []

        def probe(run):
            seen.append(run.handle.step)
            found = residual_sums(of_all_ranks(run.handle.state_dict()))
            assert found.keys() == expected.keys(), (spec, found.keys(), expected.keys())
            for name, value in expected.items():
                require_same([found[name]], [value], f"{spec}: {name} on {WORLD} ranks", 1e-6)

        result = script(folder_of(script, spec + "-three"), spec, resume=checkpoint, probe=probe, **LIMITS)
        assert seen == [6], seen
        for value in result.values:
            require_same([value], [of_all_ranks(value)[0]], f"{spec} on {WORLD} ranks")


class Said(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []
        adapter.log.addHandler(self)

    def emit(self, record):
        self.lines.append(record.getMessage())


def one(script):
    """Nothing is done, and that is said once; a checkpoint of several ranks and one of one both load."""
    said = Said()
    plain = script(folder_of(script, "one-plain"), None)
    ours = script(folder_of(script, "one"), "casq")
    script(folder_of(script, "one-again"), "casq", probe=lambda run: None)
    require_same(ours.values, plain.values, "one process")
    if script is framework_scripts.SCRIPTS[FRAMEWORK][0]:
        warned = [line for line in said.lines if "there is one process, so" in line]
        assert warned == said.lines[:1], said.lines
    script(folder_of(script, "one-resumed"), "casq", resume=ours.checkpoint)
    assert not any("dropped" in line for line in said.lines), said.lines
    several = torch.load(folder_of_uninterrupted(script, LOSSY[0]))["checkpoint"]
    script(folder_of(script, "one-of-two"), LOSSY[0], resume=several)
    assert any("what 2 ranks had not delivered yet is dropped" in line for line in said.lines), said.lines
    if script is framework_scripts.accelerate:
        framework_misuse.some_models_saved_by_one_process(os.path.join(FOLDER, "alone"))


def fails(script):
    """An exception on rank 1 in the middle: rank 0 hears of it, and whoever trains again can."""
    def action():
        return script(folder_of(script, "fails"), "casq", fails_at=5, deadline_seconds=20.0)

    if RANK == 1:
        try:
            action()
        except ArithmeticError:
            print(f"survivor: {script.__name__}", flush=True)
            os._exit(0)
        raise AssertionError("nothing was raised")
    require_error(RuntimeError, ["rank 1"], action)


def unconnected(script):
    """Two processes, and the framework was not told to synchronize them. Some connect them all the same."""
    action, remedy = framework_misuse.UNCONNECTED[script.__name__]
    require_error(TypeError, [remedy], lambda: action(FOLDER))


def main():
    scripts = framework_scripts.SCRIPTS[FRAMEWORK]
    if PHASE not in ("one", "unconnected"):
        dist.init_process_group("gloo")
    # One at a time where ranks end.
    chosen = [scripts[int(sys.argv[4])]] if len(sys.argv) > 4 else scripts
    for script in chosen:
        {"two": two, "resumed": resumed, "three": three, "one": one, "fails": fails, "more": more,
         "unconnected": unconnected,
         "four": two, "four_resumed": resumed_exactly}[PHASE](script)
        if RANK == 0:
            print(f"ok     {script.__name__}: {PHASE}", flush=True)
    if PHASE == "fails":
        os._exit(0)
    end()


def more(script):
    if script is framework_scripts.accelerate:
        framework_misuse.some_models_saved_by_one_process(os.path.join(FOLDER, "alone"))
    for scenario in framework_misuse.SCENARIOS[script.__name__]:
        scenario()
        if RANK == 0:
            print(f"ok     {scenario.__name__}", flush=True)


if __name__ == "__main__":
    main()
