"""The scale of a GradScaler, read in backward without waiting for the device."""
from typing import Callable, Optional, Tuple

import torch

from thinwire.interface import GradScaler


class LossScale:
    """``read()`` gives the scale as a number.

    On a CUDA device that waits for the stream that is current. Within backward this would be all of forward,
    and of backward so far. The scale is from before forward, as a rule. So an event is recorded when forward
    begins, and a stream beside waits for that alone. Where the scale is of later than that, or nothing is
    known of forward, it is read on the current stream.
    """

    def __init__(self, scaler: GradScaler) -> None:
        self._scaler = scaler
        # The scale, its version, the event.
        self._at_forward: Optional[Tuple[torch.Tensor, int, torch.cuda.Event]] = None
        self._beside: Optional[torch.cuda.Stream] = None
        self._watched: Optional[torch.utils.hooks.RemovableHandle] = None

    def is_enabled(self) -> bool:
        return bool(getattr(self._scaler, "is_enabled", lambda: True)())

    def watch(self, model: torch.nn.Module) -> None:
        """Learns when forward begins, from now on."""
        self._watched = model.register_forward_pre_hook(self)

    def unwatch(self) -> None:
        if self._watched is not None:
            self._watched.remove()

    def __call__(self, module: torch.nn.Module, inputs: Tuple[object, ...]) -> None:
        self._at_forward = None
        scale = self._tensor()
        # A graph's event is none of other streams.
        if scale is None or torch.cuda.is_current_stream_capturing():
            return
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(scale.device))
        self._at_forward = (scale, scale._version, event)

    def read(self) -> float:
        noted, self._at_forward = self._at_forward, None
        scale = self._tensor()
        if noted is None or scale is not noted[0] or scale._version != noted[1]:
            return float(self._scaler.get_scale())
        if self._beside is None or self._beside.device != scale.device:
            self._beside = torch.cuda.Stream(device=scale.device)
        self._beside.wait_event(noted[2])
        with torch.cuda.stream(self._beside):
            return float(self._scaler.get_scale())

    def _tensor(self) -> Optional[torch.Tensor]:
        """torch's scalers have it from their first scale() on."""
        scale = getattr(self._scaler, "_scale", None)
        return scale if getattr(scale, "is_cuda", False) else None

    def __reduce__(self) -> Tuple[Callable[[], object], Tuple[()]]:
        # A copy of the model has no handle that would read the scale.
        return _ignored, ()


def _ignored() -> Callable[[torch.nn.Module, Tuple[object, ...]], None]:
    return _ignore


def _ignore(module: torch.nn.Module, inputs: Tuple[object, ...]) -> None:
    """What a copy of the model does when forward begins."""
