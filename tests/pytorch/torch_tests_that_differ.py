"""torch's own tests that pass plain and not with Thinwire: of each the reason, and words of its error.
torch_tests.py fails where one of them passes, or fails without these words."""

_ONE_HOOK = "register_comm_hook or register_builtin_comm_hook can only be called once"
_OWN_HOOK = ("registers a communication hook of its own, and DDP takes one", _ONE_HOOK)
_IN_BACKWARD = ("an optimizer that runs within backward is a communication hook of DDP's own, "
                "and DDP takes one", _ONE_HOOK)
_MIXED_PRECISION = ("DDP's mixed_precision is a communication hook of its own, so register refuses it",
                    "ValueError: DistributedDataParallel(mixed_precision=...) has a communication hook")

DIFFER = {
    "test_accumulate_gradients_no_sync_allreduce_hook": _OWN_HOOK,
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook": _OWN_HOOK,
    "test_ddp_hook_parity_allreduce": _OWN_HOOK,
    "test_ddp_hook_parity_allreduce_process_group": _OWN_HOOK,
    "test_ddp_hook_parity_post_localSGD": _OWN_HOOK,
    "test_ddp_hook_parity_powerSGD": _OWN_HOOK,
    "test_ddp_hook_pickling_powerSGD": _OWN_HOOK,
    "test_ddp_uneven_inputs": _OWN_HOOK,
    "test_ddp_apply_optim_in_backward": _IN_BACKWARD,
    "test_ddp_apply_optim_in_backward_grad_as_bucket_view_false": _IN_BACKWARD,
    "test_ddp_apply_optim_in_backward_ignored_params": _IN_BACKWARD,
    "test_ddp_native_mixed_precision_grad_as_bucket_view_no_set_grad_none": _MIXED_PRECISION,
    "test_ddp_native_mixed_precision_grad_as_bucket_view_set_grad_to_none": _MIXED_PRECISION,
    "test_ddp_native_mixed_precision_ignored_params": _MIXED_PRECISION,
    "test_ddp_native_mixed_precision_no_grad_as_bucket_view_no_set_grad_none": _MIXED_PRECISION,
    "test_ddp_native_mixed_precision_no_grad_as_bucket_view_set_grad_to_none": _MIXED_PRECISION,
    "test_ddp_comm_hook_logging": ("asks that DDP's log name no hook before the test registers one",
                                   "hook is not None"),
    "test_ddp_grad_div_uneven_inputs": (
        "joins with divide_by_initial_world_size=False, which Thinwire refuses: "
        "a hook's mean is over all ranks",
        "RuntimeError: join(divide_by_initial_world_size=False) is not possible",
    ),
    "test_ddp_profiling_torch_profiler": (
        "counts gloo:all_reduce among the profiler's events, and Thinwire's sums are none of c10d's "
        "operations",
        "AssertionError: Scalars are not equal",
    ),
}
