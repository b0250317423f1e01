"""One rank of the PyTorch module's tests: worker.py GROUP_OF_SCENARIOS.
run.py starts as many as a group wants.

Every scenario runs on all ranks; one that fails ends its process, and the others name the rank that left.
"""
import sys

import torch
import torch.distributed as dist

from adam import ADAM
from common import RANK, end
from compiled import COMPILED
from lossy_systems import (
    COMPRESSION, compression_is_the_same_on_an_emulated_device, every_system_agrees, mixed_types,
    nothing_is_lost,
)
from dcp import DCP
from exits import EXITS, SCATTERED_FAILURES, SCATTERED_RAISES, SHARDED_FAILURES, SHARDED_RAISES
from gradients.clipping import CLIPPING
from gradients.hosts import HOSTS
from gradients.local import LOCAL
from gradients.loss_scale import LOSS_SCALE
from gradients.overflows import a_backward_that_raises, overflow_where_buckets_are_rebuilt
from hooks import HOOKS
from html_report import HTML_REPORT
from like_plain_ddp import PLAIN, dense_equals_plain_ddp, sparse_embedding, uneven_inputs
from losses import (dies, dies_in_forward, dies_within_a_message, error_before_register, error_between_steps,
                    host_frozen_before_register, host_leaves_early, one_closes_after_an_error)
from misuse import MISUSE, numbers_in_a_subgroup, replicas_that_differ, subgroups
from on_device import DEVICE, device_equals_host, device_rows
from scattered import SCATTERED
from sharded import SHARDED
from states import (
    STATES, first_step_is_in_the_states_buckets, mixed_types_resume, resumes_with_other_ranks,
)
from steps import STEPS

GROUPS = {
    "cuda": DEVICE,
    "cuda_staged": DEVICE,
    # Those that are left out have models on the host, too.
    "nccl": [scenario for scenario in DEVICE if scenario not in (device_equals_host, device_rows)],
    "plain": PLAIN,
    "compression": COMPRESSION + LOSS_SCALE + CLIPPING,
    "states": STATES + DCP,
    "misuse": MISUSE,
    "steps": STEPS,
    "adam": ADAM,
    "hooks": HOOKS,
    "compiled": COMPILED,
    "html_report": HTML_REPORT,
    "hosts": HOSTS,
    "local": LOCAL,
    "exits": EXITS,
    "sharded": SHARDED + SHARDED_FAILURES,
    "sharded_raises": SHARDED_RAISES,
    "scattered": SCATTERED + SCATTERED_FAILURES,
    "scattered_raises": SCATTERED_RAISES,
    "three": [dense_equals_plain_ddp, uneven_inputs, sparse_embedding, subgroups, numbers_in_a_subgroup,
              nothing_is_lost, resumes_with_other_ranks, replicas_that_differ, one_closes_after_an_error,
              host_leaves_early],
    # One start of Python for each way through the extension: a sanitizer makes all of it slow.
    "sanitized": [dense_equals_plain_ddp, sparse_embedding, every_system_agrees,
                  compression_is_the_same_on_an_emulated_device, nothing_is_lost, mixed_types,
                  overflow_where_buckets_are_rebuilt, a_backward_that_raises,
                  first_step_is_in_the_states_buckets, mixed_types_resume, resumes_with_other_ranks],
    "killed": [lambda: dies("killed", 1)],
    # The sums are the engine's own, on devices another's.
    "killed_in_sums": [lambda: dies("killed", 1, "dense")],
    # Ranks of the other host wait for its place, that of its own for its part.
    "killed_with_hosts": [lambda: dies("killed", 1, "casq", ranks_per_host=2)],
    "frozen_with_hosts": [lambda: dies("frozen", 1, "casq", ranks_per_host=2)],
    # DDP's own sum over a used map fails, too.
    "killed_with_unused": [lambda: dies("killed", 1, "casq", unused=True)],
    "killed_with_static_graph": [lambda: dies("killed", 1, "casq", static=True)],
    # The error is one of DDP's own group, which has sent the model's buffers.
    "killed_in_forward": [lambda: dies_in_forward("killed", 1)],
    "frozen_in_forward": [lambda: dies_in_forward("frozen", 1)],
    "frozen_in_first_forward": [lambda: dies_in_forward("frozen", 1, after=0)],
    # DDP sends its new buckets there, in two broadcasts: all others wait in torch's operations.
    "frozen_in_second_forward": [lambda: dies_in_forward("frozen", 1, after=1)],
    "host_killed_in_forward": [lambda: dies_in_forward("killed", 0)],
    "host_frozen_in_forward": [lambda: dies_in_forward("frozen", 0)],
    "host_error_in_forward": [lambda: dies_in_forward("raises", 0)],
    "error_between_steps": [lambda: error_between_steps(2)],
    "host_error_between_steps": [lambda: error_between_steps(0)],
    "error_before_register": [lambda: error_before_register(1)],
    "host_error_before_register": [lambda: error_before_register(0)],
    "host_frozen_before_register": [host_frozen_before_register],
    "frozen": [lambda: dies("frozen", 1)],
    "killed_in_a_message": [lambda: dies_within_a_message("killed", 1, "half", 600.0, 1_500_000)],
    # In the last of a sum's 96 segments of 1 MiB.
    "frozen_in_a_message": [lambda: dies_within_a_message("frozen", 1, "dense", 4.0, 100_000_000)],
    "host_killed": [lambda: dies("killed", 0)],  # whose process serves the store
}


def main():
    if sys.argv[1] in ("cuda", "cuda_staged", "nccl") and not torch.cuda.is_available():
        print("skipped: no CUDA device")
        sys.exit(77)
    if sys.argv[1] == "nccl":
        torch.cuda.set_device(0)
        dist.init_process_group("nccl")
    else:
        dist.init_process_group("gloo")
    for scenario in GROUPS[sys.argv[1]]:
        name = getattr(scenario, "__name__", "scenario").replace("_", " ")
        try:
            verdict = scenario() or "ok    "
        except Exception:
            print(f"rank {RANK}: FAILED: {name}", flush=True)
            raise
        if RANK == 0:
            print(f"{verdict} {name}", flush=True)
    if sys.argv[1] != "exits":
        end()


main()
