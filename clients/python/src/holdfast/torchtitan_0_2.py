"""holdfast.torchtitan_0_2 - torchtitan 0.2 saves through ckptd; before its Trainer is made:

    import holdfast.torchtitan_0_2
    holdfast.torchtitan_0_2.patch(run="llama")

torchtitan 0.2 has no place for another checkpoint manager (0.3 has: holdfast.torchtitan). So its
CheckpointManager gets other methods for load, dcp_save and close; the contents and times of saves
stay its own. Any other version is refused. A run that ckptd does not have begins as in torchtitan.
Saves in Hugging Face's form, and fault tolerance's own files, are written as before.
"""
from __future__ import annotations

import functools
from importlib import metadata
from typing import Any, Optional

from . import dcp
from .errors import InvalidError

VERSIONS = "0.2."


def _need_version() -> None:
    try:
        found = metadata.version("torchtitan")
    except metadata.PackageNotFoundError:
        raise InvalidError("torchtitan is not installed",
                           "pip install 'torchtitan==0.2.*'") from None
    if not found.startswith(VERSIONS):
        raise InvalidError(f"this is a patch for torchtitan 0.2, not {found}",
                           "0.3 and newer take holdfast.torchtitan.HoldfastManager.Config")


class _NoStager:
    """In place of torchtitan's, which pins memory for a copy that ckptd makes."""

    def close(self) -> None:
        pass


def patch(run: str, server: Optional[str] = None, **options: Any) -> None:
    """`options` are those of holdfast.dcp.Session."""
    _need_version()
    from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse
    from torchtitan.components.checkpoint import MODEL, AsyncMode, CheckpointManager

    ckptd = dcp.Later(run, server, options)
    load, save, close = (CheckpointManager.load, CheckpointManager.dcp_save,
                         CheckpointManager.close)

    @functools.wraps(load)
    def load_from_ckptd(self: Any, step: int = -1) -> bool:
        if self.enable:
            self.stager = _NoStager()
        found = ckptd.open().find_for_all(None if step < 0 else step) if self.enable else None
        if found is None:
            return bool(load(self, step))
        states = self._states_to_load(found == 0)
        dcp.load(states, ckptd.open(), found)
        self.states[MODEL].load_state_dict(states)
        return True

    @functools.wraps(save)
    def save_by_ckptd(self: Any, state_dict: Any, checkpoint_id: str, async_mode: Any,
                      enable_garbage_collection: bool = False, to_hf: bool = False) -> Any:
        if to_hf:
            return save(self, state_dict, checkpoint_id, async_mode, enable_garbage_collection,
                        to_hf)
        is_pinned = async_mode == AsyncMode.ASYNC_WITH_PINNED_MEM
        staged, durable = dcp.async_save(state_dict, ckptd.open(), dcp.step_of(checkpoint_id),
                                         overlap=is_pinned)
        if is_pinned:
            return AsyncSaveResponse(staging_completion=staged, upload_completion=durable)
        return durable if async_mode == AsyncMode.ASYNC else durable.result()

    @functools.wraps(close)
    def close_ckptd(self: Any) -> None:
        try:
            close(self)
        finally:
            ckptd.close()

    CheckpointManager.load = load_from_ckptd
    CheckpointManager.dcp_save = save_by_ckptd
    CheckpointManager.close = close_ckptd
