"""What ``fully_shard`` returns: a handle whose ranks hold the same shard, and what it does in a backward."""
import functools
import weakref
from typing import (TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Set,
                    Tuple, Union, cast)

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from thinwire import shards
from thinwire import state as saved_state
from thinwire.handle import Handle
from thinwire.interface import Report
from thinwire.largest import Largest
from thinwire.units import Sharded, Unit, units_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh  # which older versions of torch have not

# Keeps handles alive as long as their models. So nothing in a handle holds its model.
sharded_models: "weakref.WeakKeyDictionary[nn.Module, ShardedHandle]" = weakref.WeakKeyDictionary()

# What the ranks of a shard group tell each other of a step; the worst one counts.
_GOOD, _NOT_FINITE, _FAILED = 0, 1, 2

# More units than any model has, and a later step than any.
_ALL_UNITS = _NO_STEP = 2**31 - 1

# A rank that ends lives so long for what it tells its shard group.
_PATIENCE_SECONDS = 2.0


def _task() -> int:
    """Tells one backward from another."""
    # Newer than the oldest torch that has DDP's hooks.
    return cast(int, getattr(torch._C, "_current_graph_task_id")())


class _Reduction:
    """A flat gradient that the engine makes the mean."""

    def __init__(self, unit: Unit, mean: torch.Tensor,
                 future: "torch.futures.Future[torch.Tensor]") -> None:
        self.unit = unit
        self.mean = mean
        self._future: Optional[torch.futures.Future[torch.Tensor]] = future

    def has_come(self) -> bool:
        """The whole mean."""
        return self._future is not None and bool(self._future.done())

    def wait(self) -> None:
        """Raises what the engine says where there is no mean."""
        if self._future is not None:
            self._future.wait()

    def replace(self, mean: torch.Tensor) -> None:
        """By a part of it; the rest is let go."""
        self.mean, self._future = mean, None


class Backward:
    """What one backward has handed to the engine."""

    def __init__(self) -> None:
        self.error: Optional[BaseException] = None
        self.is_last = False  # the engine takes no more steps, so nobody needs to be asked
        self.task = _task()
        self.under_way: List[_Reduction] = []
        self.seen: Set[str] = set()
        self.last_place = -1
        self.streams: Set[torch.cuda.Stream] = set()


class ShardedReport(Report):
    """What ``ShardedHandle.report`` returns."""

    shard: int
    shards: int


class ShardedHandle(Handle):
    """What ``fully_shard`` returns: as ``register``'s handle, of the ranks that hold the same shard.

    ``report()`` has ``shard`` and ``shards`` beside ``rank`` and ``world_size``, which are those of the
    replicas, and its bytes are those between replicas.
    ``step`` counts backward passes whose gradients were reduced.
    """

    # Weights may come after the model was sharded.
    _begins_equal = False
    _has_whole_gradients = False

    _replicas_group: dist.ProcessGroup
    _shard_group: dist.ProcessGroup

    def __init__(self, model: nn.Module, mesh: "DeviceMesh", spec: str, options: Mapping[str, Any]) -> None:
        self._units = self._units_of(model, mesh)
        self._take_mesh(mesh)
        self._backward: Optional[Backward] = None
        self._watch: Optional[RemovableHandle] = None
        self._stopped: Optional[Largest] = None  # of the last step
        self._deadline: float = options["deadline_seconds"]
        self._step_is_agreed = False  # since the state was loaded: that all shards are at the same one
        self._places: Dict[str, int] = {}  # of units among the engine's buckets
        trained = [part for unit in self._units for part in unit.trained_parts()]
        sharded: Any = model  # DDP's handle asks it for what the methods below give
        super().__init__(sharded, cast(List[Tuple[str, nn.Parameter]], trained), spec, **options)

    # --- What a handle of one dimension has in place of these -----------------------------------------------

    def _units_of(self, model: nn.Module, mesh: "DeviceMesh") -> Sequence[Unit]:
        return units_of(model, Unit)

    def _take_mesh(self, mesh: "DeviceMesh") -> None:
        self._replicas_group, self._shard_group = mesh.get_group(0), mesh.get_group(1)
        self._shard, self._shards = mesh.get_local_rank(1), mesh.size(1)

    def _hook(self, unit: Unit) -> None:
        """Has torch call ``_reduce`` with the unit's gradients."""
        module: Sharded = unit.module()
        module.set_all_reduce_hook(functools.partial(_reduce, weakref.ref(self), unit))

    def _step_counts(self) -> None:
        """A step has ended, and was not undone."""

    def _to_engine(self, gradient: torch.Tensor) -> torch.Tensor:
        # A mean over replicas on its way must not be seen by torch,
        # which casts and accumulates what it has at once.
        return gradient.clone()

    # --- What DDP's handle asks -----------------------------------------------------------------------------

    def _group_of(self, model: nn.Module) -> dist.ProcessGroup:
        return self._replicas_group

    def _sums_used_map(self, model: nn.Module) -> bool:
        return False  # that is DDP's

    def _in_buckets(self, model: nn.Module) -> Iterable[Tuple[str, torch.Tensor]]:
        return [part for unit in self._units for part in unit.parts()]

    def _replicated(self, model: nn.Module) -> Callable[[], Sequence[torch.Tensor]]:
        units = self._units

        def shards_of_rank() -> List[torch.Tensor]:
            with torch.no_grad():
                return [parameter.to_local() for unit in units for parameter in unit.parameters()]

        return shards_of_rank

    def _take_hook(self, model: nn.Module) -> None:
        sharded_models[model] = self
        own = weakref.ref(self)
        self._watch = model.register_forward_pre_hook(functools.partial(_forward_begins, own))
        for unit in self._units:
            self._hook(unit)

    # --- A backward -----------------------------------------------------------------------------------------

    def _has_begun(self) -> bool:
        return self._backward is not None

    def _reduce(self, unit: Unit, gradient: torch.Tensor) -> None:
        """torch's hook: ``gradient`` is this rank's shard of the mean over its shard group, as a flat vector.

        torch gives it to the parameters as soon as the hook returns. So it becomes zero, and a copy of it
        goes to the engine, whose mean is added at the end of backward. Errors wait until then: a rank that
        left backward here would let its shard group wait.
        """
        if self._is_closed:
            raise RuntimeError("the handle of this sharded model is closed: thinwire.fully_shard(model, "
                               "mesh, spec) makes another")
        if self._backward is not None and self._backward.task != _task():
            self._give_up()  # it raised, and no forward of the whole model came between
        if self._backward is None:
            self._begin_backward()
        backward = self._backward
        assert backward is not None
        if backward.error is None:
            try:
                self._submit(backward, unit, gradient)
            except Exception as error:
                backward.error = error

    def _begin_backward(self) -> None:
        backward = Backward()
        try:
            torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)
        except RuntimeError:
            raise RuntimeError(
                "gradients are reduced outside of backward: leave out set_manual_backward_finalization, "
                "so that torch reduces them within"
            ) from None
        self._backward = backward
        self._try_to_begin_step()
        if self._refusal is not None:
            backward.error = RuntimeError(self._refusal)
            backward.is_last = not self._refused_by_all

    def _submit(self, backward: Backward, unit: Unit, gradient: torch.Tensor) -> None:
        if unit.name in backward.seen:
            raise RuntimeError(
                f"gradients of {unit.name} were reduced twice in one backward, as modules that were sharded "
                "as one were called one by one: give each a fully_shard of its own"
            )
        parts = unit.take(gradient)
        own = self._to_engine(gradient)
        on_cpu = own.device.type == "cpu"
        devices: Optional[List[Union[int, str, torch.device]]] = None if on_cpu else [own.device]
        if devices:
            backward.streams.add(torch.cuda.current_stream(own.device))
        future: "torch.futures.Future[torch.Tensor]" = torch.futures.Future(devices=devices)
        # The engine takes buckets in ascending order.
        # A unit keeps its place while backward takes the same way.
        place = self._places.get(unit.name, -1)
        if place <= backward.last_place:
            place = backward.last_place + 1
        self._places[unit.name] = backward.last_place = place
        backward.seen.add(unit.name)
        backward.under_way.append(_Reduction(unit, own, future))
        self._engine.submit(place, False, True, own, parts, future)

    def _end_backward(self) -> None:
        """Called when backward is done: ends the step, on all ranks of a shard group in the same way."""
        backward, self._backward = self._backward, None
        if backward is None:
            return
        model: Sharded = self._model()
        if model._get_fsdp_state()._state_ctx.post_backward_final_callback_queued:
            backward.error = backward.error or RuntimeError(
                "a backward within backward has ended, as activation checkpointing makes them: "
                "give checkpoint use_reentrant=False"
            )
        try:
            if backward.error is None:
                # Before ranks tell each other whether they have stopped, so that all hear of it.
                for one in backward.under_way:
                    one.unit.require_gradients()
        except Exception as error:
            backward.error = error
        try:
            self._await_means(backward)
        except Exception as error:
            backward.error = backward.error or error
        with torch.no_grad():
            verdict, whose = self._agree(backward)
            if verdict == _GOOD:
                self._give_means(backward)
                self._engine.end_backward([])
                self._step_counts()
                if (len(set(self._places.values())) < len(self._places)
                    or max(self._places.values()) >= 2 * len(self._units)):
                    self._places = {}  # the ways of backward differ: counted anew
                return
            # The engine undoes a step that was not ended when the next one begins, with its first bucket.
            self._places = {}
            if not backward.under_way:
                # Other shards' engines have begun it, or may have.
                self._engine.pass_over_step()
            if verdict == _NOT_FINITE:
                for one in backward.under_way:
                    one.mean.fill_(float("nan"))
                self._give_means(backward)
                return
        if backward.error is not None:
            raise backward.error
        raise RuntimeError(f"gradients of this step could not be synchronized on rank {whose}, which holds "
                           "another shard and says why; the step is undone")

    def _await_means(self, backward: Backward) -> None:
        if not self._stopped_alike(backward) and backward.error is not None:
            # Others wait for what this rank does not send.
            self._engine.fail(_first_line(backward.error))
            return
        self._engine.last_bucket_was_submitted()
        for one in backward.under_way:
            one.wait()
        if backward.error is None:
            self._require_nobody_stopped()

    def _stopped_alike(self, backward: Backward) -> bool:
        """Whether all ranks that exchange gradients have stopped at the same unit. Then nobody waits for
        anybody, and the next step can be a good one. A rank that has stopped waits for the answer: the others
        say that they have not, and ask once they have their means."""
        count, whose = ((_ALL_UNITS, -1) if backward.error is None
                        else (len(backward.under_way), dist.get_rank()))
        self._stopped = None
        try:
            self._stopped = self._largest((count, -count, whose), self._replicas_group)
            if backward.error is None or backward.is_last or not self._stopped.wait_for(self._deadline):
                return False
            most, least, _ = self._stopped.wait()
        except RuntimeError:  # a rank is gone: the engine says which
            return False
        return most == -least

    def _require_nobody_stopped(self) -> None:
        """A rank that stopped after its last gradient has sent all that others wait for,
        and undoes the step nevertheless."""
        if self._stopped is None or not self._stopped.wait_for(self._deadline):
            return
        try:
            _, _, whose = self._stopped.wait()
        except RuntimeError:  # a rank is gone after its last gradient: in the next step the engine says which
            return
        if whose >= 0:
            raise RuntimeError(f"gradients of this step could not be synchronized on rank {whose}, "
                               "which says why; the step is undone")

    def _agree(self, backward: Backward) -> Tuple[int, int]:
        """The verdict of the worst rank of the shard group, and which one that is."""
        finite = not backward.under_way or self._engine.is_finite()
        own = _FAILED if backward.error is not None else _GOOD if finite else _NOT_FINITE
        verdict, whose, steps = self._worst(own)
        if steps is not None:
            first, last = steps
            self._step_is_agreed = first >= last
            if first < last and backward.error is None:
                verdict = _FAILED
                backward.error = RuntimeError(
                    f"this rank's shard is at step {self._engine.step()}, and those of its shard group are "
                    f"at steps from {first} to {last}: load states that all ranks saved at the same moment"
                )
        return verdict, whose

    def _worst(self, own: int) -> Tuple[int, int, Optional[Tuple[int, int]]]:
        """Of what the ranks of the shard group say, and a rank that says it.
        A step counts for all shards or for none.

        After a load, the first and the last step at which a rank is, too. A load sends nothing,
        and replicas compare their steps alone.
        """
        step = (-1, -_NO_STEP)
        if not self._step_is_agreed:
            step = (self._engine.step(), -self._engine.step())
        try:
            verdicts = self._largest((own * self._shards + self._shard, *step), self._shard_group)
            if own == _FAILED:
                # Nothing is worse. A rank that is gone is not waited for, but others shall hear this one.
                verdicts.wait_for(_PATIENCE_SECONDS)
                return own, dist.get_rank(), None
            worst, last, first = verdicts.wait()
        except RuntimeError:
            if own == _FAILED:  # the engine's error names who is gone
                return own, dist.get_rank(), None
            raise
        verdict, shard = divmod(worst, self._shards)
        return verdict, dist.get_process_group_ranks(self._shard_group)[shard], (-first, last)

    def _largest(self, own: Sequence[int], group: Optional[dist.ProcessGroup] = None) -> Largest:
        return Largest(own, group or self._replicas_group, self._units[0].parts()[0][1].device)

    def _give_means(self, backward: Backward) -> None:
        try:
            for stream in backward.streams:  # on which torch has written the gradients
                torch.cuda.current_stream(stream.device).wait_stream(stream)
            for one in backward.under_way:
                one.unit.deliver(one.mean)
        except Exception as error:
            # Others have the means by now. They shall not take another step with this rank.
            self._engine.fail(_first_line(error))
            raise

    def _give_up(self) -> None:
        """A backward that raised has not come to its end."""
        self._backward = None
        self._places = {}

    # --- Report and state -----------------------------------------------------------------------------------

    def report(self) -> "ShardedReport":
        return {**super().report(), "shard": self._shard, "shards": self._shards}

    def state_dict(self, consolidate: bool = False) -> Dict[str, Any]:
        """What training must not lose at a restart, of this rank's shard:
        residuals and the systems' own state, and the step.

        Each rank has its own: save all of them. With ``consolidate=True`` (collective) all replicas of a
        shard get the same one, with sums over replicas. ``torch.distributed.checkpoint`` saves and loads the
        handle itself, each rank its own state, without a message.
        """
        asked = saved_state.asked_by_dcp()
        return self._for_dcp(asked) if asked else super().state_dict(consolidate)

    def _own_state(self) -> shards.ShardedState:
        return {**super()._own_state(), "shard": self._shard, "shards": self._shards}

    def _for_dcp(self, asked: str) -> Dict[str, Any]:
        name = shards.entry_name(self._rank, self._world_size, self._shard, self._shards)
        return {name: b"" if asked == "load" else shards.pack(self._own_state())}

    def load_state_dict(self, state: Union[Mapping[str, Any], Sequence[Mapping[str, Any]]],
                        strict: bool = True) -> None:
        """Takes over what ``state_dict`` gave, on all ranks before the same step.

        state: this rank's own of a run on the same mesh, which goes on bit for bit; or a list of all ranks'
            states, which fits any mesh: residuals are cut along other shards and split among other replicas
            so that their sum is kept.
        strict: as for ``register``'s handle.

        Raises ValueError for a state of another shard or mesh, of other parameters or shapes, for states of
        different steps, and for a system's own state that cannot be cut; nothing has changed then. Where each
        rank has given its own and these are of different steps, the next backward raises on all ranks.
        """
        states = shards.unpack(state)
        fitting = shards.for_shard(states, self._shard, self._shards, self._sizes())
        self._take_over(saved_state.for_rank(fitting, self._rank, self._world_size), strict)

    def _take_over(self, own: saved_state.State, strict: bool) -> None:
        super()._take_over(own, strict)
        self._step_is_agreed = False

    def _sizes(self) -> shards.Sizes:
        return {
            name: (tuple(parameter.shape), parameter.placements[0].dim)
            for unit in self._units for name, parameter in zip(unit.names, unit.parameters())
        }

    def close(self) -> None:
        super().close()
        self._backward = None
        if self._watch is not None:
            self._watch.remove()


def _reduce(handle: "weakref.ref[ShardedHandle]", unit: Unit, gradient: torch.Tensor) -> None:
    own = handle()
    assert own is not None
    own._reduce(unit, gradient)
    gradient.zero_()


def _forward_begins(handle: "weakref.ref[ShardedHandle]", module: nn.Module, inputs: object) -> None:
    """Of the whole model. Activation checkpointing calls it within backward, too."""
    own = handle()
    if own is not None and own._backward is not None and _task_of_backward() == -1:
        own._give_up()


def _task_of_backward() -> int:
    """-1 outside of backward."""
    # getattr: the function is not in the types of older versions.
    return int(getattr(torch._C, "_current_graph_task_id")())  # noqa: B009


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
