#!/usr/bin/env python3
"""blame - the sample and the module that a replayed step blames.

Goal: `--replay STEP --blame` names the one sample that did it, its place in the text and the
module, with the same words on another mesh. Method: a text of few words has noise in one sample. A
step of 3 micro-batches of 4 samples draws it, and is made again on two meshes. Then the gradient
of one sample is made NaN. All kinds of meshes, and what is compared: trainer_watch.
"""

import os
import random
import re
import subprocess
import sys

from lib_store import World
from lib_tap import end, test
from lib_train import BUILD, command, make_tokens

sys.path.insert(0, os.path.abspath("clients/examples"))
from sample_order import sample

SEQ, BATCH, LEAVES = 64, 4, 3
STEP_SAMPLES = BATCH * LEAVES
BROKEN = 14 * STEP_SAMPLES + 6  # of step 15, leaf 1
ONE = (1,)  # a mesh: its ranks, and degrees of parallelism
MANY = (8, "--parallelism.tensor_parallel_degree", 2, "--parallelism.pipeline_parallel_degree", 2,
        "--parallelism.pipeline_parallel_schedule", "ZBH1")


def train(world, run, *options):
    words = command(world.folder, world.server, run, "--training.local_batch_size", BATCH,
                    "--canonical.micro_batches", LEAVES, "--canonical.tp_blocks", 2,
                    "--canonical.cp_blocks", 2, "--optimizer.lr", 4e-3,
                    "--lr_scheduler.total_steps", 200, "--checkpoint.interval", 10, *options)
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stderr


def num_tokens(folder):
    done = subprocess.run([os.path.join(BUILD, "tokenizer"), "tokens", "--tokenizer",
                           os.path.join(folder, "tok"), "--out", os.path.join(folder, "tokens"),
                           os.path.join(folder, "text")], check=True, capture_output=True,
                          text=True)
    return int(re.search(r": (\d+) tokens", done.stdout + done.stderr)[1])


def make_text(folder):
    """The sample of a text of few words in which there is noise; and the number of samples."""
    draw = random.Random(1)
    words = ["".join(draw.choices("abdeiklmnorstu", k=draw.randint(2, 6))) for _ in range(30)]
    text = " ".join(draw.choices(words, weights=range(1, 31), k=6000)).encode()
    noise = bytes(draw.choices(b"!#$%&*+/<=>?@^_|~{}QXZJqxzj0123456789", k=60))
    make_tokens(folder, text + noise, vocab=300)  # of the bytes of the noise, too

    def count(data):
        with open(os.path.join(folder, "text"), "wb") as file:
            file.write(data)
        return num_tokens(folder)

    cut = len(text) // 2
    while (before := count(text[:cut])) % SEQ > 2:
        cut = text.index(b" ", cut + 1)
    return before // SEQ, (count(text[:cut] + noise + text[cut:]) - 1) // SEQ


def replayed(world, run, step, mesh, *options):
    """What a replay says of the blame, without the rank."""
    ranks, *degrees = mesh
    said = train(world, run, "--replay", step, "--blame", "--comm.ranks", ranks, *degrees,
                 *options)
    found = re.findall(r" warn replay: (.*)", said)
    return [re.sub(r" \(rank .*|, first on rank .*", "", line) for line in found]


def noise_is_blamed(world):
    noisy, samples = make_text(world.folder)
    draw = next(d for d in range(40 * STEP_SAMPLES, 40 * STEP_SAMPLES + samples)
                if sample(0, samples, d) == noisy)
    step, leaf = draw // STEP_SAMPLES + 1, draw % STEP_SAMPLES // BATCH
    train(world, "noisy", "--comm.ranks", 2, "--training.steps", step + 1)
    place = f"leaf {leaf}; tokens {noisy * SEQ} to {(noisy + 1) * SEQ} of tokens"
    wanted = (rf"largest outlier: .* of [\w.]+, leaf {leaf}, reaches ",
              re.escape(f"step {step}: sample {draw} of the run ({place}) has the largest gradi"),
              f"step {step}: it has the largest loss, too: ")
    first = replayed(world, "noisy", step, ONE)
    test("the noise is blamed, with its module, leaf and place",
         len(first) == 3 and all(map(re.match, wanted, first)), first)
    said = replayed(world, "noisy", step, MANY)
    test("with the same words on another mesh", said == first, (said, first))


def broken_sample_is_blamed(world):
    broken = ("--training.nonfinite", "skip", "--debug.nonfinite_at_sample", BROKEN)
    train(world, "broken", "--training.steps", 20, *broken)
    said = replayed(world, "broken", 15, ONE, *broken)
    named = [line for line in said if "has the largest gradient of its leaf: norm nan" in line]
    test("of a micro-batch the sample that is not finite is named, alone",
         len(named) == 1 and f"sample {BROKEN} of the run (leaf 1; " in named[0], said)


def no_sample_is_blamed(world):
    """Of the run that was made before."""
    said = replayed(world, "broken", 15, ONE, "--training.nonfinite", "skip",
                    "--debug.nonfinite_at_step", 15)
    test("where no sample has a finite gradient none is blamed",
         "step 15: no sample is to blame: the gradients of all 12 samples are not finite" in said
         and not any("largest" in line for line in said), said)


def main():
    world = World()
    try:
        world.launch()
        noise_is_blamed(world)
        broken_sample_is_blamed(world)
        no_sample_is_blamed(world)
    finally:
        world.close()
    end()


main()
