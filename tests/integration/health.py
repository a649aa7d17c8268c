#!/usr/bin/env python3
"""health - what list, health, status and the metrics say when saves fail and when all is damaged.

Goal: an operator's script hears by an exit code that ckptd cannot save, and that a run has nothing
whole left; the age of a run's newest checkpoint and its failures in a row are told by run. Method:
the real programs; a store that is full by limits.checkpoints, and damaged manifests.
"""

import glob
import json
import os
import time

from lib_store import PATIENCE, World, change
from lib_tap import end, test


def metric(path, name):
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            with open(path) as file:
                lines = dict(line.rsplit(" ", 1) for line in file if line[0] != "#")
            return {key: float(value) for key, value in lines.items()}[name]
        except (OSError, KeyError):
            time.sleep(0.02)
    return None


def full(world):
    numbers = os.path.join(world.folder, "metrics")
    world.launch("--limits.checkpoints", "2", "--limits.look_ms", "20", "--metrics.file", numbers,
                 "--metrics.every_ms", "100")
    empty = world.cli("health", *world.where)
    test("an empty store is healthy", empty[:2] == (0, "serving: true\nsaving: true\n"), empty)
    world.save([1, 2])
    code, out, _ = world.cli("health", *world.where)
    test("health tells the newest checkpoint of a run and its age", code == 0 and
         f"run {world.run}: newest checkpoint step 2, " in out and
         out.endswith("s old, failed saves in a row: 0\n"), out)
    refused = [world.try_save(step)[0] for step in (3, 4)]
    code, out, err = world.cli("health", *world.where, "--json")
    said = json.loads(out)
    test("after saves that were refused health is 69, with the reason and how many",
         refused == [False, False] and code == 69 and said["saving"] is False and
         "the store holds 2 checkpoints already" in said["reason"] and
         "the store holds 2 checkpoints already" in err and
         said["runs"][0]["failures_in_row"] == 2, (refused, code, out, err))
    label = f'holdfast_run_failures_in_row{{run="{world.run}"}}'
    time.sleep(0.3)
    test("the metrics tell failures and age with the run as a label",
         metric(numbers, label) == 2 and
         metric(numbers, f'holdfast_run_newest_age_seconds{{run="{world.run}"}}') < PATIENCE and
         metric(numbers, "holdfast_health_saving") == 0)
    world.stop()


def damaged(world):
    for manifest in glob.glob(os.path.join(world.store, world.run, "step-*", "manifest.json")):
        os.chmod(manifest, 0o600)
        test("one damaged checkpoint of two is no alarm",
             world.cli("list", "--store", world.store)[0] == 0)
        change(manifest, 20)
    test("list is 1 when every checkpoint of a run is damaged",
         world.cli("list", "--store", world.store)[0] == 1)
    world.launch()
    test("through a ckptd too", world.cli("list", *world.where)[0] == 1)
    code, out, _ = world.cli("health", *world.where)
    test("and so is health", code == 1 and "every checkpoint is damaged" in out, (code, out))
    world.stop()


def main():
    world = World()
    try:
        full(world)
        damaged(world)
    finally:
        world.close()
    end()


main()
