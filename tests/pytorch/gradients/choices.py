"""What `auto` chooses in a training, and how it explains that."""
import copy
import io
import logging
import re
import time

import torch
from torch import nn

from common import (
    RANK, WORLD, Mixed, Net, batch, register, require_agreement, require_error, sgd, train, wrap,
)


def auto_chooses_and_says_why():
    """Whatever the times say: all ranks choose alike, every bucket is told of,
    and a resumed run keeps the choice."""
    spec = "auto:settle=1:rounds=1:steps=2:interval=64"
    logged = []
    log = logging.Handler()
    log.emit = lambda record: logged.append(record.getMessage())
    logging.getLogger("thinwire").addHandler(log)
    logging.getLogger("thinwire").setLevel(logging.INFO)
    model = wrap(Net)
    handle = register(model, spec)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    used = train_until_chosen(model, handle, optimizer)
    step = len(used) - 1
    require_agreement(model, spec)
    assert [" ".join(one).split(":")[0] for one in used[:9]] == (
        ["dense"] * 3 + ["half"] * 3 + ["power_sgd"] * 3), used
    *lines, last = handle.explain().splitlines()
    guarded = [one for one in lines if ": guard: " in one]
    (line,) = [one for one in lines if one not in guarded]
    assert bool(guarded) == (": power_sgd" in line), lines  # which has a guard, and the others none
    assert all(re.match("step [0-9]+: guard: bucket .* times the batches' noise, allowed are 0.50", one)
               for one in guarded), guarded
    short = spec.replace(":steps=2", "")  # which is the default
    require_last_step(last, step, short, [bucket["scheme"] for bucket in handle.report()["buckets"]])
    assert re.match(f"step {step - 1}: (dense|half|power_sgd)", line), (line, used)
    (number, reason), *later = handle.changes()
    assert f"step {number}: {reason}" == line and not later, handle.changes()
    assert handle.report()["changes"] == [(number, reason)] and handle.report()["total"]["changes"] == 1
    assert logged == ([line] if RANK == 0 else []), logged
    for name in ("with dense", "with half:format=bf16:feedback=on", "with power_sgd:rank=32:bits=8"):
        assert name in line or "power_sgd" in " ".join(used[-1]), (name, line)
    known = [None] * WORLD
    torch.distributed.all_gather_object(known, used)
    assert all(one == used for one in known), known
    state = handle.state_dict()
    again = wrap(Net)
    resumed = register(again, spec)
    resumed.load_state_dict(state)
    train(again, 2, first=step + 1)
    assert {bucket["scheme"] for bucket in resumed.report()["buckets"]} == set(used[-1])
    assert resumed.explain().count("as in the state that was loaded") == 1, resumed.explain()


def train_until_chosen(model, handle, optimizer):
    """Trains to the step after auto's choice. Gives what each step's buckets ran, each once.

    The candidates alone are tried in steps 0 to 8. Where a lossy one wins, it is tried beside dense then."""
    used = []
    while not handle.changes() or len(used) < handle.changes()[0][0] + 2:
        assert len(used) < 64, handle.explain()
        explained = handle.explain()
        assert len(used) < 2 or handle.changes() or "nothing is chosen yet" in explained, explained
        train(model, 1, first=len(used), optimizer=optimizer)
        used.append(sorted({bucket["scheme"] for bucket in handle.report()["buckets"]}))
    return used


def require_last_step(line, step, spec, schemes):
    """What explain() ends with: which scheme how many buckets had."""
    assert line.startswith(f"the last step, {step}, ran {spec}: "), line
    for scheme in set(schemes):
        assert f"{scheme} in {schemes.count(scheme)} of {len(schemes)} buckets" in line, (line, schemes)


def a_given_system_is_explained_as_it_was_given():
    for spec in ("power_sgd:rank=2", "rows=casq,dense=half", "warm_up:steps=3+casq:bits=4"):
        model = wrap(Net)
        handle = register(model, spec)
        assert handle.explain() == f"no step was made yet; the next one, 0, runs {spec}"
        assert handle.report()["system"] == spec and handle.report()["spec"] != spec
        train(model, 1, optimizer=torch.optim.SGD(model.parameters(), lr=0.01))
        count = len(handle.report()["buckets"])
        took = f": dense in {count} of {count} buckets" if spec.startswith("warm_up") else ""
        assert handle.explain() == f"the last step, 0, ran {spec}{took}"
        handle.set("half")
        assert handle.report()["system"] == "half"
        assert handle.explain() == f"the last step, 0, ran {spec}{took}\nthe next one runs half"
        handle.load_state_dict(handle.state_dict())
        assert handle.explain() == "no step was made yet; the next one, 1, runs half"
        handle.close()


class Normed(nn.Module):
    """With buffers, which DDP sends from rank 0 when forward begins."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, 48), nn.BatchNorm1d(48), nn.Tanh(), nn.Linear(48, 5))

    def forward(self, x):
        return self.layers(x.view(-1, 20))


def auto_names_a_slow_rank_0_where_ranks_wait_for_its_buffers():
    """Other work may lead to a trial just before a rank sleeps, and then nobody knows what was usual.
    So there are several tries, each with a choice of its own."""
    for _ in range(5):
        model = wrap(Normed)
        handle = register(model, "auto:settle=1:rounds=1:steps=2:interval=4")
        optimizer = sgd(model)
        step = len(train_until_chosen(model, handle, optimizer))
        for _ in range(10):
            before = len(handle.changes())
            train(model, 20, first=step, optimizer=optimizer)
            if len(handle.changes()) == before and len(handle.explain().splitlines()) < before + 2:
                break  # no trial goes on, nor was there one
        for _ in range(24):
            if RANK == 0:
                time.sleep(0.25)
            train(model, 1, first=step, optimizer=optimizer)
            step += 1
        copy.deepcopy(model)(batch(step)).sum().backward()  # which takes nothing of the handle along
        explained = handle.explain()
        handle.close()
        assert not model._forward_pre_hooks and not model.module._forward_pre_hooks
        if "by rank 0 alone, for which the others wait" in explained:
            return
    raise AssertionError(explained)


def a_model_with_buffers_stays_as_it_is():
    """Users save, script and copy the model inside DDP, and load it where there is no Thinwire."""
    model = wrap(Normed)
    handle = register(model, "auto")
    train(model, 3)
    assert not model.module._forward_pre_hooks, model.module._forward_pre_hooks
    saved = io.BytesIO()
    torch.save(model.module, saved)
    assert b"thinwire" not in saved.getvalue()
    torch.jit.script(model.module)
    require_error(AttributeError, ["view"], lambda: model("no batch"))  # its forward has begun and fails
    assert not copy.deepcopy(model.module)._forward_pre_hooks
    train(model, 1, first=3)
    require_agreement(model, "auto")
    handle.close()


def auto_explains_a_table_of_rows():
    auto_beside_rows(wrap(Mixed))


class TableFirst(torch.nn.Module):
    """A table before all other layers."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(64, 48, sparse=True)
        self.rest = torch.nn.Sequential(torch.nn.Linear(48, 48), torch.nn.Tanh(), torch.nn.Linear(48, 5))

    def forward(self, x):
        return self.rest(self.table((x.abs() * 20).long() % 64).mean(1))


def auto_decides_where_the_first_bucket_is_a_table():
    """One bucket of rows and one of the rest, each in a lane of its own."""
    model = torch.nn.parallel.DistributedDataParallel(TableFirst())  # with its usual large buckets
    handle = auto_beside_rows(model)
    assert [bucket["parameters"] for bucket in handle.report()["buckets"]][0] == ["table.weight"]
    assert len(handle.report()["buckets"]) == 2


def auto_beside_rows(model):
    """Beside what it chose for the dense part: what zen, which has the rows, took for them."""
    spec = "auto:settle=1:rounds=1:steps=2:interval=64"
    handle = register(model, spec, rows="zen")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = len(train_until_chosen(model, handle, optimizer)) - 1
    *lines, last = handle.explain().splitlines()
    guarded = [line for line in lines if ": guard: " in line]
    chosen = [line for line in lines if line not in guarded]
    assert len(chosen) == 1, lines  # by steps, so that a guard's line may be the first one
    assert bool(guarded) == (": power_sgd" in chosen[0]), lines
    assert re.match(f"step {step - 1}: (dense|half|power_sgd)", chosen[0]), chosen
    buckets = {tuple(bucket["parameters"]): bucket["scheme"] for bucket in handle.report()["buckets"]}
    require_last_step(last, step, spec.replace(":steps=2", ""), list(buckets.values()))
    of_rows = buckets.pop(("table.weight",))
    assert of_rows in ("push_pull", "centralization"), of_rows  # zen's two
    candidates = {"dense", "half:format=bf16:feedback=on", "power_sgd:rank=32:bits=8"}
    assert buckets and set(buckets.values()) <= candidates, buckets
    return handle


AUTO = [auto_chooses_and_says_why, a_model_with_buffers_stays_as_it_is,
        auto_names_a_slow_rank_0_where_ranks_wait_for_its_buffers,
        auto_explains_a_table_of_rows, auto_decides_where_the_first_bucket_is_a_table,
        a_given_system_is_explained_as_it_was_given]
