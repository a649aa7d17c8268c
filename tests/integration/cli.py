#!/usr/bin/env python3
"""cli - ckpt-cli on a real store, with the stock safetensors library as the second opinion.

Goal: every shard and every export is a genuine safetensors file with the right values; list, show,
verify, diff, export and convert tell the truth, name damage exactly, and end with the documented
exit codes; hostile files make them fail cleanly; a converted checkpoint is one like any other.
Method: a real ckptd; `clients_ckpt save` stores tensors whose every element follows from tensor,
step and index, so this script computes them again with NumPy. Files are then damaged byte by byte.
time limit: 180 s
"""

import hashlib
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

import lib_tap

lib_tap.need("numpy", "safetensors")
import numpy  # noqa: E402
import safetensors  # noqa: E402
import safetensors.numpy  # noqa: E402

BUILD = os.path.abspath(os.environ.get("BUILD", "build"))
CLI = os.path.join(BUILD, "ckpt-cli")
SAVER = os.path.join(BUILD, "tests/clients_ckpt")
MODEL = [  # as in tests/unit/clients_bed.h
    ("tok_embeddings.weight", "F32", (517, 1300)),
    ("layers.0.attention.wq.weight", "BF16", (700, 811)),
    ("layers.0.attention_norm.weight", "F32", (37,)),
    ("optimizer.exp_avg.tok_embeddings.weight", "F32", (517, 1300)),
    ("experts", "F16", (3, 5, 7, 11)),
    ("optimizer.step", "I64", ()),
    ("mask", "U8", (13, 1, 29)),
    ("tiny", "F64", (2,)),
]
BYTES = {"F64": 8, "I64": 8, "F32": 4, "BF16": 2, "F16": 2, "U8": 1}
UNSIGNED = {8: numpy.uint64, 4: numpy.uint32, 2: numpy.uint16, 1: numpy.uint8}
TESTS = []


def test(function):
    TESTS.append(function)
    return function


def mix(value):
    value = (value ^ value >> numpy.uint64(33)) * numpy.uint64(0xFF51AFD7ED558CCD)
    value = (value ^ value >> numpy.uint64(33)) * numpy.uint64(0xC4CEB9FE1A85EC53)
    return value ^ value >> numpy.uint64(33)


def bits_of(index, step):
    """The bits of the elements of tensor `index` at `step`, as unsigned integers of their size."""
    _, dtype, shape = MODEL[index]
    count = int(numpy.prod(shape, dtype=numpy.int64))
    with numpy.errstate(over="ignore"):
        values = mix(
            numpy.arange(count, dtype=numpy.uint64) + numpy.uint64((index << 40) + (step << 48))
        )
    return values.astype(UNSIGNED[BYTES[dtype]]).reshape(shape)


def cli(*arguments, want=0):
    """Runs ckpt-cli; returns what it printed. Fails when it ends otherwise than with `want`."""
    done = subprocess.run([CLI, *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == want, (arguments, done.returncode, want, done.stdout, done.stderr)
    assert (done.stderr == "") == (want == 0 or (want == 1 and done.stdout != "")), done.stderr
    assert done.stderr.count("\n") <= 1, done.stderr
    return done.stdout if done.stdout else done.stderr


class Bed:
    def __init__(self, store=None):
        self.root = tempfile.mkdtemp(prefix="cli-", dir=os.environ.get("TMPDIR", "/var/tmp"))
        self.store = store or os.path.join(self.root, "store")
        self.server = f"unix:{self.root}/s"
        self.ckptd = None
        self.start()

    def start(self):
        with open(os.path.join(self.root, "ckptd.log"), "ab") as log:
            self.ckptd = subprocess.Popen(
                [
                    os.path.join(BUILD, "ckptd"),
                    "--listen",
                    self.server,
                    "--store",
                    self.store,
                    "--memory.pool_bytes",
                    "64MiB",
                    "--memory.segment_bytes",
                    "4MiB",
                ],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 20
        while (
            subprocess.run([CLI, "health", "--server", self.server], capture_output=True).returncode
            != 0
        ):
            assert time.monotonic() < deadline, "ckptd does not answer"
            time.sleep(0.05)

    def stop(self):
        self.ckptd.send_signal(signal.SIGTERM)
        assert self.ckptd.wait(60) == 0, read(os.path.join(self.root, "ckptd.log")).decode()

    def save(self, world, seed, step):
        subprocess.run(
            [SAVER, "save", self.server, str(world), str(seed), str(step)], check=True, timeout=60
        )

    def folder(self, step, attempt):
        return os.path.join(self.store, "trip", f"step-{step:08d}-a{attempt:04d}")

    def shards(self, step, attempt):
        folder = self.folder(step, attempt)
        return sorted(
            os.path.join(folder, name) for name in os.listdir(folder) if name.startswith("shard-")
        )

    def copy(self, name):
        """A copy of the store, to be damaged."""
        to = os.path.join(self.root, name)
        shutil.copytree(self.store, to)
        return to


def read(path):
    with open(path, "rb") as file:
        return file.read()


def change(path, offset, new=None):
    with open(path, "r+b") as file:
        file.seek(offset)
        old = file.read(1)
        file.seek(offset)
        file.write(new if new is not None else bytes([old[0] ^ 0x10]))


# ---- the files themselves


@test
def every_shard_opens_with_the_stock_library_and_the_pieces_make_up_the_tensors(bed):
    for step, attempt in ((1, 1), (2, 2)):
        seen = [numpy.zeros(shape, dtype=numpy.int32) for _, _, shape in MODEL]
        names = [name for name, _, _ in MODEL]
        for path in bed.shards(step, attempt):
            with safetensors.safe_open(path, framework="np") as file:
                metadata = file.metadata()
                assert metadata["format"] == "holdfast-shard" and metadata["step"].strip() == str(
                    step
                )
                assert "__block_checksums__" in file.keys()
            for name, tensor in safetensors.deserialize(read(path)):
                if name == "__block_checksums__":
                    continue
                index = names.index(name)
                offset, shape = metadata["slice." + name].split(";")
                offset = [int(o) for o in offset.split(",") if o]
                assert tuple(int(s) for s in shape.split(",") if s) == MODEL[index][2], (
                    name,
                    shape,
                )
                assert tensor["dtype"] == MODEL[index][1]
                where = tuple(slice(o, o + e) for o, e in zip(offset, tensor["shape"]))
                part = numpy.frombuffer(tensor["data"], dtype=UNSIGNED[BYTES[tensor["dtype"]]])
                assert numpy.array_equal(
                    part.reshape(tensor["shape"]), bits_of(index, step)[where]
                ), name
                seen[index][where] += 1
        for index, counts in enumerate(seen):
            assert numpy.all(counts == 1), names[index]


@test
def the_manifest_ends_with_the_sha256_of_all_before_it(bed):
    text = read(os.path.join(bed.folder(1, 1), "manifest.json"))
    at = text.rindex(b'"sha256"')
    assert json.loads(text)["sha256"] == hashlib.sha256(text[:at]).hexdigest()
    shown = json.loads(text) | {"durability": "local"}
    for where in (["--store", bed.store], ["--server", bed.server]):
        assert json.loads(cli("show", "trip@1-a1", *where, "--json")) == shown
        assert "\ndurability   local\n" in cli("show", "trip@1-a1", *where)


def checked_export(bed, *options):
    """An export as {name: (dtype, bits)}, opened by the stock library."""
    path = os.path.join(bed.root, "export.safetensors")
    cli("export", "trip@1-a1", "--store", bed.store, "--output", path, "--force", *options)
    with safetensors.safe_open(path, framework="np") as file:
        assert file.metadata()["format"] == "pt"
    out = {}
    for name, tensor in safetensors.deserialize(read(path)):
        bits = numpy.frombuffer(tensor["data"], dtype=UNSIGNED[BYTES[tensor["dtype"]]])
        out[name] = (tensor["dtype"], bits.reshape(tensor["shape"]))
    assert not os.path.exists(path + ".part")
    return out


@test
def an_export_holds_whole_tensors_bit_for_bit(bed):
    out = checked_export(bed)
    assert set(out) == {name for name, _, _ in MODEL}
    for index, (name, dtype, _) in enumerate(MODEL):
        assert out[name][0] == dtype and numpy.array_equal(out[name][1], bits_of(index, 1)), name


def as_double(bits, dtype):
    if dtype == "BF16":
        return (bits.astype(numpy.uint32) << 16).view(numpy.float32).astype(numpy.float64)
    return bits.view(
        {"F16": numpy.float16, "F32": numpy.float32, "F64": numpy.float64}[dtype]
    ).astype(numpy.float64)


@test
def an_export_rounds_as_numpy_does_and_leaves_the_optimizer_out_when_told(bed):
    for option, dtype in (("fp16", "F16"), ("fp32", "F32"), ("bf16", "BF16")):
        out = checked_export(bed, "--dtype", option, "--weights-only")
        assert set(out) == {name for name, _, _ in MODEL if not name.startswith("optimizer.")}
        for index, (name, stored, _) in enumerate(MODEL):
            if name not in out:
                continue
            if stored == "U8":
                assert out[name][0] == "U8"
                continue
            assert out[name][0] == dtype
            with numpy.errstate(all="ignore"):
                source = as_double(bits_of(index, 1), stored)
                got = as_double(out[name][1], dtype)
                if dtype == "BF16":  # the nearest of the two neighbours, by brute force
                    want = nearest_bf16(source)
                else:
                    want = source.astype(
                        {"F16": numpy.float16, "F32": numpy.float32}[dtype]
                    ).astype(numpy.float64)
            assert numpy.array_equal(got, want, equal_nan=True), (name, dtype)


def nearest_bf16(values):
    """Rounded in units of the last place: 8 significant bits, subnormals below 2^-126."""
    _, exponent = numpy.frexp(values)
    unit = numpy.ldexp(1.0, numpy.maximum(exponent, -125) - 8)
    out = numpy.rint(values / unit) * unit
    out[numpy.abs(out) >= 2.0**128] = numpy.sign(values[numpy.abs(out) >= 2.0**128]) * numpy.inf
    return out


@test
def an_export_never_replaces_a_file_unasked(bed):
    path = os.path.join(bed.root, "kept")
    with open(path, "w") as file:
        file.write("mine")
    assert "--force" in cli("export", "trip", "--store", bed.store, "--output", path, want=74)
    assert read(path) == b"mine"


# ---- what the commands say


@test
def list_and_show_agree_with_the_server_and_with_each_other(bed):
    offline = json.loads(cli("list", "--store", bed.store, "--json"))
    online = json.loads(cli("list", "--server", bed.server, "--json"))
    assert [(c["step"], c["attempt"]) for c in offline] == [(1, 3), (2, 2), (1, 1)]
    for entry in offline + online:
        entry.pop("in_memory")
    assert offline == online
    assert offline[2]["bytes"] == sum(os.path.getsize(path) for path in bed.shards(1, 1))
    assert cli("list", "trip", "--store", bed.store).split("\n")[1].split()[0] == "trip@1-a3"
    shown = cli("show", "trip@1-a1", "--store", bed.store)
    assert (
        "trip@1-a1" in shown
        and "tok_embeddings.weight" in shown
        and '{"mark":1}' in shown.replace(" ", "")
    )
    assert shown == cli("show", "trip@1-a1", "--server", bed.server)
    assert json.loads(cli("status", "--server", bed.server, "--json"))
    assert json.loads(cli("health", "--server", bed.server, "--json")) == {"serving": True}


@test
def verify_finds_a_good_checkpoint_whole(bed):
    for name in ("trip@1-a1", "trip@2", "trip"):
        assert "all match" in cli("verify", name, "--store", bed.store)
    report = json.loads(cli("verify", "trip@1-a1", "--store", bed.store, "--json"))
    assert report["damages"] == 0 and report["shards"] == 3 and report["tensors"] == len(MODEL)


@test
def diff_compares_other_world_sizes_by_digest_and_other_values_by_reading(bed):
    assert "equal" in cli(
        "diff", "trip@1-a1", "trip@1-a3", "--store", bed.store
    )  # 3 ranks against 5
    report = json.loads(cli("diff", "trip@1-a1", "trip@2", "--store", bed.store, "--json", want=1))
    assert report["different"] == len(MODEL) and report["same"] == 0
    found = {tensor["tensor"]: tensor for tensor in report["tensors"]}
    largest = [float("inf") if t["largest"] is None else t["largest"] for t in report["tensors"]]
    assert largest == sorted(largest, reverse=True), largest
    for index, (name, dtype, _) in enumerate(MODEL):
        one, two = bits_of(index, 1), bits_of(index, 2)
        assert found[name]["differing"] == int(numpy.sum(one != two)), name
        if dtype == "U8":
            assert found[name]["largest"] == int(
                numpy.max(numpy.abs(one.astype(int) - two.astype(int)))
            )
        if dtype == "F64":
            assert found[name]["largest"] == float(
                numpy.max(numpy.abs(as_double(one, dtype) - as_double(two, dtype)))
            )


@test
def exit_codes_are_the_documented_ones(bed):
    store, server = ("--store", bed.store), ("--server", bed.server)
    commands = re.findall(r"^  ([a-z]+) ", cli("--help"), re.M)
    assert {"list", "prune", "watch", "health"} < set(commands), commands
    for command in commands:
        text = cli(command, "--help")
        assert f"usage: ckpt-cli {command} " in text and "--json" in text, text
        assert "Exit codes: 0" in text, text
        assert text == cli(command, "-h")
        usage = text.split("\n")[0]
        assert (text.count("CHECKPOINT is") == 1) == ("CHECKPOINT" in usage), usage
    assert "(default 5GiB)" in cli("export", "--help")
    for wrong in (
        ["dance"],
        ["verify", *store],
        ["list", "--colour", "red"],
        ["verify", "trip@x", *store],
        ["export", "trip", *store],
        ["convert", "trip", "--dtype", "bf16", *store],
        ["convert", "trip", "--output", bed.root + "/new", *store],
        ["convert", "trip", "--dtype", "bf16", "--output", bed.store, *store],
        ["diff", "trip", "trip", "--quick", *store],
        ["list", *store, "--server", "unix:/x"],
        ["diff", "trip", *store],
        ["list", "--dtype", "fp32", *store],
    ):
        assert "(" in cli(*wrong, want=2)
    for absent in (
        ["verify", "nobody", *store],
        ["show", "trip@9", *store],
        ["show", "trip@1-a9", *store],
        ["list", "--store", bed.root + "/nothing"],
        *(["list", "nobody", *where] for where in (store, server)),
        *(["du", "nobody", *where] for where in (store, server)),
        *(["prune", "nobody", "--keep-last", "1", "--dry-run", *where]
          for where in (store, server)),
        ["show", "trip@9", *server],
    ):
        cli(*absent, want=66)
    for command in (["list"], ["show", "trip"], ["status"], ["health"], ["verify", "trip"],
                    ["diff", "trip", "trip"], ["du"], ["gc"],
                    ["convert", "trip", "--dtype", "bf16", "--output", bed.root + "/new"]):
        assert "start ckptd" in cli(*command, "--server", f"unix:{bed.root}/nobody", want=69)
    cli("export", "trip", *store, "--output", "/nonexistent/folder/file", want=74)


# ---- convert


def converted(bed, name, *options, checkpoint="trip@1-a1", want=0):
    target = os.path.join(bed.root, name)
    text = cli("convert", checkpoint, "--store", bed.store, "--output", target, *options, want=want)
    return target, text


def rounded(bits, stored, option):
    """What the conversion of elements with these bits has to give: (dtype, values as doubles)."""
    dtype = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}[option]
    with numpy.errstate(all="ignore"):
        values = as_double(bits, stored)
        if dtype == "BF16":  # the nearest of the two neighbours, by brute force
            return dtype, nearest_bf16(values)
        numpy_type = {"F16": numpy.float16, "F32": numpy.float32}[dtype]
        return dtype, values.astype(numpy_type).astype(numpy.float64)


@test
def a_converted_checkpoint_is_one_like_any_other(bed):
    nonce = json.loads(cli("show", "trip@1-a1", "--store", bed.store, "--json"))["nonce"]
    names = [name for name, _, _ in MODEL]
    for option, weights_only in (("bf16", True), ("fp16", False), ("fp32", False)):
        options = ["--dtype", option] + (["--weights-only"] if weights_only else [])
        target, _ = converted(bed, "to-" + option, *options)
        manifest = json.loads(cli("show", "trip", "--store", target, "--json"))
        assert manifest["lineage"]["converted_from"] == nonce != manifest["nonce"]
        assert (manifest["step"], manifest["attempt"], manifest["shards"]) == (1, 1, 3)
        report = json.loads(cli("verify", "trip@1-a1", "--store", target, "--json"))
        wanted = [n for n in names if not (weights_only and n.startswith("optimizer."))]
        assert report["damages"] == 0 and report["tensors"] == len(wanted)
        seen = [numpy.zeros(shape, dtype=numpy.int32) for _, _, shape in MODEL]
        folder = os.path.join(target, "trip", "step-00000001-a0001")
        for path in (os.path.join(folder, f) for f in os.listdir(folder) if f.startswith("shard-")):
            with safetensors.safe_open(path, framework="np") as file:
                metadata = file.metadata()
            for name, tensor in safetensors.deserialize(read(path)):
                if name == "__block_checksums__":
                    continue
                index = names.index(name)
                stored = MODEL[index][1]
                offset = [int(o) for o in metadata["slice." + name].split(";")[0].split(",") if o]
                where = tuple(slice(o, o + e) for o, e in zip(offset, tensor["shape"]))
                bits = numpy.frombuffer(tensor["data"], dtype=UNSIGNED[BYTES[tensor["dtype"]]])
                bits = bits.reshape(tensor["shape"])
                seen[index][where] += 1
                if stored in ("I64", "U8"):
                    assert tensor["dtype"] == stored
                    assert numpy.array_equal(bits, bits_of(index, 1)[where]), name
                    continue
                dtype, want = rounded(bits_of(index, 1)[where], stored, option)
                assert tensor["dtype"] == dtype
                with numpy.errstate(all="ignore"):
                    got = as_double(bits, dtype)
                assert numpy.array_equal(got, want, equal_nan=True), name
        for index, name in enumerate(names):
            assert numpy.all(seen[index] == (name in wanted)), name


@test
def exceptions_go_by_name_and_the_first_that_matches_counts(bed):
    options = ["--dtype", "bf16", "--except",
               "layers.*norm*=keep,layers.*=fp16,tiny=fp32,mask=fp16"]
    want = {"tok_embeddings.weight": "BF16", "layers.0.attention.wq.weight": "F16",
            "layers.0.attention_norm.weight": "F32", "experts": "BF16", "tiny": "F32",
            "optimizer.exp_avg.tok_embeddings.weight": "BF16", "optimizer.step": "I64",
            "mask": "U8"}
    target, _ = converted(bed, "except", *options)
    made = json.loads(cli("show", "trip", "--store", target, "--json"))
    assert {t["name"]: t["dtype"] for t in made["tensors"]} == want
    assert {name: dtype for name, (dtype, _) in checked_export(bed, *options).items()} == want
    assert json.loads(cli("verify", "trip", "--store", target, "--json"))["damages"] == 0
    for wrong in ("x", "=bf16", "x=", "x=int8", ",", "x=bf16,y"):
        converted(bed, "except2", "--except", wrong, want=2)


@test
def converting_and_then_exporting_is_exporting_with_that_dtype(bed):
    target, _ = converted(bed, "then", "--dtype", "bf16")
    one, two = os.path.join(bed.root, "one"), os.path.join(bed.root, "two with a space")
    cli("export", "trip@1-a1", "--store", bed.store, "--output", one, "--dtype", "bf16")
    cli("export", "trip@1-a1", "--store", target, "--output", two)
    first, second = (
        {name: (tensor["dtype"], tensor["shape"], bytes(tensor["data"])) for name, tensor in parts}
        for parts in map(safetensors.deserialize, map(read, (one, two)))
    )
    assert first == second
    other, _ = converted(bed, "then5", "--dtype", "bf16", checkpoint="trip@1-a3")
    shutil.copytree(os.path.join(other, "trip", "step-00000001-a0003"),
                    os.path.join(target, "trip", "step-00000001-a0003"))
    assert "equal" in cli("diff", "trip@1-a1", "trip@1-a3", "--store", target)


@test
def a_conversion_replaces_nothing_and_says_what_is_in_the_way(bed):
    target, _ = converted(bed, "way", "--dtype", "bf16")
    before = read(os.path.join(target, "trip", "step-00000001-a0001", "manifest.json"))
    for force in ([], ["--force"]):
        _, text = converted(bed, "way", "--dtype", "bf16", *force, want=74)
        assert "already" in text
    assert before == read(os.path.join(target, "trip", "step-00000001-a0001", "manifest.json"))
    copy = bed.copy("locked")  # bed.store itself is in use by ckptd
    text = cli("convert", "trip@1-a1", "--store", copy, "--output", bed.store, "--dtype", "fp32",
               want=74)
    assert f"in use by process {bed.ckptd.pid}" in text
    cli("convert", "trip", "--store", bed.store, "--output", "/proc/nowhere", "--dtype", "fp32",
        want=74)


@test
def a_conversion_needs_room_before_it_begins(bed):
    small = os.path.join(bed.root, "small")
    os.mkdir(small)
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=1m none "$1" && shift && exec "$@"',
         "sh", small, CLI, "convert", "trip", "--store", bed.store, "--output", small, "--dtype",
         "fp32"], capture_output=True, text=True, timeout=60)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        print("# no namespaces here: not tried")
        return
    assert done.returncode == 74 and "MiB are needed" in done.stderr, done


@test
def a_conversion_of_damaged_shards_fails_and_leaves_nothing(bed):
    store = bed.copy("hurt")
    change(bed.shards(1, 1)[2].replace(bed.store, store), (1 << 20) + 77)
    target = os.path.join(bed.root, "hurt-target")
    arguments = ["convert", "trip@1-a1", "--store", store, "--output", target, "--dtype", "bf16"]
    assert "block 1" in cli(*arguments, want=1)
    assert sorted(os.listdir(target)) == [".holdfast.lock"]


@test
def a_conversion_that_was_killed_is_no_checkpoint_and_can_be_done_again(bed):
    target = os.path.join(bed.root, "killed")
    folder = os.path.join(target, "trip", "step-00000001-a0001")
    arguments = ["convert", "trip@1-a1", "--store", bed.store, "--output", target]
    arguments += ["--dtype", "fp32"]
    unfinished = 0
    for count in range(1, 13):
        process = subprocess.Popen([CLI, *arguments], stdout=subprocess.DEVNULL)
        while process.poll() is None and not (
            os.path.isdir(folder) and len(os.listdir(folder)) >= 1 + count % 3
        ):
            pass
        process.kill()
        process.wait()
        listed = json.loads(cli("list", "--store", target, "--json"))
        if os.path.isdir(folder) and not listed:
            unfinished += 1
            assert "--force" in cli(*arguments, want=74)
            cli(*arguments, "--force")
        assert json.loads(cli("list", "--store", target, "--json")) or not os.path.isdir(folder)
        if os.path.isdir(folder):
            cli("verify", "trip@1-a1", "--store", target)
        shutil.rmtree(target)
    assert unfinished > 0, "every conversion was over before it was killed"


# ---- reshard


@test
def a_resharded_checkpoint_has_the_same_bits_in_other_files(bed):
    source = json.loads(cli("show", "trip@1-a1", "--store", bed.store, "--json"))
    target = os.path.join(bed.root, "reshard")
    for number, options, shards in (
        (0, ["--shards", "1"], 1),
        (1, ["--shards", "7"], 7),
        (2, ["--mesh", "dp_replicate=2,dp_shard=3"], 6),
        (3, ["--mesh", "dp_shard=2", "--shards", "2"], 2),
    ):
        store = f"{target}-{number}"
        report = json.loads(cli("reshard", "trip@1-a1", "--store", bed.store, "--output", store,
                                *options, "--json"))
        assert report["shards"] == shards and report["durability"] == "local"
        made = json.loads(cli("show", "trip@1", "--store", store, "--json"))
        assert made["lineage"]["converted_from"] == source["nonce"] != made["nonce"]
        assert (made["step"], made["attempt"], made["world_size"]) == (1, 1, shards)
        for key in ("config", "state", "data", "identity"):
            assert made[key] == source[key], key
        mesh = made["mesh"]
        assert mesh["dp_shard"] * mesh["dp_replicate"] == shards, mesh
        digests = [{t["name"]: t["digest"] for t in m["tensors"]} for m in (made, source)]
        assert digests[0] == digests[1]
        assert json.loads(cli("verify", "trip", "--store", store, "--json"))["damages"] == 0
        path = os.path.join(bed.root, "whole")
        cli("export", "trip", "--store", store, "--output", path, "--force")
        for name, tensor in safetensors.deserialize(read(path)):
            index = [n for n, _, _ in MODEL].index(name)
            got = numpy.frombuffer(tensor["data"], dtype=UNSIGNED[BYTES[MODEL[index][1]]])
            assert numpy.array_equal(got.reshape(tensor["shape"]), bits_of(index, 1)), name
    for wrong in (["--shards", "0"], [], ["--mesh", "tp=2"], ["--mesh", "dp_shard"],
                  ["--mesh", "dp_shard=0"], ["--mesh", "dp_shard=-1"], ["--shards", "65537"],
                  ["--mesh", "dp_shard=2,dp_replicate=2", "--shards", "3"]):
        cli("reshard", "trip", "--store", bed.store, "--output", target + "-5", *wrong, want=2)
    assert "already" in cli("reshard", "trip@1-a1", "--store", bed.store, "--output",
                            target + "-0", "--shards", "1", want=74)
    store = bed.copy("hurt-reshard")
    change(bed.shards(1, 1)[2].replace(bed.store, store), (1 << 20) + 77)
    assert "block 1" in cli("reshard", "trip@1-a1", "--store", store, "--output", target + "-6",
                            "--shards", "2", want=1)
    assert sorted(os.listdir(target + "-6")) == [".holdfast.lock"]


@test
def a_manifest_that_lies_about_a_digest_cannot_be_resharded(bed):
    store = bed.copy("lies")
    manifest = os.path.join(store, "trip", "step-00000001-a0001", "manifest.json")
    text = read(manifest)
    digest = json.loads(text)["tensors"][0]["digest"][0].encode()
    with open(manifest, "wb") as file:
        file.write(resealed(text, digest, digest[::-1]))
    target = os.path.join(bed.root, "lies-target")
    assert "digest" in cli("reshard", "trip@1-a1", "--store", store, "--output", target,
                           "--shards", "2", want=1)
    assert json.loads(cli("list", "--store", target, "--json")) == []


# ---- damage


@test
def damage_is_named_by_shard_block_and_byte_range(bed):
    store = bed.copy("damaged")
    shard = bed.shards(1, 1)[1].replace(bed.store, store)
    offset = (1 << 20) + 12345
    change(shard, offset)
    report = json.loads(cli("verify", "trip@1-a1", "--store", store, "--json", want=1))
    found = [d for d in report["damage"] if "block" in d]
    assert len(found) == 1 and found[0]["object"] == os.path.basename(shard)
    assert (
        found[0]["block"] == 1
        and found[0]["start"] <= offset < found[0]["start"] + found[0]["bytes"]
    )
    assert os.path.basename(shard) in cli("verify", "trip@1-a1", "--store", store, want=1)
    assert "whole" in cli("verify", "trip@2", "--store", store)
    target = os.path.join(bed.root, "damaged.safetensors")
    assert "block 1" in cli("export", "trip@1-a1", "--store", store, "--output", target, want=1)
    assert not os.path.exists(target) and not os.path.exists(target + ".part")


@test
def quick_finds_everything_but_changed_data_and_says_so(bed):
    store = bed.copy("quick")
    shard, other = (path.replace(bed.store, store) for path in bed.shards(1, 1)[:2])
    good = read(shard)
    arguments = ["verify", "trip@1-a1", "--store", store, "--quick"]

    def found():
        damage = json.loads(cli(*arguments, "--json", want=1))["damage"]
        assert {d["object"] for d in damage} == {os.path.basename(shard)}, damage
        return " and ".join(d["what"] for d in damage)

    assert "NOT read" in cli(*arguments)
    assert "does not prove" in cli("verify", "--help").replace("\n", " ")
    header_bytes = 8 + struct.unpack("<Q", good[:8])[0]
    table = json.loads(good[8:header_bytes])["__block_checksums__"]["data_offsets"][0]
    change(shard, header_bytes + 77)  # data
    assert "NOT read" in cli(*arguments)
    report = json.loads(cli(*arguments, "--json"))
    assert report["quick"] and report["blocks"] == 0 and report["damages"] == 0
    cli("verify", "trip@1-a1", "--store", store, want=1)
    change(shard, header_bytes + 77)
    change(shard, header_bytes + table)
    assert "table" in found()
    change(shard, header_bytes + table)
    foreign = read(bed.shards(1, 3)[0])  # another attempt's: same run, other nonce and cut
    foreign_bytes = 8 + struct.unpack("<Q", foreign[:8])[0]
    with open(shard, "r+b") as file:
        file.write(foreign[:foreign_bytes].ljust(header_bytes)[:header_bytes])
    assert "header" in found()
    with open(shard, "r+b") as file:
        file.write(read(other)[:header_bytes])  # the neighbour's
    assert "header" in found()
    with open(shard, "r+b") as file:
        file.write(good[:header_bytes])
    assert "NOT read" in cli(*arguments)
    os.truncate(shard, len(good) - 4096)
    assert "bytes instead of" in found()
    os.remove(shard)
    assert "missing" in found()


@test
def missing_short_and_exchanged_shards_are_damage(bed):
    store = bed.copy("incomplete")
    one, two, three = (path.replace(bed.store, store) for path in bed.shards(1, 1))
    os.remove(one)
    os.truncate(two, os.path.getsize(two) - 4096)
    report = json.loads(cli("verify", "trip@1-a1", "--store", store, "--json", want=1))
    text = json.dumps(report["damage"])
    assert "missing" in text and "bytes instead of" in text
    shutil.copy(bed.shards(1, 1)[1], two)
    shutil.copy(bed.shards(1, 1)[0], one)
    good = read(three)
    with open(three, "wb") as file:  # the same shard of another checkpoint, cut to the size
        file.write(read(bed.shards(2, 2)[0])[: len(good)].ljust(len(good), b"\0"))
    cli("verify", "trip@1-a1", "--store", store, want=1)


@test
def a_damaged_manifest_is_listed_and_refused(bed):
    store = bed.copy("manifest")
    manifest = os.path.join(store, "trip", "step-00000001-a0001", "manifest.json")
    change(manifest, 5000)
    assert "manifest" in cli("verify", "trip@1-a1", "--store", store, want=1)
    change(manifest, 3, b"\0")
    listed = json.loads(cli("list", "--store", store, "--json"))
    assert [entry["step"] for entry in listed if "damage" in entry] == [1]
    assert "DAMAGED" in cli("list", "--store", store)


def resealed(text, old, new):
    """A manifest with one thing changed and the right checksum again."""
    assert old in text
    text = text.replace(old, new, 1)
    at = text.rindex(b'"sha256"')
    digest = hashlib.sha256(text[:at]).hexdigest().encode()
    return text[:at] + re.sub(rb"[0-9a-f]{64}", digest, text[at:])


@test
def a_manifest_of_a_later_format_is_refused_as_such(bed):
    store = bed.copy("later")
    manifest = os.path.join(store, "trip", "step-00000001-a0001", "manifest.json")
    text = read(manifest)
    start = text.index(b'"version"')
    end = text.index(b",", start)
    with open(manifest, "wb") as file:
        file.write(resealed(text, text[start:end], b'"version":9'.ljust(end - start)))
    cli("verify", "trip@1-a1", "--store", store, want=65)
    later = read(manifest)
    other = Bed(store=store)  # an older ckptd on a newer store: it refuses, and leaves all as it is
    try:
        listed = json.loads(cli("list", "--server", other.server, "--json"))
        damage = {(one["step"], one["attempt"]): one.get("damage", "") for one in listed}
        assert "version 9" in damage.pop((1, 1)) and len(damage) == 2, listed
        assert not any(damage.values()), listed
        cli("gc", "--server", other.server)
        cli("prune", "trip", "--server", other.server, "--keep-last", "1", "--dry-run")
    finally:
        other.stop()
        shutil.rmtree(other.root)
    assert read(manifest) == later and len(os.listdir(os.path.dirname(manifest))) == 4
    assert not os.path.exists(os.path.join(store, "trip", "quarantine"))
    cli("verify", "trip@1-a1", "--store", store, want=65)


@test
def hostile_files_make_the_tools_fail_cleanly(bed):
    store = bed.copy("hostile")
    seed = int(os.environ.get("SEED", random.randrange(1 << 30)))
    print(f"# SEED={seed}")
    dice = random.Random(seed)
    folder = os.path.join(store, "trip", "step-00000001-a0001")
    manifest, good = os.path.join(folder, "manifest.json"), read(
        os.path.join(folder, "manifest.json")
    )
    for _ in range(150):
        text = bytearray(good)
        for _ in range(dice.randrange(1, 4)):
            kind, at = dice.randrange(4), dice.randrange(len(text))
            if kind == 0:
                text[at] = dice.randrange(256)
            elif kind == 1:
                del text[at : at + dice.randrange(1, 50)]
            elif kind == 2:
                text[at:at] = dice.choice(
                    [b"18446744073709551615", b"-1", b"[", b"{", b'"', b"1e400", b"\0"]
                )
            else:  # another number in place of one, with the checksum made right again
                numbers = [
                    i
                    for i in range(len(text) - 1)
                    if text[i] in b"0123456789" and text[i - 1] in b":,["
                ]
                at = dice.choice(numbers)
                text[at : at + 1] = dice.choice(
                    [b"0", b"99999999", b"4294967297", b"9223372036854775807"]
                )
                seal = text.rfind(b'"sha256"')
                if seal > 0:
                    text[seal:] = (
                        b'"sha256":"'
                        + hashlib.sha256(bytes(text[:seal])).hexdigest().encode()
                        + b'"}'
                    )
        with open(manifest, "wb") as file:
            file.write(text)
        for command in (
            ["verify", "trip@1-a1"],
            ["list"],
            ["show", "trip@1-a1"],
            ["diff", "trip@1-a1", "trip@2"],
        ):
            done = subprocess.run(
                [CLI, *command, "--store", store], capture_output=True, timeout=60
            )
            assert done.returncode in (0, 1, 65, 66), (seed, command, done)
    with open(manifest, "wb") as file:
        file.write(good)
    shard = os.path.join(folder, "shard-00001-of-00003.safetensors")
    bytes_good = read(shard)
    for _ in range(40):
        change(
            shard,
            dice.choice([dice.randrange(64), dice.randrange(len(bytes_good))]),
            bytes([dice.randrange(256)]),
        )
        done = subprocess.run(
            [CLI, "verify", "trip@1-a1", "--store", store], capture_output=True, timeout=60
        )
        assert done.returncode in (0, 1), done


@test
def offline_tools_leave_the_store_as_it_is(bed):
    def state():
        return sorted(
            (path, os.stat(os.path.join(folder, path)).st_mtime_ns)
            for folder, _, files in os.walk(bed.store)
            for path in files
        )

    before = state()
    for command in (
        ["list"],
        ["show", "trip"],
        ["verify", "trip"],
        ["diff", "trip@1-a1", "trip@1-a3"],
        ["verify", "trip", "--quick"],
        ["export", "trip", "--output", bed.root + "/outside"],
        ["convert", "trip", "--output", bed.root + "/outside-store", "--dtype", "bf16"],
    ):
        cli(*command, "--store", bed.store)
    assert state() == before


@test
def the_example_of_one_page_saves_and_goes_on_where_it_stopped(bed):
    for end in (3, 6):
        program = [os.path.join(BUILD, "ckpt_example"), bed.server]
        done = subprocess.run(program, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(f"step {end} is durable, weights[0] = {end}") == 2, done.stdout
    cli("verify", "example", "--store", bed.store)


@test
def a_program_goes_on_from_a_converted_checkpoint(bed):
    target, _ = converted(bed, "goes-on", "--dtype", "fp32", checkpoint="example")
    other = Bed(store=target)
    try:
        shown = json.loads(cli("show", "example", "--server", other.server, "--json"))
        assert "converted_from" in shown["lineage"]
        program = [os.path.join(BUILD, "ckpt_example"), other.server]
        done = subprocess.run(program, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("loaded step 6") == 2, done.stdout
        assert done.stdout.count("step 9 is durable, weights[0] = 9") == 2, done.stdout
        made, first = ancestors("--server", other.server, complete=False)
        assert made["converted_from"] == shown["lineage"]["converted_from"]
        assert first == {"step": 3, "attempt": 1, "state": "gone"}
    finally:
        other.stop()
        shutil.rmtree(other.root)


def ancestors(*where, complete=True):
    shown = json.loads(cli("show", "example", *where, "--json"))
    assert shown["ancestors_complete"] == complete, shown
    lineage, latest = shown["lineage"], shown["ancestors"][0]
    assert (latest["step"], latest["attempt"]) == (lineage["step"], lineage["attempt"])
    return shown["ancestors"]


@test
def show_tells_what_came_before_to_the_first_as_far_as_it_is_there(bed):
    subprocess.run([os.path.join(BUILD, "ckpt_example"), bed.server], check=True, timeout=60)
    listed = {(one["step"], one["attempt"]): one
              for one in json.loads(cli("list", "example", "--store", bed.store, "--json"))}
    for where in (["--store", bed.store], ["--server", bed.server]):
        told = ancestors(*where)
        assert [(one["step"], one["attempt"]) for one in told] == [(6, 2), (3, 1)], told
        for one in told:
            there = listed[one["step"], one["attempt"]]
            assert one == {"step": there["step"], "attempt": there["attempt"], "state": "present",
                           **{key: there[key] for key in ("nonce", "time", "world_size")}}
        lines = [line.strip() for line in cli("show", "example", *where).split("\n")
                 if " of attempt " in line]
        assert len(lines) == 2 and lines[0].startswith("resumed from step 6 of attempt 2, 2 ranks")
        assert lines[1].startswith("step 3 of attempt 1, 2 ranks, 20"), lines
    first = json.loads(cli("show", "example@3", "--store", bed.store, "--json"))
    assert "ancestors" not in first and first["lineage"]["attempt"] == 0
    store = bed.copy("lineage")

    def folder(step, attempt):
        return os.path.join(store, "example", f"step-{step:08d}-a{attempt:04d}")

    change(os.path.join(folder(3, 1), "manifest.json"), 4200)
    shutil.rmtree(folder(6, 2))  # others of attempt 2 are there, and of attempt 1
    states = [one["state"] for one in ancestors("--store", store)]
    assert states == ["gone", "unreadable"], states
    for step in (4, 5):
        shutil.rmtree(folder(step, 2))
    assert ancestors("--store", store, complete=False) == [
        {"step": 6, "attempt": 2, "state": "gone"}]
    assert "not known any more" in cli("show", "example", "--store", store)


def main():
    bed, good = Bed(), False
    try:
        bed.save(3, 31, 1)  # attempt 1
        bed.save(2, 32, 2)
        bed.save(5, 33, 1)  # attempt 3: the values of step 1 again, in another layout
        good = lib_tap.run(TESTS, bed)
    finally:
        bed.stop()
        shutil.rmtree(bed.root)
    sys.exit(not good)


if __name__ == "__main__":
    main()
