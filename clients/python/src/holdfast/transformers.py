"""holdfast.transformers - Hugging Face's Trainer through ckptd.

    keep = HoldfastCallback(run="llama", every=500)
    trainer = Trainer(..., args=TrainingArguments(..., save_strategy="no"), callbacks=[keep])
    trainer.train(resume_from_checkpoint=keep.folder(trainer))  # None at the first start

Each `every` steps, at the last step, and wherever the Trainer saves by itself, the weights, the
optimizer, the schedule, the Trainer's state and the random states of all processes go to ckptd in
one commit: from one process, DDP, FSDP 1 or 2, each of which saves its part.

The Trainer resumes from folder(): the newest checkpoint (or `step`), whose small parts are in a
temporary directory that is removed when training ends. The Trainer then finds its step, its
position in the data and the random states by itself, also after kill -9. Instead of reading
weights, moments and the schedule from files, each process loads its slices from ckptd, also if
another number of processes saved them.

The model's config.json is saved, too, and the files of its tokenizer and its generation_config:
`ckpt-cli export --format safetensors-folder --weights-only` makes a folder for from_pretrained()
from any step.

Changes to the Trainer: folder() replaces _load_from_checkpoint and _load_optimizer_and_scheduler of
the one Trainer, for the one folder.
"""
from __future__ import annotations

import copy
import dataclasses
import io
import json
import os
import random
import tempfile
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy
import torch
from transformers import TrainerCallback

from . import dcp
from .accelerate import put_state, state_of
from .dcp import Session
from .errors import InvalidError
from .safetensors_files import CONFIG, FOLDER_OBJECTS


def _random_states() -> str:
    """As the Trainer's rng_state.pth, whose bytes are this text in latin-1."""
    states: Dict[str, Any] = {"python": random.getstate(), "numpy": numpy.random.get_state(),
                              "cpu": torch.random.get_rng_state()}
    if torch.cuda.is_available():
        each = torch.distributed.is_initialized()  # as in the Trainer
        states["cuda"] = (torch.cuda.random.get_rng_state_all() if each
                          else torch.cuda.random.get_rng_state())
    raw = io.BytesIO()
    torch.save(states, raw)
    return raw.getvalue().decode("latin-1")


def _parts(model: Any, optimizer: Any, scheduler: Any) -> Tuple[Any, List[Any], List[Any]]:
    """Accelerate's wrappers are taken off."""
    return (model, [getattr(one, "optimizer", one) for one in (optimizer,) if one is not None],
            [one for one in (scheduler,) if one is not None])


def _tokenizer_of(of: Mapping[str, Any]) -> Any:
    """Its name was another one before transformers 4.46."""
    return of.get("processing_class", of.get("tokenizer"))


def _folder_files(model: Any, tokenizer: Any) -> Dict[str, bytes]:
    """The files of save_pretrained() beside the weights."""
    inner = getattr(model, "module", model)
    config: Any = copy.deepcopy(getattr(inner, "config", None))
    if hasattr(config, "architectures"):
        config.architectures = [type(inner).__name__.removeprefix("FSDP")]
    found = {}
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        parts: List[Any] = [config, getattr(inner, "generation_config", None), tokenizer]
        for one in parts:
            if hasattr(one, "save_pretrained"):
                one.save_pretrained(folder)
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    found[name] = file.read()
    return found


def _settings_of(args: Any) -> Dict[str, int]:
    """Of the Trainer's state, which the state of a crossed run lacks (cross.py)."""
    named = {name: getattr(args, name) for name in ("logging_steps", "eval_steps", "save_steps")}
    return {"train_batch_size": args.train_batch_size,
            **{name: int(count) for name, count in named.items()  # below 1: a part of all steps
               if count is not None and count >= 1}}


class HoldfastCallback(TrainerCallback):
    """`options` are those of holdfast.dcp.Session."""

    def __init__(self, run: str, server: Optional[str] = None, every: int = 0,
                 **options: Any) -> None:
        self.run, self.server, self.every, self.options = run, server, every, options
        self._session: Optional[Session] = None
        self._folder: Optional["tempfile.TemporaryDirectory[str]"] = None
        self._saved = -1

    def _open(self, model: Any, tokenizer: Any) -> Session:
        """Made by all processes, at the first save or load."""
        if self._session is None:
            files = _folder_files(model, tokenizer)
            config = json.loads(files.pop(CONFIG, b"null"))
            about = {} if config is None else {"config": {"hf": config}}
            self._session = Session(
                self.run, self.server, **{"files": {FOLDER_OBJECTS + name: value
                                                    for name, value in files.items()},
                                          **about, **self.options})
        return self._session

    def folder(self, trainer: Any, step: Optional[int] = None) -> Optional[str]:
        """For resume_from_checkpoint of that Trainer; every process calls it. None: the run has no
        checkpoint."""
        session = self._open(trainer.model, _tokenizer_of(vars(trainer)))
        found = session.find(step)
        if found is None and step is None:
            return None
        name = str(session.rank)
        small: Dict[str, Any] = {"trainer": ""}
        if f"random.{name}" in session.reader(found).read_metadata().state_dict_metadata:
            small["random"] = {name: ""}  # otherwise more processes continue than there were
        dcp.load(small, session, found)
        self._folder = tempfile.TemporaryDirectory(prefix="holdfast-")
        path = self._folder.name
        if "random" in small:
            file = f"rng_state_{name}.pth" if session.world_size > 1 else "rng_state.pth"
            with open(os.path.join(path, file), "wb") as raw:
                raw.write(small["random"][name].encode("latin-1"))
        with open(os.path.join(path, "trainer_state.json"), "w", encoding="utf-8") as text:
            json.dump({**_settings_of(trainer.args), **json.loads(small["trainer"])}, text)
        self._stand_in(trainer, path, found)
        return path

    def _stand_in(self, trainer: Any, path: str, step: Optional[int]) -> None:
        """The Trainer loads weights before or after it wraps the model, the optimizer after it in
        any case: all is loaded then."""
        weights, rest = trainer._load_from_checkpoint, trainer._load_optimizer_and_scheduler

        def load_weights(folder: Any, *others: Any, **named: Any) -> None:
            if folder != path:
                weights(folder, *others, **named)

        def load_all(folder: Any) -> None:
            if folder != path:
                rest(folder)
                return
            parts = _parts(trainer.model, trainer.optimizer, trainer.lr_scheduler)
            state = state_of(*parts)
            dcp.load(state, self._open(trainer.model, None), step)
            put_state(state, *parts)

        trainer._load_from_checkpoint = load_weights
        trainer._load_optimizer_and_scheduler = load_all

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if getattr(args, "deepspeed", None):
            raise InvalidError("DeepSpeed keeps weights and moments where no callback sees them",
                               "let DeepSpeed save, or train with FSDP")

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if self.every > 0 and (state.global_step % self.every == 0
                               or control.should_training_stop):
            self.on_save(args, state, control, **parts)

    def on_save(self, args: Any, state: Any, control: Any, model: Any = None,
                optimizer: Any = None, lr_scheduler: Any = None, **others: Any) -> None:
        """Returns when all is copied."""
        if state.global_step == self._saved:
            return
        session = self._open(model, _tokenizer_of(others))
        what = state_of(*_parts(model, optimizer, lr_scheduler))
        what["trainer"] = json.dumps(dataclasses.asdict(state))
        what["random"] = {str(session.rank): _random_states()}
        if control.should_training_stop:
            session.note_last()
        dcp.async_save(what, session, state.global_step)
        self._saved = state.global_step

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        session, self._session = self._session, None
        folder, self._folder = self._folder, None
        try:
            if session is not None:
                session.close()  # waits for the last save
        finally:
            if folder is not None:
                folder.cleanup()
