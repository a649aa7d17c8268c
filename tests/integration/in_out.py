#!/usr/bin/env python3
"""in_out - the initial weights and the final output of a run: torchtitan's initial_load_* and
last_save_*.

Goal: a run without a checkpoint starts from a folder of Hugging Face, from another run, and from a
run of another store, with the very losses of a run that began with those weights. With
initial_load_model_only = false it continues as the other run does. A run that has a checkpoint
continues from it. The last step's weights are written in Hugging Face's form, and the last
checkpoint can omit the optimizer. keep_latest_k applies where ckptd's settings allow it. Method: a
tiny Llama on the real trainer and ckptd; losses are compared as hexadecimal floats.
"""

import glob
import json
import os
import re
import shutil
import subprocess

import lib_program
import lib_train
from lib_store import CLI, World, change, comes_to
from lib_tap import end, test

STEPS, MORE = 3, 6


class Bed(World):
    def __init__(self):
        super().__init__()
        lib_train.make_tokens(self.folder, lib_train.prose())

    def train(self, run, *options, steps=STEPS, want=0):
        """Its losses by step, and its output."""
        losses = os.path.join(self.folder, "loss")
        if os.path.exists(losses):
            os.remove(losses)
        done = subprocess.run(
            lib_train.command(self.folder, self.server, run, "--training.steps", steps,
                              "--lr_scheduler.total_steps", MORE, "--job.dump_folder",
                              os.path.join(self.folder, "out-" + run), *options),
            capture_output=True, text=True, timeout=120)
        assert done.returncode == want, (run, done.returncode, done.stderr)
        rows = {}
        if os.path.exists(losses):
            with open(losses) as file:
                rows = {int(line.split()[0]): line.split()[1:] for line in file}
        return rows, done.stderr

    def export(self, name, folder, dtype="fp32"):
        code, out, err = self.cli("export", name, *self.where, "--output", folder,
                                  "--weights-only", "--format", "hf", "--dtype", dtype)
        assert code == 0, out + err


def same(folder, other):
    names = [name for name in os.listdir(folder) if name.endswith(".safetensors")]
    return names and all(open(os.path.join(folder, name), "rb").read() ==
                         open(os.path.join(other, name), "rb").read() for name in names)


def starts(bed):
    bed.train("seed", "--checkpoint.create_seed_checkpoint")
    direct, _ = bed.train("seed")
    seed = os.path.join(bed.folder, "seed")
    bed.export("seed@0", seed)
    initial = "--checkpoint.initial_load_path"
    losses, said = bed.train("of-folder", initial, seed, "--checkpoint.initial_load_in_hf")
    test("a run starts from a folder of Hugging Face", losses == direct, (losses, direct, said))
    losses, said = bed.train("of-run", initial, "seed@0")
    test("a run starts from another run's weights", losses == direct, (losses, direct, said))
    losses, said = bed.train("of-run", initial, "nowhere@7", steps=MORE)
    test("a run that has a checkpoint goes on from it", sorted(losses) == [4, 5, 6], said)
    whole, _ = bed.train("seed", steps=MORE)
    losses, said = bed.train("of-state", initial, "seed@3",
                             "--checkpoint.no_initial_load_model_only", steps=MORE)
    test("with the whole state it goes on as the other run", losses == whole, (losses, whole, said))
    copied = os.path.join(bed.folder, "copied")
    bed.copy_store(copied)
    losses, said = bed.train("of-store", initial, f"{copied}:seed@0")
    test("a run starts from a run of another store", losses == direct, (losses, direct, said))
    _, said = bed.train("of-nothing", initial, os.path.join(bed.folder, "none"), want=78)
    test("a path that is nothing of these is refused by name",
         "there is no config.json" in said and "none" in said, said)
    _, said = bed.train("of-seed", initial, "seed@0", "--checkpoint.initial_load_in_hf", want=78)
    test("nor is a run one of Hugging Face's folders", "there is no config.json" in said, said)
    for name, path in ("folder", seed), ("run", "seed@0"), ("store", f"{copied}:seed@0"):
        _, said = bed.train("taller", initial, path, "--model.n_layers", 3, want=78)
        test(f"a {name} of another shape is refused with both values, and is no step 0",
             "has layers = 2, this configuration 3" in said and not steps_of(bed, "taller"), said)
    _, said = bed.train("of-none", initial, "no-such-run", want=78)
    test("a run that is not there is refused by name", "no-such-run" in said, said)


def damage(store, run, step):
    """In the middle of each shard; the manifest stays as it is."""
    for path in glob.glob(os.path.join(store, run, f"step-{step:08}-*", "*.safetensors")):
        change(path, os.path.getsize(path) // 2)


def walks_back(bed):
    """From the newest of a run that is damaged, after a restart without memory of it."""
    initial = "--checkpoint.initial_load_path"
    bed.stop()
    for store in bed.store, os.path.join(bed.folder, "copied"):
        shutil.rmtree(store)
    bed.launch()
    bed.train("seed", "--checkpoint.interval", 1, "--checkpoint.async_mode", "disabled")
    right, _ = bed.train("of-first", initial, "seed@1")
    bed.stop()
    for step in 2, 3:
        damage(bed.store, "seed", step)
    copied = os.path.join(bed.folder, "copied")
    shutil.copytree(bed.store, copied)
    bed.launch()
    _, said = bed.train("of-step", initial, "seed@3", want=78)
    test("a step that is named and damaged is refused", "is damaged" in said, said)
    losses, said = bed.train("of-run", initial, "seed", "--comm.ranks", 2)
    test("of a run alone the newest that is whole is the beginning, and the log says why",
         losses == right and "starts from the weights of run seed, step 1;" in said and
         "skipped on the way to step 2: step 3, attempt 1: block 0 of shard-" in said and
         "step 2 of run seed cannot be loaded: block 0 of shard-" in said, (losses, right, said))
    losses, said = bed.train("of-store", initial, f"{copied}:seed")
    test("and of a run of another store", losses == right and all(
        f"seed@{step}-a1 is damaged and skipped: " in said for step in (2, 3)), said)
    _, said = bed.train("of-stored-step", initial, f"{copied}:seed@3", want=78)
    test("but not where its step is named", "is damaged" in said and "skipped" not in said,
         said)
    damage(copied, "seed", 1)
    _, said = bed.train("of-ruin", initial, f"{copied}:seed", want=78)
    test("where none is whole the run is refused", "every checkpoint of run 'seed' is damaged"
         in said, said)


def ends(bed):
    folder = os.path.join(bed.folder, "last")
    _, said = bed.train("last", "--checkpoint.last_save_in_hf", "--checkpoint.export_folder",
                        folder, "--checkpoint.last_save_model_only")
    bed.export(f"last@{STEPS}", os.path.join(bed.folder, "by-hand"))
    test("the last weights are left as Hugging Face has them",
         same(folder, os.path.join(bed.folder, "by-hand")), said)
    code, out, err = bed.cli("show", f"last@{STEPS}", "--json", *bed.where)
    assert code == 0, err
    test("of the last checkpoint the optimizer can be left out", "exp_avg" not in out, out[:2000])
    export = "--checkpoint.last_save_in_hf", "--checkpoint.export_folder", folder
    half = os.path.join(bed.folder, "half")
    _, said = bed.train("last", "--checkpoint.last_save_in_hf", "--checkpoint.export_folder", half,
                        "--checkpoint.export_dtype", "bfloat16")
    bed.export(f"last@{STEPS}", os.path.join(bed.folder, "half-by-hand"), "bf16")
    with open(os.path.join(half, "config.json")) as file:
        dtype = json.load(file)["torch_dtype"]
    test("in the type that was asked for", dtype == "bfloat16" and
         same(half, os.path.join(bed.folder, "half-by-hand")), (dtype, said))
    narrow, _ = bed.train("of-half", "--checkpoint.initial_load_path", half)
    code, out, err = bed.cli("import", half, "--run", "widened", *bed.where)
    assert code == 0, out + err
    bed.export("widened@0", os.path.join(bed.folder, "widened"))
    wide, said = bed.train("of-widened", "--checkpoint.initial_load_path",
                           os.path.join(bed.folder, "widened"))
    test("from which a run starts as from the same numbers in fp32", narrow and narrow == wide,
         (narrow, wide, said))
    shutil.rmtree(folder)
    os.mkdir(folder + ".part")  # as an export that was killed leaves it
    _, said = bed.train("last", *export)
    test("a finished run leaves them, too, when they are not there",
         os.path.exists(os.path.join(folder, "config.json")), said)
    _, said = bed.train("last", *export)
    test("where they are already they stay", "written to" not in said, said)
    _, said = bed.train("last", *export, steps=MORE, want=78)
    test("a folder of other weights is refused before training", steps_of(bed, "last")[-1] == STEPS
         and f"it holds last@{STEPS} (name another" in said, said)
    _, said = bed.train("last", *export[:2], os.path.join(bed.folder, "no", "such"), steps=MORE,
                        want=78)
    test("and one that cannot be made", steps_of(bed, "last")[-1] == STEPS, said)
    _, said = bed.train("last", export[0], "--job.dump_folder",
                        os.path.join(bed.folder, "tokens", "below"), steps=MORE, want=78)
    test("also below job.dump_folder", steps_of(bed, "last")[-1] == STEPS and
         "cannot be made" in said, said)
    alone = os.path.join(bed.folder, "alone", "trainer")
    os.mkdir(os.path.dirname(alone))
    shutil.copy(os.path.join(lib_train.BUILD, "trainer"), alone)
    command = lib_train.command(bed.folder, bed.server, "last", "--training.steps", MORE, export[0])
    done = subprocess.run([alone, *command[1:]], capture_output=True, text=True, timeout=120,
                          env=dict(os.environ, PATH="/nowhere"))
    test("and so is a start without a ckpt-cli to write them with", done.returncode == 78 and
         "ckpt-cli could not be started" in done.stderr and
         steps_of(bed, "last")[-1] == STEPS, done.stderr)
    _, said = bed.train("last", export[0], steps=MORE)
    test("a run that goes on without the optimizer's state says so",
         f"not loaded from step {STEPS}, begins fresh: the moments (the checkpoint has no" in said,
         said)
    test("unless told otherwise its name has run and step", os.path.exists(
        os.path.join(bed.folder, "out-last", "hf", f"last-step-{MORE}", "config.json")))


def steps_of(bed, run):
    done = lib_program.run(CLI, "list", "--json", *bed.where)
    return sorted(entry["step"] for entry in json.loads(done.stdout) if entry["run"] == run)


def keeps(bed):
    options = "--checkpoint.interval", "1", "--checkpoint.keep_latest_k", "3", \
        "--checkpoint.async_mode", "disabled"
    bed.train("kept", *options, steps=MORE)
    test("keep_latest_k alone removes nothing", steps_of(bed, "kept") == [1, 2, 3, 4, 5, 6],
         steps_of(bed, "kept"))
    room = re.search(r"run kept: there is room for (\d+) saves of (\d+) bytes, and no rule removes "
                     r"older ones \(retention.keep_last\)", bed.log())
    test("so ckptd says at the start how many fit", room and int(room[1]) > 0 and
         int(room[2]) > 1 << 16, bed.log()[-2000:])
    _, said = bed.train("long", "--checkpoint.interval", "1", "--training.steps", 10 ** 6,
                        "--debug.stop_after_step", 2)
    full = re.search(r"warn checkpoint: ckptd's disk has room for (\d+) saves, .* with one each 1 "
                     r"steps .* is full after step (\d+); set retention.keep_last of ckptd", said)
    test("a trainer says after which step the disk is full, and which key ends that",
         full and full[1] == full[2] and int(full[1]) < 10 ** 6, said)
    _, said = bed.train("timed", "--checkpoint.interval", 3600, "--checkpoint.interval_type",
                        "seconds")
    full = re.search(r"has room for (\d+) saves, .* it is full after (\d+)\.0 hours; ", said)
    test("or after how many hours", full and full[1] == full[2], said)
    _, said = bed.train("short", *options)
    test("or that all its saves fit",
         re.search(r"info checkpoint: ckptd's disk has .* those of this run fit", said), said)
    bed.stop()
    bed.launch("--retention.trainers")
    _, said = bed.train("heeded", *options, steps=MORE)
    test("where a rule removes older ones it says nothing", "disk has room" not in said, said)
    test("where ckptd heeds trainers it keeps so many",
         comes_to(lambda: steps_of(bed, "heeded"), [4, 5, 6]),
         (steps_of(bed, "heeded"), bed.log()[-2000:]))
    test("and does not say that none is removed", "run heeded: there is room" not in bed.log(),
         bed.log()[-2000:])


def main():
    bed = Bed()
    bed.launch()
    starts(bed)
    ends(bed)
    keeps(bed)
    walks_back(bed)
    bed.stop()
    bed.close()
    end()


main()
