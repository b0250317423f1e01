"""Runs code that was written for CUDA devices on a machine without one:
whatever device it names, tensors are on the CPU."""
import contextlib

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

_CPU = torch.device("cpu")
_module_to = torch.nn.Module.to
_wrap = DistributedDataParallel.__init__


def _is_device(value):
    if isinstance(value, bool):
        return False
    return (isinstance(value, (int, torch.device))
            or (isinstance(value, str) and value.split(":")[0] == "cuda"))


def _moved(arguments, options):
    """What ``to`` was given, with the CPU for a device."""
    options = {**options, "device": _CPU} if options.get("device") is not None else options
    return [_CPU if _is_device(one) else one for one in arguments], options


class _OnCpu(TorchFunctionMode):
    """Within it every call that makes or moves a tensor takes the CPU for its device."""

    def __torch_function__(self, function, types, arguments=(), options=None):
        options = options or {}
        if function is torch.Tensor.cuda:
            return arguments[0]
        if function is torch.Tensor.to:
            moved, options = _moved(arguments[1:], options)
            return function(arguments[0], *moved, **options)
        if _is_device(options.get("device")):
            options = {**options, "device": _CPU}
        return function(*arguments, **options)


class _Stream:
    """A stream, or an event of one: work on the CPU is done when it was called."""

    def __init__(self, *_, **__):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def record(self, *_):
        return self

    def wait(self, *_, **__):
        pass

    wait_stream = wait_event = synchronize = wait
    record_event = record


def _stay(module, device=None):
    return module


def _to(module, *arguments, **options):
    moved, options = _moved(arguments, options)
    return _module_to(module, *moved, **options)


def _wrap_on_cpu(model, module, device_ids=None, output_device=None, *arguments, **options):
    _wrap(model, module, None, None, *arguments, **options)


def _enter(stream):
    return contextlib.nullcontext()


def _current_device():
    return _CPU


def _nothing(what):
    """A function for each name: torch.compile knows them apart."""
    def nothing(device=None):
        pass
    return nothing


def emulate():
    """From now on, for the rest of the process."""
    torch.nn.Module.cuda, torch.nn.Module.to = _stay, _to
    DistributedDataParallel.__init__ = _wrap_on_cpu
    torch.Stream, torch.Event, torch.cuda.Stream = (type(name, (_Stream,), {})
                                                    for name in ("Stream", "Event", "CudaStream"))
    torch.cuda.stream, torch.cuda.current_device = _enter, _current_device
    for module in (torch.cuda, torch.accelerator):
        module.current_stream = lambda *_: _Stream()  # one for each: torch.compile knows them apart
    for module, names in ((torch.cuda, ("set_device", "synchronize")),
                          (torch.accelerator, ("set_device_index", "synchronize"))):
        for name in names:
            setattr(module, name, _nothing(name))
    _OnCpu().__enter__()
