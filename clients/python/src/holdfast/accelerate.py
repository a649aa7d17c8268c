"""holdfast.accelerate - Accelerate's save_state through ckptd.

    keep = HoldfastState(accelerator, run="llama")   # after accelerator.prepare(), on every process
    keep.load()                                      # the newest, on any number of processes
    accelerator.save_state("out/checkpoint_500")     # saved by ckptd as step 500; or keep.save(500)

Weights, optimizers and schedules go to ckptd in one commit, copied once, whether a process has all
of them (DDP) or a part (FSDP2). save_state then writes no weights, only its other files (random
states, registered objects). One model for each Accelerator.
"""
from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from . import dcp
from .errors import InvalidError, NotFoundError


def state_of(model: Any, optimizers: List[Any], schedulers: List[Any]) -> Dict[str, Any]:
    """By the parameters' names, so for one process, DDP, FSDP 1 or 2."""
    weights, moments = get_state_dict(model, optimizers)
    return {"model": weights, "optimizer": moments,
            "scheduler": {str(place): one.state_dict() for place, one in enumerate(schedulers)}}


def put_state(state: Dict[str, Any], model: Any, optimizers: List[Any],
              schedulers: List[Any]) -> None:
    """Puts the result of state_of(), which a load has filled, back into its place."""
    set_state_dict(model, optimizers, model_state_dict=state["model"],
                   optim_state_dict=state["optimizer"])
    for place, one in enumerate(schedulers):
        one.load_state_dict(state["scheduler"][str(place)])


class HoldfastState:
    """`options` are those of holdfast.dcp.Session."""

    def __init__(self, accelerator: Any, run: str, server: Optional[str] = None,
                 **options: Any) -> None:
        if len(accelerator._models) != 1:
            raise InvalidError(f"the Accelerator has {len(accelerator._models)} models, not one",
                               "make HoldfastState after accelerator.prepare(model, optimizer)")
        self.accelerator, self.session = accelerator, dcp.Session(run, server, **options)
        self._saved: Any = None
        self._hook = accelerator.register_save_state_pre_hook(self._on_save_state)

    def close(self) -> None:
        self._hook.remove()
        self.session.close()  # waits for the last save

    def _on_save_state(self, models: Any, weights: List[Any], output_dir: str) -> None:
        self.save(dcp.step_of(output_dir))
        weights.clear()

    @property
    def _parts(self) -> Tuple[Any, List[Any], List[Any]]:
        return (self.accelerator._models[0],
                [one.optimizer for one in self.accelerator._optimizers],
                self.accelerator._schedulers)

    def save(self, step: int) -> Any:
        """Returns when everything is copied; result() of its result tells whether it is durable."""
        _, self._saved = dcp.async_save(state_of(*self._parts), self.session, step)
        return self._saved

    def load(self, step: Optional[int] = None) -> Optional[int]:
        """The loaded step; None: the run has none."""
        state = state_of(*self._parts)
        try:
            found = dcp.load(state, self.session, step)
        except NotFoundError:
            if step is not None:
                raise
            return None
        put_state(state, *self._parts)
        return found
