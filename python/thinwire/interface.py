"""Types of what Thinwire takes and returns. Nothing here does anything; torch is not loaded for it."""
from typing import TYPE_CHECKING, List, Optional, Protocol, Tuple, TypedDict

if TYPE_CHECKING:
    import torch


class GradScaler(Protocol):
    """torch's, or a framework's own."""

    def get_scale(self) -> float: ...


class Writer(Protocol):
    """TensorBoard's SummaryWriter, or what has its method."""

    def add_scalar(self, tag: str, value: float, step: int, /) -> object: ...


class CommonOptions(TypedDict, total=False):
    """Of ``register``, and of whatever calls it: those that are the same everywhere.
    ``register`` explains them."""

    seed: int
    threads: int
    lanes: int
    deadline_seconds: Optional[float]
    step_limit_seconds: Optional[float]
    grad_scaler: Optional[GradScaler]
    compress_on: str
    check_replicas_every: int
    checked_sums: bool
    ranks_per_host: int


class Options(CommonOptions, total=False):
    """Of ``register``."""

    optimizer: Optional["torch.optim.Optimizer"]


class AdapterOptions(CommonOptions, total=False):
    """Of what registers for a framework: ``optimizer`` may be the framework's wrapper around torch's."""

    optimizer: object
    require_state: bool


class SystemOption(TypedDict):
    """An option of a system in a spec: ``SYSTEM:NAME=VALUE``."""

    name: str
    default: str
    meaning: str


class SystemInfo(TypedDict):
    """A system, baseline or stage; see ``thinwire.systems``."""

    name: str
    summary: str
    kind: str
    paper: str
    formula: str
    options: List[SystemOption]


class Costs(TypedDict):
    """Of this rank: bytes that crossed its network interface, and seconds of lanes' threads."""

    elements: int
    raw_bytes: int
    wire_bytes_sent: int
    wire_bytes_received: int
    messages_sent: int
    messages_received: int
    frame_header_bytes: int
    changes: int
    formula_bytes: int
    host_bytes_sent: int
    seconds_total: float
    seconds_compress: float
    seconds_communicate: float
    seconds_decompress: float
    seconds_wait: float
    finite: bool


class BucketReport(Costs):
    """Of one DDP bucket in the last step. None: not measured, or the system has no such thing."""

    bucket: int
    step: int
    density_in: Optional[float]
    density_out: Optional[float]
    imbalance_push: Optional[float]
    imbalance_pull: Optional[float]
    relative_error: Optional[float]
    cosine: Optional[float]
    residual_norm: Optional[float]
    residual_deviation: Optional[float]
    scheme: Optional[str]
    scale: Optional[float]
    parameters: List[str]
    compressed_on: str


class Engines(TypedDict):
    """What moves frames, and what sums gradients on devices; None where those go through the host."""

    frames: str
    device_sums: Optional[str]


class EngineReport(TypedDict):
    """Buckets of the last step, sums over them, and sums over all steps."""

    buckets: List[BucketReport]
    last_step: Costs
    total: Costs


class Report(EngineReport):
    """What ``Handle.report`` returns. docs/pytorch.md says how to read it."""

    spec: str
    system: str
    rank: int
    world_size: int
    step: int
    engines: Engines
    changes: List[Tuple[int, str]]
