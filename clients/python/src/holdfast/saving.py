"""saving - handles the saves of a session and their failures: the part of holdfast.dcp.Session
without torch.

A save that fails is logged and training continues, with exceptions:

 - one that can never succeed (errors.is_final) raises, for any on_failure;
 - on_failure="raise" raises;
 - max_failures failed saves in a row raise. Saves count in the order of their begin; a copied one
   counts when its outcome is known. A step that ckptd has already is not saved again, and does not
   count.

An exception of a save in a thread is in its future. The next save raises it, too, or close() does,
unless a caller has got it from that future. A save that `files` kept has not failed.
"""
from __future__ import annotations

import enum
import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Type

from .client import note_read
from .errors import (AbortedError, HoldfastError, SpaceError, StorageError, TimeoutError,
                     UnavailableError, is_final)
from .sharded import Gather, Item, Saver

_log = logging.getLogger("holdfast")
MAX_FAILURES = 3
TO_FILES = (UnavailableError, TimeoutError, SpaceError, StorageError)


class Outcome(enum.IntEnum):
    """Of a save: the worst of all ranks counts. FILES: it is written to the `fallback` files."""
    SAVED, FILES, LOST = 0, 1, 2


class Told(Future):  # type: ignore[type-arg]
    """A future of a session. Getting its exception removes it from the list `unseen`, from which
    the session raises exceptions."""

    def __init__(self, unseen: List[BaseException]) -> None:
        super().__init__()
        self._unseen = unseen

    def _take_off(self) -> None:
        error = super().exception() if self.done() else None
        if error is not None:
            setattr(error, "is_seen", True)  # the future of a later stage may have it, too
            self._unseen[:] = [one for one in self._unseen if one is not error]

    def result(self, timeout: Optional[float] = None) -> Any:
        try:
            return super().result(timeout)
        finally:
            self._take_off()

    def exception(self, timeout: Optional[float] = None) -> Optional[BaseException]:
        try:
            return super().exception(timeout)
        finally:
            self._take_off()

    def for_torch(self) -> "Future[Any]":
        """A future with the same outcome. Getting its exception does not count as seen, because DCP
        does that by itself."""
        copy: "Future[Any]" = Future()

        def give(done: Any) -> None:
            error = Future.exception(done)
            if error is not None:
                copy.set_exception(error)
            else:
                copy.set_result(Future.result(done))

        self.add_done_callback(give)
        return copy


class Streak:
    """The newest saves, and how many of them have failed in a row."""

    def __init__(self) -> None:
        self._saves: List[List[Any]] = []  # step, and is it saved? None: not known yet
        self._lock = threading.Lock()

    def note(self, step: int, is_saved: Optional[bool]) -> int:
        """
        >>> streak = Streak()
        >>> streak.note(1, False), streak.note(2, None), streak.note(3, None), streak.note(2, False)
        (1, 1, 1, 2)
        >>> streak.note(3, True)
        0
        """
        with self._lock:
            open_ones = [one for one in self._saves if one[0] == step and one[1] is None]
            if open_ones:
                open_ones[-1][1] = is_saved
            else:
                self._saves.append([step, is_saved])
            for at in reversed(range(len(self._saves))):
                if self._saves[at][1]:
                    del self._saves[:at + 1]
                    break
            return sum(one[1] is False for one in self._saves)


def _lost_elsewhere(step: int) -> HoldfastError:
    return AbortedError(f"step {step} was lost on another rank")


class Saves:
    """`files` keeps saves that ckptd does not accept: copy(state), save(step, state)."""

    def __init__(self, run: str, server: Optional[str], saver: Optional[Saver], gather: Gather, *,
                 wait: Optional[str] = "local", timeout: float = 600.0, on_failure: str = "warn",
                 max_failures: Optional[int] = MAX_FAILURES, files: Any = None) -> None:
        self.run, self.server, self.saver, self.files = run, server, saver, files
        self.wait_level, self.timeout = wait, timeout
        self.on_failure, self.max_failures = on_failure, max_failures
        self._gather = gather
        self.streak = Streak()
        self.saved: Dict[int, Outcome] = {}  # of steps that a stager has copied
        self.reasons: Dict[int, str] = {}  # why the save that failed last did so, by its step
        self._staging = ThreadPoolExecutor(1, "holdfast-stage")
        self._finishing = ThreadPoolExecutor(1, "holdfast-wait")
        self._unseen: List[BaseException] = []  # exceptions in threads that no caller has seen

    def close(self) -> None:
        """Waits for the last save, and raises what no caller has seen of one that failed."""
        self._staging.shutdown()
        self._finishing.shutdown()
        if self.saver is not None:
            self.saver.close()
        self.raise_unseen()

    def rollback(self, step: int) -> None:
        """Training continues from this step, from the program's own copy: every rank calls this.
        The next save below the last one opens a new attempt, as after a load of that step."""
        note_read(self.server, self.run, step)

    def note_last(self) -> None:
        """Later saves are the last of the run: every rank calls this. While ckptd's memory is short
        they get images before the saves of other runs."""
        if self.saver is not None:
            self.saver.client.note_last()

    # ---- one save ----

    def save(self, step: int, items: List[Item], objects: Mapping[str, bytes], state: Any,
             about: Any) -> Outcome:
        """Its outcome; a failure was logged. With `files` all ranks have the same answer."""
        if self.saver is None:
            return Outcome.FILES
        failed: Optional[HoldfastError] = None
        try:
            self.saver.save(step, items, objects, state, about)
        except HoldfastError as error:
            failed = error
        if self.files is None:
            outcome = Outcome.SAVED if failed is None else Outcome.LOST
        else:
            outcome = self._outcome_of_all(step, failed, TO_FILES)
        if outcome == Outcome.LOST:
            failed = failed or _lost_elsewhere(step)
            self.saver.tell_failed(step, failed)
            self.failed(step, failed, f"step {step} was not saved")
        elif outcome == Outcome.SAVED:
            self.streak.note(step, True if self.wait_level is None else None)
        else:
            self.saver.client.note_begun(step)
        return outcome

    def _outcome_of_all(self, step: int, failed: Optional[HoldfastError],
                        for_files: Tuple[Type[HoldfastError], ...]) -> Outcome:
        """The worst outcome of all ranks, with this rank's error or none; errors in `for_files`
        lead to files."""
        outcome = Outcome.SAVED
        if failed is not None:
            outcome = Outcome.FILES if isinstance(failed, for_files) else Outcome.LOST
        outcome = max(self._gather(outcome))
        if outcome == Outcome.FILES and failed is not None:
            _log.warning("step %s goes to DCP's files: %s", step, failed)
        return outcome

    def failed(self, step: int, error: HoldfastError, what: str) -> None:
        """A save is lost: this is logged, or raised where training must end."""
        is_there = self.saver is not None and self.saver.client.has_step(step, error)
        count = 0 if is_there else self.streak.note(step, False)
        self.reasons = {step: str(error)}
        is_end = self.on_failure == "raise" or is_final(error)
        if not is_end and self.max_failures and count >= self.max_failures:
            is_end = True
            error = AbortedError(
                f"{count} saves in a row have failed, the last of step {step}: {error}",
                "max_failures=0 lets training go on without checkpoints")
        if is_end:
            raise error
        _log.warning("%s, and training continues: %s", what, error)

    def wait_for(self, step: int) -> Optional[HoldfastError]:
        """None: the step is durable, or is not waited for."""
        if self.wait_level is None or self.saver is None:
            return None
        try:
            self.saver.wait(step, self.wait_level, self.timeout)
        except HoldfastError as error:
            return error
        return None

    def finish(self, step: int) -> Optional[HoldfastError]:
        """None: the step is durable; else why it is not, which was logged, or is raised."""
        error = self.wait_for(step)
        if error is not None:
            self.failed(step, error, f"step {step} is not durable")
            return error
        if self.saver is not None:
            self.streak.note(step, True)
        return None

    def keep_or_finish(self, step: int) -> Outcome:
        """Waits until the step is durable while all ranks still have its state; otherwise writes
        the files."""
        failed = self.wait_for(step)
        outcome = self._outcome_of_all(step, failed, (*TO_FILES, AbortedError))
        if outcome == Outcome.LOST:
            self.failed(step, failed or _lost_elsewhere(step), f"step {step} is not durable")
        else:
            self.streak.note(step, True)
        return outcome

    def _keep(self, step: int, state: Any) -> bool:
        """Writes the files of a step."""
        try:
            self.files.save(step, state)
        except BaseException as error:  # DCP's own are no Exception
            self.failed(step, StorageError(f"no files of step {step} were written: {error}"),
                        f"step {step} was not saved")
            return False
        self.streak.note(step, True)
        return True

    # ---- in threads ----

    def _later(self, pool: ThreadPoolExecutor, run: Callable[[], Any]) -> Told:
        future = Told(self._unseen)
        future.set_running_or_notify_cancel()

        def act() -> None:
            try:
                future.set_result(run())
            except BaseException as error:
                self.keep_unseen(error)
                future.set_exception(error)

        pool.submit(act)
        return future

    def keep_unseen(self, error: BaseException) -> None:
        """The next save, or close(), raises it, unless a caller sees it before."""
        if not getattr(error, "is_seen", False) and not any(one is error for one in self._unseen):
            self._unseen.append(error)

    def raise_unseen(self) -> None:
        """Raises the first exception of a save in a thread that no caller has seen."""
        if self._unseen:
            raise self._unseen.pop(0)

    def copy_later(self, step: int, items: List[Item], objects: Mapping[str, bytes], state: Any,
                   about: Any, result: Any = None, wait_first: Callable[[], None] = lambda: None,
                   ) -> Told:
        """wait_first(), then save() in the session's thread; returns `result`, or a copy of it for
        files."""
        self.raise_unseen()

        def copy() -> Any:
            wait_first()
            outcome = self.save(step, items, objects, state, about)
            self.saved[step] = outcome
            return self.files.copy(result) if outcome == Outcome.FILES else result

        return self._later(self._staging, copy)

    def finish_later(self, step: int, staged: "Future[Any]") -> Told:
        """True: the step is durable, or is in the files; False: it was lost, which was logged."""
        def wait() -> bool:
            copied = Future.result(staged)  # which removes no exception from the list
            outcome = self.saved.pop(step, Outcome.LOST)
            if outcome == Outcome.SAVED:
                return self.finish(step) is None
            return outcome == Outcome.FILES and self._keep(step, copied)

        return self._later(self._finishing, wait)
