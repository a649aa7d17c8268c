"""holdfast.accelerate - Accelerate's save_state through ckptd.

    keep = HoldfastState(accelerator, run="llama")   # after accelerator.prepare(), on every process
    keep.load()                                      # the newest, on any number of processes
    accelerator.save_state("out/checkpoint_500")     # saved by ckptd as step 500; or keep.save(500)

Weights, optimizers and schedules go to ckptd in one commit, copied once, whether a process has all
of them (DDP) or a part (FSDP2). save_state then writes no weights; what else it writes (random
states, registered objects) stays its own. One model for each Accelerator.
"""
from __future__ import annotations

from typing import Any, Dict, List, Optional

from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from . import dcp
from .errors import InvalidError, NotFoundError


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
    def _optimizers(self) -> List[Any]:
        return [one.optimizer for one in self.accelerator._optimizers]

    def _state(self) -> Dict[str, Any]:
        weights, moments = get_state_dict(self.accelerator._models[0], self._optimizers)
        return {"model": weights, "optimizer": moments,
                "scheduler": {str(place): one.state_dict()
                              for place, one in enumerate(self.accelerator._schedulers)}}

    def save(self, step: int) -> Any:
        """Returns when all is copied; its answer's result() is whether it is durable."""
        _, self._saved = dcp.async_save(self._state(), self.session, step)
        return self._saved

    def load(self, step: Optional[int] = None) -> Optional[int]:
        """The step that was loaded; None: the run has none."""
        state = self._state()
        try:
            found = dcp.load(state, self.session, step)
        except NotFoundError:
            if step is not None:
                raise
            return None
        set_state_dict(self.accelerator._models[0], self._optimizers,
                       model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        for place, one in enumerate(self.accelerator._schedulers):
            one.load_state_dict(state["scheduler"][str(place)])
        return found
