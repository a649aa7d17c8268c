#!/usr/bin/env python3
"""gateway - the back-end s3 and ckpt-cli against a real S3 server: Ceph's RADOS gateway.

Goal: the results with the tests' server also hold with an independent one: plain and with TLS,
conditional writes, uploads, leases. Of many writers of one key exactly one wins, each time. Each
command of ckpt-cli that works on a directory works on a bucket, and checkpoints that ckptd removes
there can be undeleted. Method: lib_rgw.py starts it; the driver, ckpt-cli and ckptd ask it.
RACES=1000 makes the races longer.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import unittest.mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integration"))

import lib_rgw  # noqa: E402
import lib_tap  # noqa: E402
from lib_drive import Driver, environment  # noqa: E402
from lib_store import CLI, World, comes_to, wait_until  # noqa: E402
from tier import drained  # noqa: E402

MIB = 1 << 20
PART = 5 * MIB  # the least that this server takes
SIZE = 3 * PART + 4096
RACES = int(os.environ.get("RACES", 40))
SETTINGS = {"HOLDFAST_S3_PART_BYTES": str(PART)}


class Bed:
    def __init__(self, folder, gateway):
        self.folder, self.plain, self.world = folder, gateway, None

    def driver(self, prefix, gateway=None, **more):
        return Driver(f"s3://checkpoints/{prefix}", (gateway or self.plain).environment, SETTINGS,
                      more)

    def cli(self, *arguments, codes=(0,)):
        done = subprocess.run([CLI, *map(str, arguments)], capture_output=True, text=True,
                              timeout=120, env=environment(self.plain.environment))
        assert done.returncode in codes, (arguments, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def store(self):
        """A directory with three checkpoints; its run."""
        if self.world is None:
            self.world = World()
            self.world.launch()
            self.world.save([10, 20, 30])
            self.world.stop()
        return self.world.store, self.world.run

    def keys(self, prefix):
        """The server's own list, as XML."""
        return self.plain.curl(f"checkpoints?prefix={prefix}").stdout

    def listed(self, store):
        return json.loads(self.cli("list", "--json", "--store", store))

    def close(self):
        if self.world:
            self.world.close()


def go_through(driver):
    driver.good("publish", "run/marker", "text")
    assert driver.do("publish", "run/marker", "text")[0] == "ERR_EXISTS"
    driver.good("send", "run/shard", SIZE, 5)
    assert driver.good("get", "run/shard", 5) == f"{SIZE} same"
    assert driver.do("send", "run/shard", SIZE, 5)[0] == "ERR_EXISTS"
    driver.good("publish", "run/empty")
    assert driver.good("fetch", "run/empty").split() == ["0"]
    assert driver.good("fetch", "run/marker") == "4 text"
    driver.good("list", "run")
    assert sorted(driver.listed) == ["empty", "marker", "shard"]
    driver.good("hold", 0, "run/leases/x", "me")
    driver.good("holder", "run/leases/x")
    driver.good("release", 0)
    assert driver.do("holder", "run/leases/x")[0] == "ERR_NOT_FOUND"
    driver.good("lock")
    driver.good("remove", "run/marker")
    assert driver.do("remove", "run/marker")[0] == "ERR_NOT_FOUND"
    assert driver.do("fetch", "run/marker")[0] == "ERR_NOT_FOUND"
    assert driver.do("remove", "run")[0] == "ERR_EXISTS"


def a_real_server_keeps_what_it_is_given(bed):
    with bed.driver("plain") as driver:
        assert "conditional PUT" in driver.good("describe")
        go_through(driver)


def with_tls_too_and_only_from_an_authority_that_is_named(bed):
    with lib_rgw.Gateway(os.path.join(bed.folder, "tls"), tls=True) as gateway:
        with bed.driver("tls", gateway) as driver:
            go_through(driver)
        with bed.driver("tls", gateway, AWS_CA_BUNDLE="/etc/ssl/certs/ca-certificates.crt",
                        HOLDFAST_S3_RETRY_S="1") as driver:
            assert driver.opened[0] in ("ERR_DENIED", "ERR_INVALID"), driver.opened


def one_wins(writers, key, text_of):
    """All publish it at once, each a different text."""
    for place, writer in enumerate(writers):
        writer.process.stdin.write(f"publish {key} {text_of(place)}\n")
        writer.process.stdin.flush()
    answers = [writer.answer() for writer in writers]
    winners = [place for place, (word, _) in enumerate(answers) if word == "OK"]
    assert len(winners) == 1, (key, answers)
    assert all(word in ("OK", "ERR_EXISTS") for word, _ in answers), answers
    for reader in writers:
        bytes_, text = reader.good("fetch", key).split()
        assert text_of(winners[0]).startswith(text) and int(bytes_) == len(text_of(winners[0])), key


def of_writers_that_race_for_an_attempt_exactly_one_wins_each_time(bed):
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(bed.driver("race")) for _ in range(4)]
        for number in range(RACES):
            one_wins(writers, f"run/attempts/{number:04d}", str)


def of_writers_that_race_for_a_steps_manifest_exactly_one_wins_each_time(bed):
    """Each has sent its own shard before, and the winner's shards are all there after the race."""
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(bed.driver("race")) for _ in range(2)]
        for number in range(RACES):
            step = f"run/step-{number:08d}-a0001"
            for place, writer in enumerate(writers):
                writer.good("send", f"{step}/shard-{place}", 4096, place)
            one_wins(writers, f"{step}/manifest.json", lambda place: f"{place:032x}" + "m" * 600)
            writers[0].good("list", step)
            assert sorted(writers[0].listed) == ["manifest.json", "shard-0", "shard-1"], number


def an_upload_that_was_cut_short_goes_on_and_another_is_swept(bed):
    with bed.driver("cut") as driver:
        driver.process.stdin.write(f"put run/x {SIZE} 3\n")
        driver.process.stdin.flush()
        driver.kill()
    with bed.driver("cut", HOLDFAST_S3_UPLOAD_IDLE_S="1") as driver:
        driver.good("put", "run/x", SIZE, 3)
        assert driver.good("get", "run/x", 3) == f"{SIZE} same"
        assert driver.good("sweep", "run", 0) == "0 0"


# ---- ckpt-cli ----

def checkpoints_are_copied_into_a_bucket_and_back_byte_for_byte(bed):
    store, run = bed.store()
    there = "s3://checkpoints/cli"
    said = json.loads(bed.cli("cp", "--json", "--store", store, run, f"{there}:{run}"))
    assert said["copied"] == 3, said
    again = json.loads(bed.cli("cp", "--json", "--store", store, run, f"{there}:{run}"))
    assert again["copied"] == 0 and again["there_already"] == 3, again
    assert [one["step"] for one in bed.listed(there)] == [30, 20, 10]
    back = os.path.join(bed.folder, "back")
    bed.cli("cp", "--store", there, run, f"{back}:{run}")
    for path, _, names in os.walk(os.path.join(back, run)):
        for name in names:
            copied = os.path.join(path, name)
            source = copied.replace(back, store)
            if name.endswith(".safetensors") or name == "manifest.json":
                with open(copied, "rb") as one, open(source, "rb") as other:
                    assert one.read() == other.read(), copied
    shutil.rmtree(back)


def commands_on_a_bucket_say_what_they_say_on_a_directory(bed):
    store, run = bed.store()
    there = "s3://checkpoints/cli"
    for command in (("show", f"{run}@20"), ("du",), ("verify", f"{run}@20"),
                    ("verify", "--quick", f"{run}@10"), ("diff", f"{run}@10", f"{run}@10"),
                    ("gc", "--dry-run")):
        bed.cli(*command, "--store", there)
        bed.cli(*command, "--store", store)
    bed.cli("diff", f"{run}@10", f"{run}@20", "--store", there, codes=(1,))
    here, far = (json.loads(bed.cli("show", "--json", f"{run}@20", "--store", one))
                 for one in (store, there))
    assert far["nonce"] == here["nonce"] and far["tensors"] == here["tensors"]
    bed.cli("pin", f"{run}@10", "--store", there)
    bed.cli("prune", run, "--keep-last", "2", "--store", there)
    assert len(bed.listed(there)) == 3, "a pinned one was pruned"
    bed.cli("unpin", f"{run}@10", "--store", there)
    bed.cli("prune", run, "--keep-last", "2", "--store", there)
    assert [one["step"] for one in bed.listed(there)] == [30, 20]
    bed.cli("gc", "--store", there)


def outputs_are_made_in_a_bucket_and_read_from_one(bed):
    store, run = bed.store()
    there = "s3://checkpoints/made"
    bed.cli("convert", f"{run}@20", "--store", store, "--output", there, "--dtype", "bf16")
    bed.cli("convert", f"{run}@30", "--store", "s3://checkpoints/cli", "--shards", "3",
            "--output", there)
    assert sorted(one["step"] for one in bed.listed(there)) == [20, 30]
    bed.cli("verify", "--all", "--store", there)
    path = os.path.join(bed.folder, "one.safetensors")
    other = os.path.join(bed.folder, "two.safetensors")
    bed.cli("export", f"{run}@30", "--store", "s3://checkpoints/cli", "--output", path)
    bed.cli("export", f"{run}@30", "--store", store, "--output", other)
    with open(path, "rb") as one, open(other, "rb") as two:
        assert one.read() == two.read()


# ---- ckptd ----

def what_is_removed_there_comes_back_until_its_term_is_over(bed):
    """By the tier's rules, then by name: the manifest goes into the trash, and comes out of it."""
    there, day = "s3://checkpoints/trash", ("--tier.trash_s", "86400")
    options = ("--tier.store", there, "--tier.quiet", "false", "--tier.look_ms", "0",
               "--retention.keep_last", "1", "--retention.may_remove_most", "true")
    with unittest.mock.patch.dict(os.environ, bed.plain.environment), \
            contextlib.closing(World()) as world:
        def steps():
            return sorted(one["step"] for one in bed.listed(there))

        def trashed():
            return world.cli("undelete", run, "--dry-run", *world.where)[1].count("in the far tier")

        world.launch(*options, *day, "--tier.keep_last", "2")
        for step in (1, 2, 3):
            world.save_one(step)
            wait_until(drained(world), world.log)
        run = world.listed()[0]["run"]
        assert comes_to(lambda: (steps(), trashed()), ([2, 3], 1)), world.log()[-3000:]
        bed.cli("gc", "--store", there)  # leaves its shards
        world.stop()
        world.launch(*options, *day)
        assert world.cli("undelete", f"{run}@1", *world.where)[0] == 0, world.log()[-3000:]
        bed.cli("verify", f"{run}@1", "--store", there)
        assert steps() == [1, 2, 3] and trashed() == 0
        assert world.cli("rm", f"{run}@1-a1", "--yes", *world.where)[0] == 0
        assert steps() == [2, 3] and trashed() == 1
        world.stop()
        world.launch(*options, "--tier.trash_s", "1")
        assert comes_to(trashed, 0), world.log()[-3000:]
        bed.cli("verify", run, "--store", there)
        world.stop()
    keys = bed.keys("trash")
    assert "step-00000002" in keys and "step-00000001" not in keys, keys


def what_is_removed_leaves_the_servers_memory(bed):
    """Otherwise it is full one day, and each write waits for ever."""
    path = os.path.join(bed.folder, "big")
    with open(path, "wb") as file:
        file.truncate(SIZE)
    bed.plain.curl("checkpoints/big", "-T", path)
    bed.plain.curl("checkpoints/big", "-X", "DELETE")
    bed.plain.until("room again", lambda: bed.plain.num_removed() == 0)


TESTS = [
    a_real_server_keeps_what_it_is_given,
    with_tls_too_and_only_from_an_authority_that_is_named,
    of_writers_that_race_for_an_attempt_exactly_one_wins_each_time,
    of_writers_that_race_for_a_steps_manifest_exactly_one_wins_each_time,
    an_upload_that_was_cut_short_goes_on_and_another_is_swept,
    checkpoints_are_copied_into_a_bucket_and_back_byte_for_byte,
    commands_on_a_bucket_say_what_they_say_on_a_directory,
    outputs_are_made_in_a_bucket_and_read_from_one,
    what_is_removed_there_comes_back_until_its_term_is_over,
    what_is_removed_leaves_the_servers_memory,
]


def tell(folder, gateway):
    with contextlib.closing(Bed(folder, gateway)) as bed:
        return lib_tap.run(TESTS, bed)


if __name__ == "__main__":
    sys.exit(lib_rgw.main(tell))
