#!/usr/bin/env python3
"""moves - a run's directory under another name: renamed, moved by hand, copied.

Goal: under any directory name every byte of a checkpoint is still verified, by ckptd and by
ckpt-cli. One that was moved by hand is explained, kept and not loaded until it is adopted; moving
it back restores it. It is never called damaged. Method: a real ckptd and real saves (lib_store.py),
mv, and copies of the store.
"""

import json
import os
import shutil
import subprocess

import lib_tap
from lib_store import SAVER, World, change, comes


class Bed(World):
    def path(self, *names):
        return os.path.join(self.store, *names)

    def load(self, run, step):
        """By ckptd, from the disk, every element compared with the saved one."""
        done = subprocess.run([SAVER, "read", self.server, str(step), "1000", run], timeout=60,
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def states(self, run, *where):
        return {one["step"]: one.get("damage") and one.get("moved_from", "damaged")
                for one in self.listed(*where) if one["run"] == run}

    def good(self, *arguments):
        code, out, err = self.cli(*arguments)
        assert code == 0, (arguments, code, out, err)
        return out


def one_moved_by_hand_is_explained_and_moved_back_it_is_whole(bed):
    bed.stop()
    os.rename(bed.path(bed.run), bed.path("moved"))
    bed.launch()
    for where in (bed.where, ("--store", bed.store)):
        assert bed.states("moved", *where) == {1: bed.run, 2: bed.run}, bed.listed(*where)
        text = bed.good("list", *where)
        assert "MOVED" in text and "DAMAGED" not in text and bed.run in text, text
        code, out, err = bed.cli("show", "moved@2", *where)
        assert "adopt moved" in out + err and "saved in run trip" in out + err, out + err
        code, _, err = bed.cli("verify", "moved", *where)
        assert code == 1 and "every checkpoint of run 'moved'" in err, err
    assert not os.path.exists(bed.path("moved", "quarantine"))
    bed.stop()
    os.rename(bed.path("moved"), bed.path(bed.run))
    bed.launch()
    assert bed.states(bed.run, *bed.where) == {1: None, 2: None}
    assert bed.all_verify() == []


def one_copied_by_hand_is_adopted_and_served_at_once(bed):
    bed.stop()
    shutil.copytree(bed.path(bed.run), bed.path("copy"))
    bed.launch()
    assert bed.states("copy", *bed.where) == {1: bed.run, 2: bed.run}
    out = bed.good("adopt", "copy", *bed.where)
    assert "2 checkpoints adopted" in out, out
    assert bed.states("copy", *bed.where) == {1: None, 2: None}
    bed.load("copy", 1)
    assert bed.all_verify() == [] and "whole" in bed.good("verify", "copy", *bed.where)
    assert "0 checkpoints adopted" in bed.good("adopt", "copy", *bed.where)
    origin = bed.path("copy", "step-00000002-a0002", "origin.json")
    with open(origin, "w") as file:
        file.write("{}")
    code, _, err = bed.cli("show", "copy@2", "--store", bed.store)
    assert code == 1 and "origin.json" in err, err


def a_renamed_run_is_whole_and_served(bed):
    bed.stop()
    shutil.rmtree(bed.path("copy"))
    bed.good("rename", bed.run, "second", "--store", bed.store)
    assert not os.path.exists(bed.path(bed.run)) and bed.all_verify() == []
    code, _, err = bed.cli("rename", "nobody", "third", "--store", bed.store)
    assert code == 66, err
    bed.launch()
    shown = json.loads(bed.good("show", "second@2", "--json", *bed.where))
    assert shown["run"] == "second" and shown["origin"] == bed.run, shown
    assert bed.states("second", *bed.where) == {1: None, 2: None}
    assert f"saved in     run {bed.run}" in bed.good("show", "second", *bed.where)
    assert f"saved in     run {bed.run}" in bed.good("show", "second", "--store", bed.store)
    bed.load("second", 2)
    bed.good("export", "second", "--store", bed.store, "--output", bed.folder + "/out")
    change(bed.path("second", "step-00000001-a0001", "shard-00001-of-00002.safetensors"), 100)
    assert bed.cli("verify", "second@1", "--store", bed.store)[0] == 1
    change(bed.path("second", "step-00000001-a0001", "shard-00001-of-00002.safetensors"), 100)
    bed.stop()
    bed.good("rename", "second", bed.run, "--store", bed.store)
    assert bed.all_verify() == [] and bed.states(bed.run) == {1: None, 2: None}
    bed.launch()


def a_copy_is_incremental_resumed_and_proven(bed):
    other = os.path.join(bed.folder, "other")
    out = json.loads(bed.good("cp", bed.run + "@1", f"{other}:second", "--json", *bed.where))
    assert (out["copied"], out["there_already"]) == (1, 0), out
    out = json.loads(bed.good("cp", bed.run, f"{other}:second", "--json", *bed.where))
    assert (out["copied"], out["there_already"]) == (1, 1), out
    assert [one["step"] for one in bed.listed("--store", other)] == [2, 1]
    bed.good("verify", "second@2", "--store", other)
    bed.good("diff", "second@2", "second@2", "--store", other)
    folder = os.path.join(other, "second", "step-00000002-a0002")
    first, second = (os.path.join(folder, f"shard-0000{i}-of-00002.safetensors") for i in (1, 2))
    os.remove(os.path.join(folder, "manifest.json"))  # as one that was cut short
    kept = os.stat(first).st_ino
    os.truncate(second, 8192)
    out = json.loads(bed.good("cp", bed.run, f"{other}:second", "--json", *bed.where))
    assert (out["copied"], out["shards_kept"]) == (1, 1) and os.stat(first).st_ino == kept, out
    bed.good("verify", "second@2", "--store", other)
    os.remove(os.path.join(folder, "manifest.json"))
    change(first, 50000)  # under a correct table: found when the stored bytes are read
    code, out, err = bed.cli("cp", bed.run, f"{other}:second", "--json", *bed.where)
    assert code == 0 and "block 0" in err and "shard 1" in err, (code, err)
    assert json.loads(out)["shards_kept"] == 1, out
    bed.good("verify", "second@2", "--store", other)
    os.remove(os.path.join(folder, "manifest.json"))  # for a repair that finds one cut short


def what_is_damaged_is_not_copied(bed):
    other = os.path.join(bed.folder, "third")
    shard = bed.path(bed.run, "step-00000002-a0002", "shard-00002-of-00002.safetensors")
    change(shard, 50000)
    code, _, err = bed.cli("cp", bed.run + "@2", f"{other}:third", *bed.where)
    assert code == 1 and "shard 2: block 0 is damaged" in err, (code, err)
    change(shard, 50000)
    assert bed.listed("--store", other) == [], bed.listed("--store", other)


def a_copy_goes_into_a_served_store(bed):
    out = bed.good("cp", bed.run, "twin", *bed.where)
    assert "2 checkpoints copied" in out, out
    assert bed.states("twin", *bed.where) == {1: None, 2: None}
    bed.load("twin", 2)
    assert "0 checkpoints copied" in bed.good("cp", bed.run, "twin", *bed.where)
    code, _, err = bed.cli("cp", bed.run, bed.run, *bed.where)
    assert code == 2 and "itself" in err, err
    bed.stop()
    bed.launch()
    bed.load("twin", 1)


def a_damaged_shard_is_repaired_from_a_copy(bed):
    other = os.path.join(bed.folder, "other")
    bed.good("cp", bed.run, f"{other}:backup", *bed.where)
    folder = bed.path(bed.run, "step-00000002-a0002")
    first, second = (os.path.join(folder, f"shard-0000{i}-of-00002.safetensors") for i in (1, 2))
    kept = os.stat(first).st_ino
    for harm in (lambda: change(second, 1500000), lambda: os.truncate(second, 8192),
                 lambda: os.remove(second), lambda: change(second, 40)):
        harm()
        assert bed.cli("verify", bed.run + "@2", *bed.where)[0] == 1
        out = json.loads(bed.good("repair", bed.run + "@2", "--from", f"{other}:backup", "--json",
                                  *bed.where))
        assert out["shards_replaced"] == 1 and os.stat(first).st_ino == kept, out
        bed.good("verify", bed.run + "@2", *bed.where)
    change(second, 1500000)
    bed.stop()
    bed.launch("--scrub.start_ms", "1", "--scrub.rate", "1GiB")
    change(os.path.join(other, "backup", "step-00000002-a0002",
                        "shard-00002-of-00002.safetensors"), 1600000)
    code, _, err = bed.cli("repair", bed.run + "@2", "--from", f"{other}:backup", *bed.where)
    assert code == 1 and "block 1 is damaged" in err and other in err, (code, err)
    change(os.path.join(other, "backup", "step-00000002-a0002",
                        "shard-00002-of-00002.safetensors"), 1600000)
    comes(lambda: "DAMAGED" in bed.cli("list", *bed.where)[1])
    bed.good("repair", bed.run + "@2-a2", "--from", f"{other}:backup", *bed.where)
    assert "DAMAGED" not in bed.good("list", *bed.where)
    bed.load(bed.run, 2)


def a_lost_manifest_is_made_of_the_shards_and_has_no_state(bed):
    folder = bed.path(bed.run, "step-00000002-a0002")
    manifest = os.path.join(folder, "manifest.json")
    name, where = f"{bed.run}@2-a2", ("--store", bed.store)
    digests = {one["name"]: one["digest"]
               for one in json.loads(bed.good("show", name, "--json", *bed.where))["tensors"]}
    for harm in (lambda: os.remove(manifest), lambda: change(manifest, 4200)):
        for where in (bed.where, ("--store", bed.store)):
            os.chmod(manifest, 0o600)
            harm()
            bed.stop()
            if where == bed.where:
                bed.launch()
            out = json.loads(bed.good("repair", name, "--json", *where))
            assert out["manifest_replaced"] and out["state_lost"], out
            assert "whole" in bed.good("verify", name, *where)
            shown = json.loads(bed.good("show", name, "--json", *where))
            assert shown["state"] == {"lost": True}, shown
            assert {one["name"]: one["digest"] for one in shown["tensors"]} == digests
            if where != bed.where:
                bed.launch()
            assert bed.states(bed.run, *bed.where)[2] is None
            bed.load(bed.run, 2)
            kept = os.path.join(folder, "manifest.damaged")
            if os.path.exists(kept):
                os.remove(kept)
    os.remove(manifest)
    shard = os.path.join(folder, "shard-00002-of-00002.safetensors")
    change(shard, 1500000)
    code, _, err = bed.cli("repair", name, *bed.where)
    assert code == 1 and "shard 2: block 1 is damaged" in err and not os.path.exists(manifest), err
    os.rename(shard, shard + ".away")
    code, _, err = bed.cli("repair", name, *bed.where)
    assert code == 1 and "shard 2: the file is missing" in err, err
    os.rename(shard + ".away", shard)
    change(shard, 1500000)


def a_lost_manifest_comes_from_a_copy_with_its_state(bed):
    other = os.path.join(bed.folder, "other")
    folder = bed.path(bed.run, "step-00000002-a0002")
    manifest, name = os.path.join(folder, "manifest.json"), f"{bed.run}@2-a2"
    shard = os.path.join(folder, "shard-00001-of-00002.safetensors")
    assert not os.path.exists(manifest)
    change(shard, 1500000)
    code, _, err = bed.cli("repair", name, "--from", f"{other}:second", *bed.where)
    assert code != 0 and not os.path.exists(manifest), err  # an adoption that was interrupted there
    third = os.path.join(bed.folder, "of-another-save")
    shutil.copytree(os.path.join(bed.store, bed.run, "step-00000001-a0001"),
                    os.path.join(third, bed.run, "step-00000002-a0002"))
    code, _, err = bed.cli("repair", name, "--from", third, *bed.where)
    assert code != 0 and "different saves" in err and not os.path.exists(manifest), (code, err)
    out = json.loads(bed.good("repair", name, "--from", f"{other}:backup", "--json", *bed.where))
    assert out["manifest_replaced"] and not out["state_lost"] and out["shards_replaced"] == 1, out
    shown = json.loads(bed.good("show", name, "--json", *bed.where))
    assert shown["state"].get("mark") == 1, shown["state"]
    bed.load(bed.run, 2)


def a_tag_means_its_checkpoint_in_every_command(bed):
    run = bed.run
    bed.good("tag", f"{run}@1", "best", *bed.where)
    for where in (bed.where, ("--store", bed.store)):
        assert json.loads(bed.good("show", f"{run}@best", "--json", *where))["step"] == 1
        assert "tag best" in bed.good("list", run, *where)
        assert "tags         best" in bed.good("show", f"{run}@best", *where)
        code, _, err = bed.cli("show", f"{run}@worst", *where)
        assert code == 66 and "no tag 'worst'" in err, err
    bed.good("verify", f"{run}@best", *bed.where)
    bed.good("tag", f"{run}@2", "best", "--pin", *bed.where)  # it moves
    listed = {one["step"]: (one.get("tags"), one["pinned"]) for one in bed.listed(*bed.where)
              if one["run"] == run}
    assert listed == {1: (None, False), 2: ("best", True)}, listed
    code, _, err = bed.cli("tag", f"{run}@2", "7up", *bed.where)
    assert code == 2 and "a letter" in err, err
    bed.good("untag", run, "best", *bed.where)
    assert bed.cli("untag", run, "best", *bed.where)[0] == 66
    bed.good("unpin", f"{run}@2", *bed.where)
    bed.load(run, 2)


def main():
    bed = Bed()
    try:
        bed.launch()
        bed.save([1, 2])
        return lib_tap.run([one_moved_by_hand_is_explained_and_moved_back_it_is_whole,
                            one_copied_by_hand_is_adopted_and_served_at_once,
                            a_renamed_run_is_whole_and_served,
                            a_copy_is_incremental_resumed_and_proven,
                            what_is_damaged_is_not_copied,
                            a_copy_goes_into_a_served_store,
                            a_damaged_shard_is_repaired_from_a_copy,
                            a_lost_manifest_is_made_of_the_shards_and_has_no_state,
                            a_lost_manifest_comes_from_a_copy_with_its_state,
                            a_tag_means_its_checkpoint_in_every_command], bed)
    finally:
        bed.close()


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
