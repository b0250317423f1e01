"""A loss scale for trainings on the CPU."""

import torch

GROWTH_INTERVAL = 20  # steps that count, to the next larger scale
OVERFLOWS_EVERY = 16  # steps; of these the last one


def make_scaler():
    """torch's own where it works on the CPU; older ones disable it there."""
    on_cpu = getattr(torch.amp, "GradScaler", None)
    return Scaler() if on_cpu is None else on_cpu("cpu", growth_interval=GROWTH_INTERVAL)


def overflows(step: int) -> bool:
    return step % OVERFLOWS_EVERY == OVERFLOWS_EVERY - 1


class Scaler:
    """Stands in for torch.cuda.amp.GradScaler of one optimizer: the same methods, which do the same."""

    def __init__(self):
        self._scale = 2.0**16
        self._counted = 0  # steps since the scale was last changed
        self._finite = None  # whether the gradients are; None: they are still scaled

    def get_scale(self) -> float:
        return self._scale

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * self._scale

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        self._finite = True
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                values = parameter.grad._values() if parameter.grad.is_sparse else parameter.grad
                values.mul_(1 / self._scale)
                self._finite = self._finite and bool(torch.isfinite(values).all())

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._finite is None:
            self.unscale_(optimizer)
        if self._finite:
            optimizer.step()

    def update(self) -> None:
        self._counted += 1
        if not self._finite:
            self._scale, self._counted = self._scale / 2, 0
        elif self._counted == GROWTH_INTERVAL:
            self._scale, self._counted = self._scale * 2, 0
        self._finite = None
