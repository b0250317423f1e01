"""What a script of somebody's own sees of Thinwire's types. mypy reads it strictly, and nothing runs it.
Where an error is ignored there has to be one: mypy says so otherwise."""
from typing import Any, Dict, List, Optional

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.tensorboard import SummaryWriter
from typing_extensions import assert_type

import thinwire
from thinwire.interface import Report, SystemInfo


def train(model: DistributedDataParallel, optimizer: torch.optim.Optimizer, scaler: torch.cuda.amp.GradScaler,
          writer: SummaryWriter) -> None:
    handle = thinwire.register(model, "power_sgd:rank=32:bits=8", lanes=3, deadline_seconds=60,
                               optimizer=optimizer, grad_scaler=scaler)
    assert_type(handle, thinwire.Handle)
    assert_type(handle.spec, str)
    assert_type(handle.step, int)
    assert_type(handle.report(), Report)
    assert_type(handle.report()["last_step"]["wire_bytes_sent"], int)
    assert_type(handle.report()["buckets"][0]["relative_error"], Optional[float])
    assert_type(handle.scalars(), Dict[str, float])
    assert_type(handle.state_dict(), Dict[str, Any])
    assert_type(thinwire.systems(), List[SystemInfo])
    assert_type(thinwire.__version__, str)
    handle.log_to(writer, every=10)
    handle.log_to(None)
    handle.load_state_dict(handle.state_dict(consolidate=True))
    handle.load_state_dict([handle.state_dict()])

    with thinwire.HtmlReport(handle, "report.html", layers_every=10) as report:
        assert_type(report, thinwire.HtmlReport)
        report.step(loss=torch.ones(1))
        report.step(loss=0.5)
        report.step(loss="small")  # type: ignore[arg-type]
    thinwire.HtmlReport(model, "report.html")  # type: ignore[arg-type]

    handle.report()["wire_bytes"]  # type: ignore[typeddict-item]
    handle.log_to("runs")  # type: ignore[arg-type]
    thinwire.regster(model, "dense")  # type: ignore[attr-defined]
    thinwire.register(model.parameters(), "dense")  # type: ignore[arg-type]
    thinwire.register(model, "dense", lane=3)  # type: ignore[call-arg]
    thinwire.register(model, "dense", grad_scaler=optimizer)  # type: ignore[arg-type]


def give_a_hook() -> None:
    hook, state = thinwire.comm_hook("casq", seed=2)
    assert_type(state.handle, Optional[thinwire.Handle])
    thinwire.comm_hook("casq", sed=2)  # type: ignore[call-arg]
    thinwire.comm_hook("casq", lanes="two")  # type: ignore[arg-type]
