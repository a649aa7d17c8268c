#!/usr/bin/env python3
"""convert - ckpt-cli convert and reshard make checkpoints like any other.

Goal: every element has the value that an export rounds it to, or its old bits. A program resumes
from the result. Nothing is replaced without request, and a damaged input or a kill leaves nothing
that counts as a checkpoint. Method: as cli.py; the stock library opens the results.
"""

import json
import os
import shutil
import subprocess

from lib_cli import CLI, EXAMPLE, Bed, ancestors, checked_export, cli, main, read, test
from lib_store import change, sealed
from lib_tap import Skip
import safetensors


# ---- convert


def converted(bed, name, *options, checkpoint="trip@1-a1", want=0):
    target = os.path.join(bed.folder, name)
    text = cli("convert", checkpoint, "--store", bed.store, "--output", target, *options, want=want)
    return target, text


def exported(bed, store, *options):
    """{name: (type, shape, bytes)}"""
    path = os.path.join(bed.folder, "two words")  # a name with a space
    cli("export", "trip@1-a1", "--store", store, "--output", path, "--format", "safetensors",
        "--force", *options)
    return {name: (tensor["dtype"], tensor["shape"], bytes(tensor["data"]))
            for name, tensor in safetensors.deserialize(read(path))}


@test
def a_converted_checkpoint_is_one_like_any_other(bed):
    """With the values of an export of that type, which cli.py compares with NumPy's."""
    nonce = json.loads(cli("show", "trip@1-a1", "--store", bed.store, "--json"))["nonce"]
    for options in (["bf16", "--weights-only"], ["fp16"], ["fp32"]):
        target, _ = converted(bed, "to-" + options[0], "--dtype", *options)
        manifest = json.loads(cli("show", "trip", "--store", target, "--json"))
        assert manifest["lineage"]["converted_from"] == nonce != manifest["nonce"]
        assert (manifest["step"], manifest["attempt"], manifest["shards"]) == (1, 1, 3)
        want = exported(bed, bed.store, "--dtype", *options)
        report = json.loads(cli("verify", "trip@1-a1", "--store", target, "--json"))
        assert report["damages"] == 0 and report["tensors"] == len(want)
        assert exported(bed, target) == want, options


@test
def a_part_of_a_checkpoint_is_one_too(bed):
    target, _ = converted(bed, "part", "--only", "experts,layers.0.*")
    report = json.loads(cli("verify", "trip@1-a1", "--store", target, "--json"))
    assert report["damages"] == 0 and report["tensors"] == 3
    manifest = json.loads(cli("show", "trip", "--store", target, "--json"))
    assert {tensor["name"] for tensor in manifest["tensors"]} == {
        "experts", "layers.0.attention.wq.weight", "layers.0.attention_norm.weight"}


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
def checkpoints_of_two_cuts_are_equal_when_both_are_converted(bed):
    target, _ = converted(bed, "then", "--dtype", "bf16")
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
    assert f"in use by process {bed.process.pid}" in text
    cli("convert", "trip", "--store", bed.store, "--output", "/proc/nowhere", "--dtype", "fp32",
        want=74)


@test
def a_conversion_needs_room_before_it_begins(bed):
    if not shutil.which("unshare"):
        raise Skip("unshare (util-linux) is not installed")
    small = os.path.join(bed.folder, "small")
    os.mkdir(small)
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=1m none "$1" && shift && exec "$@"',
         "sh", small, CLI, "convert", "trip", "--store", bed.store, "--output", small, "--dtype",
         "fp32"], capture_output=True, text=True, timeout=60)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        raise Skip("no mount namespace here")
    assert done.returncode == 74 and "MiB are needed" in done.stderr, done


@test
def a_conversion_of_damaged_shards_fails_and_leaves_nothing(bed):
    store = bed.copy("hurt")
    change(bed.shards(1, 1)[2].replace(bed.store, store), (1 << 20) + 77)
    for options in (["--dtype", "bf16"], ["--shards", "2"]):
        target = os.path.join(bed.folder, "hurt-target" + options[0])
        assert "block 1" in cli("convert", "trip@1-a1", "--store", store, "--output", target,
                                *options, want=1)
        assert sorted(os.listdir(target)) == [".holdfast.lock"]


# ---- reshard


@test
def a_resharded_checkpoint_has_the_same_bits_in_other_files(bed):
    source = json.loads(cli("show", "trip@1-a1", "--store", bed.store, "--json"))
    target = os.path.join(bed.folder, "reshard")
    for number, options, shards in (
        (0, ["--shards", "1"], 1),
        (1, ["--shards", "7"], 7),
        (2, ["--mesh", "dp_replicate=2,dp_shard=3"], 6),
        (3, ["--mesh", "dp_shard=2", "--shards", "2"], 2),
    ):
        store = f"{target}-{number}"
        report = json.loads(cli("convert", "trip@1-a1", "--store", bed.store, "--output", store,
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
        assert exported(bed, store) == exported(bed, bed.store)
    for wrong in (["--shards", "0"], [], ["--mesh", "tp=2"], ["--mesh", "dp_shard"],
                  ["--mesh", "dp_shard=0"], ["--mesh", "dp_shard=-1"], ["--shards", "65537"],
                  ["--mesh", "dp_shard=2,dp_replicate=2", "--shards", "3"],
                  ["--mesh", "dp_shard=2,"], ["--mesh", "dp_shard=2,dp_shard=4"],
                  ["--mesh", "tp=1,tp=1"]):
        cli("convert", "trip", "--store", bed.store, "--output", target + "-5", *wrong, want=2)
    assert "already" in cli("convert", "trip@1-a1", "--store", bed.store, "--output",
                            target + "-0", "--shards", "1", want=74)


@test
def other_types_and_another_cut_at_once_are_one_after_the_other(bed):
    once, first, second = (os.path.join(bed.folder, f"cut-{name}") for name in "abc")
    for source, target, options in ((bed.store, once, ["--dtype", "bf16", "--shards", "2"]),
                                    (bed.store, first, ["--dtype", "bf16"]),
                                    (first, second, ["--shards", "2"])):
        cli("convert", "trip@1-a1", "--store", source, "--output", target, *options)
    made = [json.loads(cli("show", "trip@1", "--store", store, "--json")) for store in
            (once, second)]
    assert made[0]["shards"] == 2 and made[0]["mesh"] == made[1]["mesh"], made[0]["mesh"]
    assert made[0]["tensors"] == made[1]["tensors"], made


@test
def a_manifest_that_lies_about_a_digest_cannot_be_resharded(bed):
    store = bed.copy("lies")
    manifest = os.path.join(store, "trip", "step-00000001-a0001", "manifest.json")
    text = read(manifest)
    digest = json.loads(text)["tensors"][0]["digest"][0].encode()
    with open(manifest, "wb") as file:
        file.write(sealed(text.replace(digest, digest[::-1], 1)))
    target = os.path.join(bed.folder, "lies-target")
    assert "digest" in cli("convert", "trip@1-a1", "--store", store, "--output", target,
                           "--shards", "2", want=1)
    assert json.loads(cli("list", "--store", target, "--json")) == []


@test
def a_program_goes_on_from_a_converted_checkpoint(bed):
    for _ in range(2):
        subprocess.run([EXAMPLE, bed.server], check=True, capture_output=True, timeout=60)
    target, _ = converted(bed, "goes-on", "--dtype", "fp32", checkpoint="example")
    other = Bed(store=target)
    try:
        shown = json.loads(cli("show", "example", "--server", other.server, "--json"))
        assert "converted_from" in shown["lineage"]
        done = subprocess.run([EXAMPLE, other.server], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("loaded step 6") == 2, done.stdout
        assert done.stdout.count("step 9 is durable, weights[0] = 9") == 2, done.stdout
        made, first = ancestors("--server", other.server, complete=False)
        assert made["converted_from"] == shown["lineage"]["converted_from"]
        assert first == {"step": 3, "attempt": 1, "state": "gone"}
    finally:
        other.stop()
        other.close()


if __name__ == "__main__":
    main()
