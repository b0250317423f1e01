"""What a step of your own script would cost with each system, before it runs on many machines:
``python3 -m thinwire.plan --workers 16 --link 10Gbit:50us train.py --epochs 3``.

Runs the script as the only rank, by itself, until DistributedDataParallel has made some steps, and ends it.
Nothing is sent and no communication hook of the script's is used. Whatever the script writes in these steps
is written. Prints ``thinwire plan``'s table for the buckets and times that were seen.
"""
import argparse
import math
import os
import runpy
import statistics
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Set, Tuple, TypedDict, Union

from thinwire.interface import Costs, Report

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

_SETTLE = 3  # DDP groups its parameters anew after the first step, and caches are cold
_WORKERS = 4  # where --workers is not given
_LINK = "10Gbit:50us"
_NOISY = 0.2  # of the median step: what the middle half of the steps may be apart


class _Enough(BaseException):
    """Ends the script. No Exception, which a script may catch."""


#: A bucket's parameters: name, elements, leading dimension.
_Layout = List[Tuple[str, int, int]]


class _Step(TypedDict):
    """Seconds; ``ready`` and ``layouts`` by the index of a bucket."""

    ready: Dict[int, float]
    layouts: Dict[int, _Layout]
    backward_end: float
    rest: float


class _Profile(TypedDict):
    steps: int
    buckets: List[_Layout]
    ready: List[float]
    backward_end: float
    rest: float
    middle_half: Tuple[float, float]  # a quarter of the steps took less, and a quarter more


class _NoHandle:
    """What ``thinwire.register`` returns to the script, and what a ``comm_hook``'s state has:
    it synchronizes nothing. Whatever a ``Handle`` offers is here."""

    spec = "dense"
    step = 0

    def report(self) -> Report:
        sums = Costs(elements=0, raw_bytes=0, wire_bytes_sent=0, wire_bytes_received=0, messages_sent=0,
                     messages_received=0, frame_header_bytes=0, changes=0, formula_bytes=0, host_bytes_sent=0,
                     seconds_total=0.0, seconds_compress=0.0, seconds_communicate=0.0, seconds_decompress=0.0,
                     seconds_wait=0.0, finite=True)
        return {"spec": self.spec, "system": self.spec, "rank": 0, "world_size": 1, "step": 0,
                "engines": {"frames": "gloo", "device_sums": None}, "changes": [], "buckets": [],
                "last_step": sums, "total": sums.copy()}

    def explain(self) -> str:
        return "no step was made yet: this is a dry run, in which nothing is synchronized"

    def changes(self) -> List[Tuple[int, str]]:
        return []

    def state_dict(self, consolidate: bool = False) -> Dict[str, Any]:
        return {}

    def set(self, *_: object, **__: object) -> None:
        pass

    def scalars(self) -> Dict[str, float]:
        return {}

    load_state_dict = log_to = log_html = close = set


class Recorder:
    """When buckets of a DDP model become ready, and what is in them.
    Times are seconds from a step's beginning."""

    def __init__(self, model: "DistributedDataParallel", steps: int) -> None:
        self._names = {id(parameter): name for name, parameter in model.module.named_parameters()}
        self._wanted = _SETTLE + steps
        self._begun: Optional[float] = None  # of the step that is under way
        self._ready: Dict[int, float] = {}
        self._layouts: Dict[int, _Layout] = {}
        self._backward_end: Optional[float] = None
        self.steps: List[_Step] = []
        self.has_rows = False
        self.on_device = False
        self.types: Set[str] = set()

    def forward_begins(self) -> None:
        """The first one after a backward begins a step. Raises _Enough in its place after the last step."""
        now = time.perf_counter()
        if self._backward_end is not None and self._begun is not None:
            self.steps.append({"ready": dict(self._ready), "layouts": dict(self._layouts),
                               "backward_end": self._backward_end - self._begun,
                               "rest": now - self._backward_end})
            if len(self.steps) >= self._wanted:
                raise _Enough
        if self._begun is None or self._backward_end is not None:
            self._begun, self._backward_end = now, None
            self._ready.clear()
            self._layouts.clear()

    def bucket(self, bucket: "dist.GradBucket") -> "torch.futures.Future[torch.Tensor]":
        """DDP's hook: the mean over one rank is the gradient itself."""
        import torch

        gradient = bucket.buffer()
        if gradient.is_cuda:
            self.on_device = True
            # The gradient is there when it is computed, and not when it was asked for.
            torch.cuda.synchronize(gradient.device)
        if gradient.is_sparse:
            self.has_rows = True
        elif self._begun is not None:
            index = bucket.index()
            self.types.add(str(gradient.dtype).replace("torch.", ""))
            self._ready[index] = time.perf_counter() - self._begun
            self._layouts[index] = [
                (self._names.get(id(one), f"bucket {index}, parameter {place}"), one.numel(),
                 one.shape[0] if one.dim() > 0 else 1)
                for place, one in enumerate(bucket.parameters())
            ]
        if bucket.is_last():
            queue = torch.autograd.Variable._execution_engine.queue_callback
            queue(lambda: queue(self._backward_ends))
        devices: Optional[List[Union[int, str, torch.device]]] = None
        if gradient.is_cuda:
            devices = [gradient.device]
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        future.set_result(gradient)
        return future

    def _backward_ends(self) -> None:
        import torch

        if self.on_device:
            torch.cuda.synchronize()
        self._backward_end = time.perf_counter()

    def profile(self) -> _Profile:
        """Medians over the steps that count, those with the last one's buckets."""
        steps = self.steps[_SETTLE:]
        layouts = steps[-1]["layouts"]
        steps = [step for step in steps if step["layouts"] == layouts]
        order = sorted(layouts)
        backward_end = statistics.median(step["backward_end"] for step in steps)
        ready = [min(backward_end, statistics.median(step["ready"][index] for step in steps))
                 for index in order]
        return {
            "steps": len(steps),
            "buckets": [layouts[index] for index in order],
            "ready": [max(ready[: place + 1]) for place in range(len(ready))],
            "backward_end": backward_end,
            "rest": statistics.median(step["rest"] for step in steps),
            "middle_half": _middle_half([step["backward_end"] + step["rest"] for step in steps]),
        }


def _middle_half(values: List[float]) -> Tuple[float, float]:
    """The quartiles; of a single value that value."""
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


class Watch:
    """Puts a recorder on the first DDP model that the script wraps, and keeps hooks of others away."""

    def __init__(self, steps: int) -> None:
        self.recorder: Optional[Recorder] = None
        self.other_models = 0
        self._steps = steps

    def install(self) -> None:
        from torch.nn.parallel import DistributedDataParallel as DDP

        from thinwire import ddp
        from thinwire.lazy import LazyState

        watch = self
        replaced: Any = DDP  # methods of its
        wrap, forward, register_hook = replaced.__init__, replaced.forward, replaced.register_comm_hook

        def patched_init(model: DDP, *arguments: Any, **options: Any) -> None:
            wrap(model, *arguments, **options)
            if watch.recorder is not None:
                watch.other_models += 1
            else:
                watch.recorder = Recorder(model, watch._steps)
                model.__dict__["_thinwire_plan"] = watch.recorder
                register_hook(model, watch.recorder, lambda state, bucket: state.bucket(bucket))

        def patched_forward(model: DDP, *inputs: Any, **options: Any) -> Any:
            recorder = model.__dict__.get("_thinwire_plan")
            if recorder is not None:
                recorder.forward_begins()
            return forward(model, *inputs, **options)

        def no_hook(_model: DDP, state: object, *_: object, **__: object) -> None:
            if isinstance(state, LazyState):
                setattr(state, "handle", _NoHandle())

        replaced.__init__, replaced.forward = patched_init, patched_forward
        replaced.register_comm_hook = no_hook
        setattr(ddp, "register", lambda *_, **__: _NoHandle())
        _let_nobody_wait()


def _let_nobody_wait() -> None:
    """A script that says itself how many ranks there are would wait for the others for good."""
    import torch.distributed as dist

    begin: Any = dist.init_process_group

    def init_process_group(*arguments: Any, **options: Any) -> Any:
        if options.get("world_size", -1) not in (-1, 1):
            raise ValueError(
                f"init_process_group(world_size={options['world_size']}): this dry run is the only rank of "
                "its job. Leave world_size and rank out, so that they come from the environment as a launcher"
                " sets it"
            )
        return begin(*arguments, **options)

    setattr(dist, "init_process_group", init_process_group)


def _print_error(error: BaseException) -> None:
    """As Python does, from the script's own lines on."""
    own = {__file__, runpy.__file__, "<frozen runpy>"}
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in own:
        frames = frames.tb_next
    traceback.print_exception(type(error), error, frames)


def run_script(script: str, arguments: List[str], is_module: bool) -> bool:
    """As ``python3 SCRIPT ARGUMENTS`` would, as the only rank of a job.
    Returns False where it ended with an error, which has been printed."""
    from thinwire.launch import environments, free_port

    os.environ.update(environments(1, free_port())[0])
    # Whatever a launcher around this told its own ranks is not for this job.
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    sys.argv = [script, *arguments]
    sys.path[0] = "" if is_module else os.path.dirname(os.path.abspath(script))
    try:
        if is_module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except _Enough:
        pass
    except SystemExit as end:
        if end.code not in (None, 0):
            print(f"thinwire.plan: the script ended by itself: {end.code}"
                  + (f". Options of this command stand before {script}, and {', '.join(arguments)} went to it"
                     if arguments else ""), file=sys.stderr)
            return False
    except Exception as error:
        _print_error(error)
        print("thinwire.plan: that was the script. This is a dry run of one rank: handle.report() has only "
              "zeros, and handle.state_dict() is empty", file=sys.stderr)
        return False
    finally:
        sys.stdout.flush()
    return True


def _refusal(recorder: Optional[Recorder]) -> str:
    """Why there is nothing to plan; empty where there is."""
    if recorder is None:
        return ("the script wrapped no model in DistributedDataParallel in this process (a script that "
                "starts processes of its own is not seen)")
    if len(recorder.steps) <= _SETTLE:
        return (f"the script ended after {len(recorder.steps)} steps of DistributedDataParallel and another "
                f"forward, and {_SETTLE + 1} are needed at least: give it more to do")
    if not recorder.steps[-1]["layouts"]:
        return "no dense gradients were seen: rows of embeddings are not planned"
    return ""


def _candidates(options: argparse.Namespace) -> List[str]:
    return [spec for spec in options.sync.split(",") if spec]


def _describe(recorder: Recorder, profile: _Profile, stretch: float, ranks_per_host: int) -> List[str]:
    ready = profile["ready"]
    lines = [f"seen in {profile['steps']} step{'s' if profile['steps'] > 1 else ''} on this machine: "
             f"{len(ready)} buckets, ready {1e3 * ready[0]:.1f} to {1e3 * ready[-1]:.1f} ms after a "
             f"step's beginning; backward ends at {1e3 * profile['backward_end']:.1f} ms; "
             f"{1e3 * profile['rest']:.1f} ms until the next step"]
    low, high = profile["middle_half"]
    if high - low > _NOISY * (profile["backward_end"] + profile["rest"]):
        lines.append(f"noisy: half of these steps took from {1e3 * low:.1f} to {1e3 * high:.1f} ms. "
                     "Predictions are no better than that. Run it while nothing else computes here, or give "
                     "more --steps")
    if stretch > 1:
        lines.append("assumed: ranks of a host share its cores, "
                     f"so that a step computes {stretch:.2g} times as long")
    if ranks_per_host > 1 and not recorder.on_device:
        lines.append("not known: how much longer a step computes while a host's other ranks use the same "
                     "memory and caches. Codecs are timed so, the script ran alone")
    if recorder.has_rows:
        lines.append("left out: rows of sparse embeddings")
    if recorder.types - {"float32"}:
        lines.append(f"gradients are {', '.join(sorted(recorder.types))}: bytes are those of float32, "
                     "and plain DDP's are as many fewer")
    return lines


def _plan(recorder: Recorder, others: int, options: argparse.Namespace,
          threads: float) -> List[Tuple[str, str]]:
    from thinwire.extension import _C

    profile = recorder.profile()
    stretch = 1.0 if recorder.on_device else max(1.0, threads * options.ranks_per_host / options.cores)
    print(*_describe(recorder, profile, stretch, options.ranks_per_host), sep="\n")
    if options.assumed:
        print(f"assumed: {' and '.join(options.assumed)}")
    if others > 0:
        print(f"left out: {others} more model{'s' if others > 1 else ''}; this is the first one that the "
              "script wrapped in DistributedDataParallel")
    return _C.plan(
        buckets=profile["buckets"],
        ready=[stretch * one for one in profile["ready"]],
        backward_end=stretch * profile["backward_end"],
        rest=stretch * profile["rest"],
        threads=0.0 if recorder.on_device else threads,
        specs=_candidates(options),
        workers=options.workers,
        link=options.link,
        ranks_per_host=options.ranks_per_host,
        reduce_in_host=options.reduce_in_host,
        cores=options.cores,
        lanes=options.lanes,
    )


def _tell_of_misplaced(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Of this command's options that stand behind the script: they may be the script's, too."""
    own = {name for action in parser._actions for name in action.option_strings} - {"-h", "--help", "-m"}
    given = [name for name in (one.split("=")[0] for one in options.arguments) if name in own]
    if given:
        print(f"thinwire.plan: {', '.join(dict.fromkeys(given))} went to {options.script}: options of this "
              f"command have to stand before {options.script}", file=sys.stderr, flush=True)


def _parse() -> argparse.Namespace:
    def numbers(text: str) -> List[int]:
        values = [int(one) if one.isdecimal() else 0 for one in text.split(",")]
        if min(values) < 1:
            raise argparse.ArgumentTypeError(f"'{text}': whole numbers from 1 on are needed, separated by "
                                             "commas")
        return values

    def positive(text: str) -> int:
        if not text.isdecimal() or int(text) < 1:
            raise argparse.ArgumentTypeError(f"'{text}': a whole number from 1 on is needed")
        return int(text)

    parser = argparse.ArgumentParser(prog="python3 -m thinwire.plan", description=__doc__.split("\n\n", 1)[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--workers", type=numbers, default=argparse.SUPPRESS,
                        help=f"numbers of ranks, separated by commas (default: {_WORKERS})")
    parser.add_argument("--link", default=argparse.SUPPRESS,
                        help=f"each host's link, RATE:LATENCY, as 1Gbit:100us (default: {_LINK})")
    parser.add_argument("--sync", default="", help="candidates, the one that changes gradients least first; "
                        "those of auto if not given")
    parser.add_argument("--steps", type=positive, default=8,
                        help="steps that are measured, after the first three")
    parser.add_argument("--ranks-per-host", type=positive, default=1,
                        help="ranks that share a host's cores and link")
    parser.add_argument("--reduce-in-host", action="store_true",
                        help="these add up first and act as one worker, as with register's ranks_per_host")
    parser.add_argument("--cores", type=float, default=float(os.cpu_count() or 1), help="of a host")
    parser.add_argument("--lanes", type=positive, default=2, help="as register's")
    parser.add_argument("--json", help="write results to this file; - for standard output")
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is the name of a module")
    parser.add_argument("script", help="behind this command's own options")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own")
    if len(sys.argv) == 1:
        parser.error("a script is needed, as in python3 -m thinwire.plan train.py")
    options = parser.parse_args()
    options.assumed = []
    if "workers" not in options:
        options.workers = [_WORKERS]
        options.assumed.append(f"{_WORKERS} workers (--workers)")
    if "link" not in options:
        options.link = _LINK
        options.assumed.append(f"links of {_LINK} (--link)")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        parser.error("it runs the script as the only rank: start it without a launcher")
    if not options.module and not os.path.isfile(options.script):
        parser.error(f"there is no script {options.script}")
    if not 0 < options.cores < math.inf:
        parser.error(f"--cores {options.cores}: a number above 0 is needed")
    folder = os.path.dirname(os.path.abspath(options.json)) if options.json not in (None, "-") else "."
    if not os.access(folder, os.W_OK) or (options.json and os.path.isdir(options.json)):
        parser.error(f"--json {options.json}: no file can be written there")
    _tell_of_misplaced(parser, options)
    return options


def _refuse_bad_words(options: argparse.Namespace) -> None:
    """Before the script runs: ValueError for a link, candidates or numbers that cannot be planned."""
    from thinwire.extension import _C

    per_host = options.ranks_per_host
    for workers in options.workers:
        if workers > per_host and workers % per_host != 0:
            raise ValueError(f"{workers} workers do not fill hosts of {per_host} ranks each: give a multiple")
        if options.reduce_in_host and workers <= per_host:
            raise ValueError(f"{workers} workers are one host of {per_host} ranks, which sends nothing to "
                             "others: leave out --reduce-in-host")
    _C.plan(buckets=[[("tiny", 4, 2)]], ready=[0.0], backward_end=0.0, rest=0.0, threads=0.0,
            specs=_candidates(options), workers=[2 * per_host if options.reduce_in_host else 1],
            link=options.link, ranks_per_host=per_host if options.reduce_in_host else 1,
            reduce_in_host=options.reduce_in_host, cores=1.0, lanes=1)


def main() -> int:
    options = _parse()
    import torch

    try:
        _refuse_bad_words(options)
    except ValueError as error:
        print(f"thinwire.plan: {error}", file=sys.stderr)
        return 2
    if options.ranks_per_host > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # as launchers do
    watch = Watch(options.steps)
    watch.install()
    if not run_script(options.script, options.arguments, options.module):
        return 1
    refusal = _refusal(watch.recorder)
    if refusal or watch.recorder is None:
        print(f"thinwire.plan: {refusal}", file=sys.stderr)
        return 1
    texts = _plan(watch.recorder, watch.other_models, options, float(torch.get_num_threads()))
    for table, _ in texts:
        print("\n" + table, end="")
    rows = "[\n" + ",\n".join(rows for _, rows in texts) + "\n]\n"
    if options.json == "-":
        print(rows, end="")
    elif options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            file.write(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
