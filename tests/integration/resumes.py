#!/usr/bin/env python3
"""resumes - a run that resumes from its checkpoint on a random mesh, again and again.

Goal: a run that is stopped on any mesh and resumes on any other, with other pipeline stages, has
the losses, gradient norms and final state of one rank, bit for bit. Method: a tiny Llama of four
layers is trained on one rank, in float32 and in bfloat16. Then a run of each type makes every step
on another mesh of up to 16 ranks (8 with mpi, which has every fourth), drawn with its schedule, its
cut of stages, its threads. The modes of activation checkpointing take turns. SEED is printed and
repeats a series; RESUMES says how many there are (`make check`: 30).
"""

import os
import random
import shutil
import subprocess
import sys

import lib_train
from lib_store import World
from lib_tap import end, test

RESUMES = int(os.environ.get("RESUMES", "6"))
SEED = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
MODES = ("none", ()), ("full", ()), ("selective", ("op",)), ("selective", ("2",)), \
    ("memory_budget", ())
NAMES = ("tok_embeddings;layers.0,layers.1,layers.2,layers.3,norm,output",
         "tok_embeddings,layers.0;layers.1,layers.2,layers.3,norm,output",
         "tok_embeddings,layers.0,layers.1,layers.2,layers.3;norm,output")
OF_RUN = ("--model.n_layers", 4, "--canonical.micro_batches", 6, "--canonical.groups", 2,
          "--canonical.tp_blocks", 4, "--canonical.cp_blocks", 2, "--checkpoint.interval", 1000)
MPI = ["mpirun", "--oversubscribe", "--allow-run-as-root", "--mca", "mpi_yield_when_idle", "0"]

TWO_STAGES = "LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble"  # of a rank


def draw_pipeline(draw):
    """(degree, its settings, its part of the test's name)"""
    degree = draw.choice((1, 2, 2, 3, 4))
    schedule = draw.choice(("GPipe", "1F1B", "ZBH1") + TWO_STAGES * (degree == 2))
    cut = draw.choice(("layers", "cost"))
    settings = ["--parallelism.pipeline_parallel_degree", degree,
                "--parallelism.pipeline_parallel_schedule", schedule,
                "--parallelism.pipeline_parallel_cut", cut]
    if degree == 2 and schedule not in TWO_STAGES and draw.random() < 0.5:
        cut = draw.choice(NAMES)
        settings += ["--parallelism.module_fqns_per_model_part", cut]
    return degree, settings, f"pp {degree} ({schedule}, {cut})" if degree > 1 else "pp 1"


def draw_mesh(draw, number):
    """(backend, ranks, settings, the part of the test's name)"""
    backend = "mpi" if number % 4 == 3 else "local"
    mode, option = MODES[number % len(MODES)]
    pp, settings, text = draw_pipeline(draw)
    left = (8 if backend == "mpi" else 16) // pp
    # The model has two heads of keys and values: four ranks of tensor parallel have copies of them.
    tp, cp = min(4, left) if number % 5 == 1 else draw.choice((1, 2)), draw.choice((1, 2))
    if tp * cp > left:
        cp = 1
    left //= tp * cp
    shards = draw.randint(1, min(left, 4))
    replicas = draw.randint(1, max(1, left // shards))
    threads = 1 + number % 3
    settings += ["--parallelism.tensor_parallel_degree", tp,
                 "--parallelism.context_parallel_degree", cp,
                 "--parallelism.data_parallel_shard_degree", shards,
                 "--parallelism.data_parallel_replicate_degree", replicas,
                 "--parallelism.context_parallel_rotate_method",
                 draw.choice(("allgather", "alltoall", "ulysses")[:3 if tp * cp <= 4 else 2]),
                 "--parallelism.zero_stage", draw.choice((0, 1, 2)),
                 "--activation_checkpoint.mode", mode, "--kernels.threads", threads]
    if option:
        settings += ["--activation_checkpoint.selective_ac_option", *option]
    text += f" x replicate {replicas} x shard {shards} x cp {cp} x tp {tp}, {threads} threads, " \
            f"{backend}, {' '.join((mode, *option))}"
    return backend, pp * tp * cp * shards * replicas, settings, text


class Runs:
    def __init__(self, world, dtype, steps):
        self.world, self.dtype, self.steps = world, dtype, steps
        self.lines = self.losses("one", steps, "local", 1, [])

    def losses(self, name, step, backend, ranks, settings):
        """Trains the run up to the step; returns its lines of losses and norms, or the error."""
        run, path = f"{name}-{self.dtype}", os.path.join(self.world.folder, f"{name}-{self.dtype}")
        command = lib_train.command(self.world.folder, self.world.server, run, *OF_RUN,
                                    "--training.mixed_precision_param", self.dtype,
                                    "--training.steps", step, "--comm.backend", backend,
                                    "--lr_scheduler.total_steps", self.steps,
                                    "--metrics.loss_file", path, "--comm.ranks", ranks, *settings)
        launch = [*MPI, "-n", str(ranks)] if backend == "mpi" else []
        done = subprocess.run(launch + command, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            return done.stdout + done.stderr
        with open(path) as file:
            return file.read().splitlines()

    def same(self, name):
        code, out, err = self.world.cli("diff", f"one-{self.dtype}@{self.steps}",
                                        f"{name}-{self.dtype}@{self.steps}", "--store",
                                        self.world.store)
        return code == 0, out + err


def chain(world, draw, dtype, numbers):
    """A separate run: a first mesh, then a resume onto another for each number."""
    steps = len(numbers) + 1
    runs = Runs(world, dtype, steps)
    test(f"{dtype}: one rank makes {steps} steps", len(runs.lines) == steps, runs.lines)
    before = None
    for step, number in enumerate([numbers[0] - 1, *numbers], 1):
        backend, ranks, settings, text = draw_mesh(draw, number)
        lines = runs.losses("moves", step, backend, ranks, settings)
        name = f"resume {number} of {RESUMES} ({dtype}), after step {step - 1}: {before} -> {text}"
        test(name if before else f"{dtype}: the first step, on {text}",
             lines == runs.lines[:step], lines)
        before = text
    test(f"{dtype}: behind {len(numbers)} resumes the state is that of one rank",
         *runs.same("moves"))


def main():
    if not shutil.which("mpirun"):
        print("mpirun is missing: make deps installs it")
        sys.exit(77)
    print(f"# SEED={SEED}", flush=True)
    world, draw = World(), random.Random(SEED)
    try:
        lib_train.make_tokens(world.folder, lib_train.prose())
        world.launch("--memory.pool_bytes", "512MiB", "--memory.segment_bytes", "8MiB")
        half = RESUMES // 2
        chain(world, draw, "float32", range(1, half + 1))
        chain(world, draw, "bfloat16", range(half + 1, RESUMES + 1))
    finally:
        world.close()
    end()


if __name__ == "__main__":
    main()
