"""What happens in one run of the campaign, drawn from the campaign's seed and the run's number alone."""
import dataclasses
import os
import random
import re
from typing import Dict, List, Optional

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = 10

#: Where each kind of job can be hit. "load" is in a job that resumes.
PLACES = {
    "ddp": ["register", "step", "save", "set", "load", "close"],
    "gloo": ["start", "step", "save", "load", "close"],
    "mpi": ["start", "step", "save", "load", "close"],
    "train": ["epoch", "save"],
}
#: What `thinwire train` is run with, which writes and reads its own checkpoints;
#: hit in its second epoch or as it saves that.
TRAINED = ["dense", "casq:interval=3", "marsit:full_every=3", "top_k:ratio=0.05+zen", "sketched_sgd",
           "power_sgd", "ef_signsgd"]
EPOCHS = 3
#: Faults that the job must survive by itself, to the bit.
SURVIVED = {"pause", "outage", "slow", "loss", "clock", "overflow"}
#: Faults that are made on links between network namespaces.
ON_LINKS = {"cut", "outage", "slow"}
#: Where a fault can be made, of those of its kind; all where nothing stands.
WHERE = {
    "exception": ["step", "save"],
    "disk": ["save"],
    "flip": ["step"],
    "overflow": ["step"],
    "memory": ["step", "save"],
    "cut": ["register", "start", "step", "save"],
    "outage": ["step"],
    "slow": ["step"],
    "loss": ["step"],
    "clock": ["register", "start", "step", "save"],
    "stop": ["register", "start", "step", "save", "set", "load"],
    "pause": ["register", "start", "step", "save", "set", "load"],
    "away": ["register", "start", "step", "save", "set", "load"],
}
#: How often each comes up among the runs. "pause" is shorter than the deadline, "away" is longer. "overflow"
#: is NaN in one bucket's gradient, for which the step is left out.
WEIGHTS = {
    "kill": 22, "stop": 8, "pause": 8, "away": 5, "cut": 8, "outage": 8, "slow": 6, "loss": 7, "flip": 9,
    "exception": 6, "memory": 6, "disk": 5, "clock": 6, "overflow": 6,
}
#: MPI's ranks are on one host, and its messages pass through no socket.
#: What `thinwire train` does to itself is not ours.
NOT_OF = {
    "mpi": {"cut", "outage", "slow", "loss"},
    "train": {"loss", "flip", "exception", "memory", "clock", "overflow"},
}


#: How a job under DDP trains: a backward a step; two, of which the first one is not synchronized; or with
#: parameters that no rank uses in some steps, and one rank alone does not use in others; or with a buffer,
#: which DDP sends by its own group in every forward; or with messages that connections cannot hold.
WAYS = ["plain", "accumulate", "unused", "buffers", "large"]
#: Faults for which that group's own limit is too long, or which it would have to find.
NOT_WITH_BUFFERS = {"away", "cut", "outage", "slow", "loss", "flip"}
#: Faults with which large messages would take too long.
NOT_WITH_LARGE = {"slow", "loss"}
#: How often a job has a deadline as scripts have it, much longer than all other times that ranks wait for.
#: Its fault comes in the last exchange, where ranks that are done leave while others wait.
#: Not with buffers: there a wait may last for twice the deadline.
PATIENT_DEADLINE = 30.0
PATIENT = {"kill": 0.1, "stop": 0.3, "pause": 0.3}


@dataclasses.dataclass
class Plan:
    """One run. ``amount`` is of the fault: bytes, seconds, bits a second, or per mille;
    ``hold`` is how long it lasts, in seconds; ``way`` is one of WAYS; ``checked``: sums are."""

    seed: int
    number: int
    kind: str
    spec: str
    world: int
    fault: str
    victim: int
    place: str
    at_step: int
    at_bucket: int
    delay_us: int
    amount: int
    hold: float
    every: int
    deadline: float
    lanes: int
    set_spec: Optional[str]
    way: str = "plain"
    checked: bool = False

    def describe(self) -> str:
        where = (f"{self.place}, step {self.at_step}, bucket {self.at_bucket}" if self.place == "step"
                 else self.place)
        return f"{self.kind} {self.spec} on {self.world} ranks: {self.fault} of rank {self.victim} in {where}"

    def words(self) -> Dict[str, object]:
        return dataclasses.asdict(self)


def contract_specs() -> List[str]:
    """Every spec that the library's contract is tested with on the CPU."""
    path = os.path.join(HERE, "..", "..", "src", "session", "contract_specs.h")
    with open(path, encoding="utf-8") as header:
        lines = re.findall(r'^    \{"([^"]+)"(?:, On::(\w+))?\},', header.read(), re.MULTILINE)
    specs = [spec for spec, on in lines if on != "device"]
    if not specs:
        raise ValueError(f"{path} has no line of the form '    {{\"spec\"}},'; change this reader too")
    return specs


def holds_variance(spec: str) -> bool:
    """Whether the system has to be given an Adam."""
    return re.search(r"one_adam|one_bit_adam", spec) is not None


def refuses_scaler(spec: str) -> bool:
    """Whether register refuses the spec with a GradScaler, which would divide its signs by the scale."""
    return "demo" in spec and "sign=off" not in spec


def _amount(fault: str, kind: str, draw: random.Random) -> int:
    return {
        "memory": lambda: draw.choice([0, 1 << 16, 1 << 20, 4 << 20]),
        "disk": lambda: draw.choice([0, 100, 4096]),
        "flip": lambda: draw.randrange(0, 3000),
        "clock": lambda: draw.choice([-86400, -3600, -10, 10, 3600, 86400]),
        # The model of `thinwire train` is larger.
        "slow": lambda: draw.choice([300_000, 500_000, 1_000_000]) * (50 if kind == "train" else 1),
        "loss": lambda: draw.choice([10, 30, 60]),
    }.get(fault, lambda: 0)()


def _hold(fault: str, deadline: float, draw: random.Random) -> float:
    if fault in ("pause", "outage"):
        return deadline * draw.uniform(0.1, 0.4)
    return deadline * draw.uniform(2.0, 2.5) if fault == "away" else 0.0


def _set_after(specs: List[str], index: int) -> str:
    """What a job is set to in mid-run."""
    return specs[(index * 7 + 3) % len(specs)]


def draw_plan(seed: int, number: int, deadline: float, kinds: List[str], faults: List[str]) -> Plan:
    """The run of this number. The same arguments give the same plan."""
    draw = random.Random(f"{seed}/{number}")
    kind = draw.choices(kinds, [{"ddp": 10, "gloo": 8, "mpi": 4, "train": 2}[one] for one in kinds])[0]
    possible = [fault for fault in faults if fault not in NOT_OF.get(kind, ())]
    fault = draw.choices(possible, [WEIGHTS[fault] for fault in possible])[0]
    specs = TRAINED if kind == "train" else contract_specs()
    # Each system with one number of ranks for each seed, so that undisturbed runs serve many others.
    index = draw.randrange(len(specs))
    while (kind == "ddp" and fault == "overflow"
           and any(map(refuses_scaler, (specs[index], _set_after(specs, index))))):
        index = draw.randrange(len(specs))
    world = 3 + (index + seed) % 3
    places = [place for place in PLACES[kind] if place in WHERE.get(fault, PLACES[kind])]
    if kind == "train":
        places = PLACES["train"] if fault != "disk" else ["save"]
    place = draw.choice(places + ["step"] * (2 if "step" in places else 0))
    every = draw.randint(1, 3)
    at_step = draw.randint(0, STEPS - 1)
    if place == "save":
        at_step = every * draw.randint(1, STEPS // every) - 1
    if place == "load":
        at_step = draw.randint(every, STEPS - 1)
    if kind == "ddp" and at_step == 0 and fault in ("away", "cut"):
        # Before that step DDP sends its new buckets by its own group, whose waits have its own, long limit.
        at_step = 1
    if kind == "ddp" and fault == "overflow" and holds_variance(specs[index]):
        # A step that is left out is none of Adam's, which needs one before its variance is frozen.
        at_step = max(at_step, 1)
    has_set = kind == "ddp" and (place == "set" or draw.random() < 0.2)
    delay_us = draw.randrange(600_000) if place == "epoch" else draw.choice([0, 0, 200, 1000, 3000])
    plan = Plan(
        seed=seed, number=number, kind=kind, spec=specs[index], world=world, fault=fault,
        victim=draw.randrange(world), place=place, at_step=at_step,
        at_bucket=draw.randrange(4 if kind == "ddp" else 3), delay_us=delay_us,
        amount=_amount(fault, kind, draw), hold=_hold(fault, deadline, draw), every=every, deadline=deadline,
        lanes=draw.choice([1, 2, 2, 3]),
        set_spec=_set_after(specs, index) if has_set else None,
    )
    if kind == "ddp":
        plan.way = draw.choice(WAYS)
        if fault in NOT_WITH_BUFFERS and plan.way == "buffers":
            plan.way = "plain"
        if fault in NOT_WITH_LARGE and plan.way == "large":
            plan.way = "plain"
        if fault == "overflow" and plan.way == "unused":
            plan.way = "accumulate"  # the bad gradient may be that of a parameter which nobody uses
    plan.checked = kind in ("ddp", "gloo") and draw.random() < 0.4
    if kind in ("ddp", "gloo") and plan.way != "buffers" and draw.random() < PATIENT.get(fault, 0):
        plan.deadline = PATIENT_DEADLINE
        plan.place, plan.at_step, plan.at_bucket = "step", STEPS - 1, 3 if kind == "ddp" else 2
        plan.delay_us = draw.choice([0, 200, 500, 1000, 3000])
        if fault == "pause":
            plan.hold = PATIENT_DEADLINE * draw.uniform(0.2, 0.9)
    return plan


def short_plans(seed: int, deadline: float) -> List[Plan]:
    """Every fault once on each kind of job that knows it, each the first one drawn that has it."""
    kinds = {"kill": ["ddp", "gloo", "mpi", "train"], "stop": ["ddp", "mpi"], "exception": ["ddp", "gloo"],
             "flip": ["ddp", "gloo", "mpi"]}
    plans = []
    for index, fault in enumerate(WEIGHTS):
        for kind in kinds.get(fault, [["ddp", "gloo"][index % 2]]):
            plans.append(draw_plan(seed, 1000 * (len(plans) + 1), deadline, [kind], [fault]))
    return plans
