"""``comm_hook``: for whoever calls ``register_comm_hook`` by himself,
or gives a framework a hook and its state."""
import gc
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Tuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from thinwire import ddp
from thinwire import state as saved_state
from thinwire.extension import _C, join_spec
from thinwire.handle import Handle
from thinwire.hook import HookState, hook, hooked_models
from thinwire.interface import Options

if TYPE_CHECKING:
    from typing_extensions import Unpack


class LazyState(HookState):
    """A hook's state whose handle comes with the first backward: only then is it known of which model it is.

    ``handle`` is None until then. A state for it can be given before.
    """

    def __init__(self, spec: str, rows: Optional[str], options: Options) -> None:
        super().__init__()
        self._spec, self._rows, self._options = spec, rows, options
        self._to_load: Optional[Tuple[saved_state.Given, bool]] = None
        self._failed: Optional[Tuple[int, str]] = None  # with which bucket, and why

    def handle_for(self, bucket: dist.GradBucket) -> Handle:
        failed = self._failed
        if self.handle is not None and (failed is None or not self.handle._is_closed):
            return self.handle
        index = bucket.index()
        # All buckets of a backward end with what the first did.
        # The next backward tries again, unless it was the state: no step begins without it.
        if failed is not None and (index > failed[0] or self.handle is not None):
            self._failed = (index, failed[1])
            raise RuntimeError(failed[1])
        try:
            handle = self._open(bucket)
        except Exception as error:
            self._failed = (index, str(error) or type(error).__name__)
            raise
        self._failed = None
        return handle

    def _open(self, bucket: dist.GradBucket) -> Handle:
        model = self._model_of(bucket)
        hooked_models[model] = self
        try:
            handle = ddp.register(model, self._spec, self._rows, **self._options)
        except BaseException:
            del hooked_models[model]  # so that the next backward finds the model, and says the same
            raise
        if self._to_load is not None:
            state, strict = self._to_load
            try:
                handle.load_state_dict(state, strict)
            except BaseException:
                handle.close()
                raise
            self._to_load = None
        return handle

    def _model_of(self, bucket: dist.GradBucket) -> DistributedDataParallel:
        """torch tells a hook the parameters, and not the model."""
        wanted = bucket.parameters()[0]
        found: List[DistributedDataParallel] = []
        for one in gc.get_objects():
            if (not issubclass(type(one), DistributedDataParallel)
                or "module" not in one.__dict__.get("_modules", {})):
                continue
            hooks = one.__dict__.get("_comm_hooks")  # of newer versions of torch
            is_ours = hooks is None or any(state is self for _, state in hooks)
            if (is_ours and one not in hooked_models
                and any(parameter is wanted for parameter in one.module.parameters())):
                found.append(one)
        if len(found) != 1:
            raise RuntimeError(
                f"the hook finds {len(found)} DistributedDataParallel models with this gradient's parameter: "
                "one hook and state is of one model. thinwire.register(model, spec) is told the model"
            )
        return found[0]

    def state_dict(self, consolidate: bool = False) -> Dict[str, Any]:
        """As ``Handle.state_dict``. Before the first backward it is what was given to ``load_state_dict``;
        RuntimeError where nothing was."""
        asked = saved_state.asked_by_dcp()
        if asked == "load":
            return saved_state.pack([])
        if self.handle is None:
            return self._given(all_ranks=bool(asked), consolidate=consolidate)
        return self.handle._for_dcp(asked) if asked else self.handle.state_dict(consolidate)

    def _given(self, all_ranks: bool, consolidate: bool) -> Dict[str, Any]:
        if self._to_load is None:
            raise RuntimeError("there is no state before the first backward, "
                               "in which the hook learns its model")
        given = saved_state.unpack(self._to_load[0])
        if not isinstance(given, Mapping):  # all ranks'
            return dict(saved_state.merge(given)) if consolidate else saved_state.pack(given)
        if all_ranks or (consolidate and given.get("rank") != saved_state.ALL):
            raise RuntimeError("before the first backward there is the state that was given to "
                               "load_state_dict, and not that of all ranks: save after a step, "
                               "or what state_dict() returns on each rank")
        return dict(given)

    def load_state_dict(self, state: saved_state.Given, strict: bool = True) -> None:
        """As ``Handle.load_state_dict``. Before the first backward the state is kept for it,
        and what is wrong with it is said there."""
        if self.handle is None:
            self._to_load = (state, strict)
        else:
            self.handle.load_state_dict(state, strict)

    def close(self) -> None:
        """As ``Handle.close``."""
        if self.handle is not None:
            self.handle.close()


#: As DDP calls it.
Hook = Callable[[HookState, dist.GradBucket], "torch.futures.Future[torch.Tensor]"]


def comm_hook(spec: str = "auto", rows: Optional[str] = None,
              **options: "Unpack[Options]") -> Tuple[Hook, LazyState]:
    """A hook and its state for DDP's ``register_comm_hook(state, hook)``,
    which synchronizes by the system ``spec``.

    The first backward on all ranks does what ``register`` does, and takes the same ``options``; errors of
    ``register`` other than that the spec is bad are raised by that backward.
    ``state.handle`` is the handle from then on. One pair is of one model.

    Raises TypeError and ValueError for a bad spec.
    """
    _C.freezes_variance(join_spec(spec, rows))  # reads the spec
    return hook, LazyState(spec, rows, options)
