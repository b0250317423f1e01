"""Shards of parameters as 8-bit codes, on their way to all ranks before a layer computes."""
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

#: Elements that share a scale, and what the largest of them is coded as.
_BLOCK = 256
_LARGEST = 127


def encode(values: torch.Tensor) -> torch.Tensor:
    """Codes and scales of float32 values, as bytes:
    of each block its elements as multiples of a 127th of the largest magnitude."""
    blocks = torch.nn.functional.pad(values, (0, -values.numel() % _BLOCK)).view(-1, _BLOCK)
    scales = blocks.abs().amax(dim=1, keepdim=True) / _LARGEST
    codes = (blocks / scales).nan_to_num_(0, 0, 0).round_().clamp_(-_LARGEST, _LARGEST).to(torch.int8)
    return torch.cat([codes.view(-1)[: values.numel()].view(torch.uint8), scales.view(-1).view(torch.uint8)])


def encoded_bytes(elements: int) -> int:
    return elements + 4 * -(-elements // _BLOCK)


def decode(message: torch.Tensor, elements: int) -> torch.Tensor:
    """The values of a message of ``encode``, the same bits on every rank.
    Where a value was inf or NaN, so is its block."""
    codes = torch.nn.functional.pad(message[:elements].view(torch.int8).float(),
                                    (0, -elements % _BLOCK)).view(-1, _BLOCK)
    # They need not lie at a multiple of 4 bytes in the message, so they are copied.
    scales = message[elements:].clone().view(torch.float32)
    return (codes * scales.view(-1, 1)).view(-1)[:elements]


class EightBitGather:
    """torch's all-gather of one unit's parameters, for ``set_custom_all_gather``.

    Each rank sends codes of its shard + rest, and all ranks, it too, compute with what these decode to. The
    rest is what the codes of the steps before left out. It changes with a step that counts, and not from one
    gather of a step to the next: so backward has the parameters of forward.
    """

    def __init__(self, parts: List[Tuple[str, torch.Tensor]]) -> None:
        self._names = [name for name, _ in parts]
        self._sizes = [part.numel() for _, part in parts]
        self._rest: Optional[torch.Tensor] = None
        self._next: Optional[torch.Tensor] = None
        self._exact = False
        self.gathers = 0
        self.sent_bytes = 0
        self.raw_bytes = 0

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup,
                 async_op: bool = False) -> "Optional[dist.Work]":
        elements, ranks = input_tensor.numel(), group.size()
        if not self._exact and not input_tensor.is_floating_point():
            raise RuntimeError(
                f"parameters {', '.join(self._names)} are gathered as bytes, since they are of several "
                "types: all_gather='exact', or a fully_shard of its own for those of each type"
            )
        # Shards of what was gathered before (reshard_after_forward=RANKS) are other parts,
        # of values that are rounded already.
        if self._exact or elements != sum(self._sizes):
            work: "Optional[dist.Work]" = dist.all_gather_into_tensor(
                output_tensor, input_tensor, group=group, async_op=async_op
            )
            return work
        own = input_tensor.to(torch.float32, copy=True)  # the input is a part of the output
        if self._rest is not None:
            self._rest = self._rest.to(own.device)
            own = own + self._rest
        message = encode(own)
        messages = message.new_empty(ranks * message.numel())
        dist.all_gather_into_tensor(messages, message, group=group)
        for into, one in zip(output_tensor.view(ranks, elements), messages.view(ranks, -1)):
            into.copy_(decode(one, elements))
        self._next = (own - output_tensor.view(ranks, elements)[group.rank()].float()).nan_to_num_(0, 0, 0)
        self.gathers += 1
        self.sent_bytes += (ranks - 1) * message.numel()
        self.raw_bytes += (ranks - 1) * input_tensor.numel() * input_tensor.element_size()
        return None

    def step_counts(self) -> None:
        if self._next is not None:
            self._rest, self._next = self._next, None

    def close(self) -> None:
        """From now on parameters are gathered as they are."""
        self._exact = True

    def state(self) -> Dict[str, torch.Tensor]:
        """The rest of each parameter's shard, padding included."""
        if self._rest is None:
            return {}
        return {name: part.cpu().clone() for name, part in zip(self._names, self._rest.split(self._sizes))}

    def require(self, rests: Mapping[str, torch.Tensor]) -> None:
        """ValueError for a rest that is none of the shard of its name."""
        for name, size in zip(self._names, self._sizes):
            rest = rests.get(name)
            if rest is None:
                continue
            if (not isinstance(rest, torch.Tensor) or rest.dtype != torch.float32
                    or tuple(rest.shape) != (size,) or not bool(rest.isfinite().all())):
                raise ValueError(f"the state's all_gather entry of {name!r} is not {size} finite float32 "
                                 "values: it was not saved by this handle's state_dict()")

    def load(self, rests: Mapping[str, torch.Tensor]) -> None:
        """What ``state`` gave; parameters that it does not name begin without a rest."""
        self._next = None
        parts = [rests.get(name, torch.zeros(size)) for name, size in zip(self._names, self._sizes)]
        self._rest = torch.cat(parts) if any(name in rests for name in self._names) else None
