"""worker.py - one rank of a job in PyTorch. It holds a state and saves, loads and trains on
command.

    worker.py RANK WORLD RENDEZVOUS MIB LIBRARY SERVER RUN LOG

RENDEZVOUS is a file that does not exist yet, MIB the size of the whole state, LIBRARY libckpt as
built from holdfast.c, SERVER and RUN its ckptd and its run, LOG the file for other output of the
libraries. Commands are lines of JSON on stdin, each answered with one on stdout; those of all ranks
must agree:

    {"do": "save", "with": SAVER, "path": P}    {"began", "ended"}: until this rank is durable
    {"do": "load", "with": SAVER, "path": P}    {"began", "ended"}
    {"do": "train", "with": SAVER, "path": P}   one save beside training: {"quiet": seconds of each
                                                micro-batch without a save; "batches" and "seconds"
                                                from the begin of the save until it is durable}
    {"do": "hold", "with": SAVER, "path": P}    {"began", "held", "ended"}: held, seconds until the
                                                tensors may change
    {"do": "memory"}                            {"bytes"} of this process and its children
    {"do": "check"}                             {"equal"}: is the state what was saved?
    {"do": "reopen", "run": RUN}                {}: Holdfast's session anew, after a restart

"settings" beside "with" are the arguments of the saver's constructor; a saver is made at its first
use and kept. Times are of CLOCK_MONOTONIC, which all processes of a machine share.

A training step is BATCHES micro-batches of PRODUCTS matrix products on one thread, then an update,
which waits until the saver has its copy of all.
"""
import datetime
import json
import os
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")  # async_save's process needs it
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch  # noqa: E402 (after the environment)
import torch.distributed as dist  # noqa: E402

import savers  # noqa: E402
from memory import memory_of  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
BATCHES, PRODUCTS, EDGE = 5, 4, 1024
QUIET_BATCHES = 8  # before the save, and as many after it
TIMEOUT = datetime.timedelta(seconds=120)  # of a collective: a lost rank ends the others


class Worker:
    def __init__(self, rank, world, rendezvous, mib, library, server, run):
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank,
                                world_size=world, timeout=TIMEOUT)
        self.state = savers.State(rank, world, mib)
        self.holdfast = savers.Holdfast(self.state, library, server, run)
        os.environ["HOLDFAST_LIBCKPT"] = os.path.join(os.path.dirname(library),
                                                      "../../libckpt.so.1")
        sys.path.insert(0, os.path.join(HERE, "../../../clients/python/src"))
        self.savers = {}
        self.makers = {
            "holdfast": lambda _state: self.holdfast,
            "least": savers.Least, "uncopied": savers.Uncopied, "dcp": savers.Dcp,
            "torch_save": savers.TorchSave, "safetensors": savers.Safetensors,
            "dcp_safetensors": savers.DcpSafetensors, "next": savers.Next,
            "plugin": lambda state: savers.Plugin(state, server, run + "-plugin"),
            "plugin_next": lambda state: savers.PluginNext(state, server, run + "-plugin"),
            "dcp_async_thread": lambda state, **more: savers.DcpAsync(state, "thread", **more),
            "dcp_async_process": lambda state, **more: savers.DcpAsync(state, "process", **more)}
        self.left, self.right = torch.rand(EDGE, EDGE), torch.rand(EDGE, EDGE)
        self.product = torch.empty(EDGE, EDGE)
        self.step, self.loaded = 0, None

    def saver(self, command):
        name, settings = command["with"], command.get("settings", {})
        key = name, json.dumps(settings)
        if key not in self.savers:
            self.savers[key] = self.makers[name](self.state, **settings)
        return self.savers[key]

    def together(self, body):
        dist.barrier()
        began = time.monotonic()
        result = body()
        return {"began": began, "ended": time.monotonic()}, result

    def prepared(self, command):
        """The saver of the command, with a state that differs from the last one saved."""
        saver = self.saver(command)
        if isinstance(saver, savers.Holdfast) and saver.step is None:
            saver.describe()
        self.step += 1
        self.state.change(self.step)
        return saver

    def save(self, command):
        saver = self.prepared(command)
        return self.together(lambda: saver.save(command["path"]))[0]

    def hold(self, command):
        """One save beside training, which may continue when all is copied."""
        saver = self.prepared(command)

        def body():
            staged, durable = saver.begin(command["path"])
            staged.result()
            held = time.monotonic()
            durable.result()
            return held

        answer, held = self.together(body)
        return {**answer, "held": held - answer["began"]}

    def memory(self, _command):
        """Bytes of this process and of those that it started, shared pages in parts."""
        return {"bytes": memory_of(os.getpid())}

    def load(self, command):
        saver = self.saver(command)
        self.state.spoil()
        self.loaded = None
        answer, self.loaded = self.together(lambda: saver.load(command["path"]))
        return answer

    def batch(self):
        for _ in range(PRODUCTS):
            torch.mm(self.left, self.right, out=self.product)

    def quiet(self):
        times = [time.monotonic()]
        for _ in range(QUIET_BATCHES):
            self.batch()
            times.append(time.monotonic())
        return [after - before for before, after in zip(times, times[1:])]

    def train(self, command):
        saver = self.prepared(command)
        quiet, batches = self.quiet(), 0
        began = time.monotonic()
        staged, durable = saver.begin(command["path"])
        while not (staged.done() and durable.done()):
            self.batch()
            batches += 1
            if batches % BATCHES == 0:
                staged.result()
                self.step += 1
                self.state.change(self.step)
        seconds = time.monotonic() - began
        staged.result()
        durable.result()
        return {"quiet": quiet + self.quiet(), "batches": batches, "seconds": seconds}

    def check(self, _command):
        return {"equal": self.state.is_whole(self.loaded or self.state.local)}

    def reopen(self, command):
        """After a restart of ckptd."""
        if "with" in command:
            self.saver(command).reopen(command["run"])
        else:
            self.holdfast.reopen(command["run"])
        return {}


def main():
    rank, world, rendezvous, mib, library, server, run, log = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    for descriptor in 1, 2:
        os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND), descriptor)
    worker = Worker(int(rank), int(world), rendezvous, int(mib), library, server, run)
    print(json.dumps({"torch": torch.__version__, "safetensors": savers.safetensors.__version__,
                      "cuda": torch.cuda.is_available()}), file=answers)
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(getattr(worker, command["do"])(command)), file=answers)
    worker.holdfast.close()


if __name__ == "__main__":
    main()
