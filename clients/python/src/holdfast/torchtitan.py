"""holdfast.torchtitan - torchtitan's checkpoints through ckptd, by one line of its configuration:

    checkpoint=HoldfastManager.Config(run="llama", interval=500)

The manager is torchtitan's own (0.3.0 and newer) with another place for its states; the contents
and times of saves, and the begin of a run, stay torchtitan's. A run that ckptd does not have begins
from checkpoint.folder, initial_load_path, or Hugging Face's weights. ckptd's rules remove old
checkpoints, so keep_latest_k does nothing; checkpoint.folder is only read.

async_mode: "async_with_pinned_mem" copies during the next step, and the optimizer waits for the
copy; "async" copies before training continues; "disabled" waits until the save is durable. A save
that fails is logged, and training continues; max_failures in a row end it.
"""
from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Dict, Literal, Optional

import torch
from torchtitan.components.checkpointer import (MODEL, AsyncMode, BaseCheckpointManager,
                                                CheckpointManager)
from torchtitan.tools.logging import logger

from . import dcp
from .errors import InvalidError, NotFoundError
from .saving import MAX_FAILURES


class HoldfastManager(CheckpointManager):
    """The interface of torchtitan's Trainer: load, save, maybe_wait_for_staging, close."""

    @dataclass(kw_only=True, slots=True)
    class Config(CheckpointManager.Config):
        enable: bool = True
        run: str = ""
        """Name of the run in ckptd."""
        server: Optional[str] = None
        """ckptd's address; HOLDFAST_SERVER, or where ckptd listens by default."""
        async_mode: Literal["disabled", "async", "async_with_pinned_mem"] = "async_with_pinned_mem"
        """When training goes on."""
        fallback: Optional[str] = None
        """A directory for DCP's own files, when ckptd is not there or has no room."""
        max_failures: int = MAX_FAILURES
        """So many failed saves in a row end the run; 0: none do."""
        take_over: bool = False
        """Take the run from a trainer that still has it."""

        def __post_init__(self) -> None:
            CheckpointManager.Config.__post_init__(self)
            if self.enable and not self.run:
                raise InvalidError("HoldfastManager.Config has no run", 'run="llama", for example')

    def __init__(self, config: "HoldfastManager.Config", **parts: Any) -> None:
        config.keep_latest_k = 0  # else torchtitan starts a thread that removes folders
        super().__init__(config, **parts)
        if not self.enable:
            return
        self._staged: Optional["Future[Any]"] = None
        self._session: Optional[dcp.Session] = dcp.Session(
            config.run, config.server, take_over=config.take_over, wait="local",
            fallback=config.fallback, max_failures=config.max_failures)

    def _close(self) -> None:
        session, self._session = getattr(self, "_session", None), None
        try:
            if session is not None:
                self._maybe_wait_for_staging()
                BaseCheckpointManager.maybe_wait_for_saving(self)
                session.close()
        finally:
            super()._close()

    # ---- saving ----

    @torch.no_grad()
    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        if not self._should_save(curr_step, last_step):
            return False
        self._maybe_wait_for_staging()  # the states requested next share its storage
        if last_step:
            assert self._session is not None
            self._session.note_last()
        if not last_step:
            self._put(curr_step, self._flattened_model_states_sd(), self.async_mode)
            return True
        if not self.last_save_model_only:
            self._put(curr_step, self._flattened_model_states_sd(), AsyncMode.DISABLED)
        elif self.last_save_in_hf:
            self._save_last_step(curr_step)  # a folder of Hugging Face, as torchtitan writes it
        else:
            weights = {name: value.to(self.export_dtype) if value.is_floating_point() else value
                       for name, value in self.states[MODEL].state_dict().items()}
            self._put(curr_step, weights, AsyncMode.DISABLED)
        return True

    def _put(self, step: int, states: Dict[str, Any], mode: AsyncMode) -> None:
        assert self._session is not None
        staged, durable = dcp.async_save(states, self._session, step,
                                         overlap=mode == AsyncMode.ASYNC_WITH_PINNED_MEM)
        self._staged, self.save_future = staged, durable
        if mode == AsyncMode.DISABLED:
            self._wait_for_saving()

    def _maybe_wait_for_staging(self) -> None:
        if self._staged is not None:
            self._staged.result()
            self._staged = None

    def _wait_for_saving(self) -> None:
        if self.save_future is not None:
            self.save_future.result()
            self.save_future = None  # type: ignore[assignment]  # torchtitan's own says so

    # ---- loading ----

    @torch.no_grad()
    def _load(self, step: int = -1) -> bool:
        assert self._session is not None
        found = self._session.find_for_all(None if step < 0 else step)  # -1: the newest
        if found is None and step >= 0:
            raise NotFoundError(f"ckptd has no step {step} of run {self._session.run}",
                                "checkpoint.load_step=-1 loads the newest")
        if found is None:
            return super()._load(step)
        states = self._states_to_load(found == 0)
        dcp.load(states, self._session, found)
        self.states[MODEL].load_state_dict(states)
        logger.info("Loaded step %d of run %s from ckptd.", found, self._session.run)
        return True
