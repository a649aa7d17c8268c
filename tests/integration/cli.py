#!/usr/bin/env python3
"""cli - ckpt-cli on a real store, with the stock safetensors library as the second opinion.

Goal: every export is a genuine safetensors file with the right values (proto_shard: every shard is
one); list, show, verify, diff and export give correct answers, name damage exactly, and end with
the documented exit codes, and none of them changes the store (clients_damage gives them hostile
files). Method: a real ckptd; `saver save` stores tensors whose every element follows from tensor,
step and index, so this script computes them again with NumPy. Files are then damaged byte by byte.
"""

import hashlib
import json
import os
import re
import shutil
import struct
import subprocess

import lib_program
import lib_train
from lib_cli import (CLI, EXAMPLE, MODEL, Bed, ancestors, as_double, bits_of,
                     checked_export, cli, main, read, rounded, test)
from lib_store import change, sealed, write_llama
import numpy


@test
def the_manifest_ends_with_the_sha256_of_all_before_it(bed):
    text = read(os.path.join(bed.step_folder(1, 1), "manifest.json"))
    at = text.rindex(b'"sha256"')
    assert json.loads(text)["sha256"] == hashlib.sha256(text[:at]).hexdigest()
    shown = json.loads(text) | {"durability": "local", "pinned": False, "read_back": False}
    for where in (["--store", bed.store], ["--server", bed.server]):
        assert json.loads(cli("show", "trip@1-a1", *where, "--json")) == shown
        assert "\ndurability   local\n" in cli("show", "trip@1-a1", *where)


@test
def an_export_holds_whole_tensors_bit_for_bit(bed):
    out = checked_export(bed)
    assert set(out) == {name for name, _, _ in MODEL}
    for index, (name, dtype, _) in enumerate(MODEL):
        assert out[name][0] == dtype and numpy.array_equal(out[name][1], bits_of(index, 1)), name


@test
def an_export_rounds_as_numpy_does_and_leaves_the_optimizer_out_when_told(bed):
    alone = ("--weights-only", "--format", "safetensors")
    for option, dtype, more in (("fp16", "F16", ()), ("fp32", "F32", ()), ("bf16", "BF16", alone)):
        out = checked_export(bed, "--dtype", option, *more)
        assert set(out) == {name for name, _, _ in MODEL
                            if not more or not name.startswith("optimizer.")}
        for index, (name, stored, _) in enumerate(MODEL):
            if name not in out:
                continue
            if stored in ("I64", "U8"):
                assert out[name][0] == stored
                assert numpy.array_equal(out[name][1], bits_of(index, 1)), name
                continue
            want_dtype, want = rounded(bits_of(index, 1), stored, option)
            assert out[name][0] == want_dtype == dtype
            with numpy.errstate(all="ignore"):
                got = as_double(out[name][1], dtype)
            assert numpy.array_equal(got, want, equal_nan=True), (name, dtype)


@test
def an_export_has_the_tensors_that_only_names(bed):
    out = checked_export(bed, "--only", "layers.0.*,*tok_embeddings.weight")
    assert set(out) == {MODEL[0][0], MODEL[1][0], MODEL[2][0], MODEL[3][0]}
    for index in range(4):
        assert numpy.array_equal(out[MODEL[index][0]][1], bits_of(index, 1))
    out = checked_export(bed, "--only", "*tok_embeddings.weight", "--weights-only")
    assert set(out) == {"tok_embeddings.weight"}


@test
def weights_alone_of_what_is_no_model_are_refused_with_the_format_that_has_a_place_for_them(bed):
    out = os.path.join(bed.folder, "alone")
    said = cli("export", "trip", "--store", bed.store, "--output", out, "--weights-only", want=2)
    assert "--format safetensors" in said and not os.path.exists(out), said


@test
def an_export_never_replaces_a_file_unasked(bed):
    path = os.path.join(bed.folder, "kept")
    with open(path, "w") as file:
        file.write("mine")
    assert "--force" in cli("export", "trip", "--store", bed.store, "--output", path, want=74)
    assert read(path) == b"mine"


# ---- answers of the commands


@test
def list_and_show_agree_with_the_server_and_with_each_other(bed):
    listed = json.loads(cli("list", "--store", bed.store, "--json"))
    assert [(c["step"], c["attempt"]) for c in listed] == [(1, 3), (2, 2), (1, 1)]
    assert listed[2]["bytes"] == sum(os.path.getsize(path) for path in bed.shards(1, 1))
    assert cli("list", "trip", "--store", bed.store).split("\n")[1].split()[0] == "trip@1-a3"
    shown = cli("show", "trip@1-a1", "--store", bed.store)
    assert (
        "trip@1-a1" in shown
        and "tok_embeddings.weight" in shown
        and re.search(r'^state +\{"mark":1,"said":"a  \\"b"\}$', shown, re.M)
    )
    assert shown == cli("show", "trip@1-a1", "--server", bed.server)
    health = json.loads(cli("health", "--server", bed.server, "--json"))
    assert health["serving"] and health["saving"] and health["runs"][0]["checkpoints"] == 3


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


def made_with(store, step, attempt, **sections):
    """Gives a manifest other sections, each a line of it."""
    path = os.path.join(store, "trip", f"step-{step:08}-a{attempt:04}", "manifest.json")
    text = read(path)
    for name, value in sections.items():
        line = re.compile(b'^"%s":.*,$' % name.encode(), re.MULTILINE)
        said = f'"{name}":{json.dumps(value)},'.encode()
        text, count = line.subn(lambda _, said=said: said, text)
        assert count == 1, name
    with open(path, "wb") as file:
        file.write(sealed(text))


@test
def diff_tells_with_which_settings_and_libraries_two_were_made(bed):
    store = bed.copy("settings")
    one = {"isa": "avx2", "environment": {"cpu": "A", "hosts": {"n1": "0-2"}}}
    two = {"isa": "avx2", "environment": {"cpu": "B\x1b[2J", "hosts": {"n1": "0-2"}}}
    made_with(store, 1, 1, config={"training": {"steps": 10, "seq_len": 8}}, identity=one)
    made_with(store, 1, 3, config={"training": {"steps": 20, "seq_len": 8}, "job": {"run": "x"}},
              identity=two)
    pair = ("diff", "trip@1-a1", "trip@1-a3", "--store", store)
    want = [{"what": "config.training.steps", "first": 10, "second": 20},
            {"what": "config.job.run", "second": "x"},
            {"what": "environment.cpu", "first": "A", "second": "B\x1b[2J"}]
    found = json.loads(cli(*pair, "--json"))  # the tensors are equal: 0
    assert found["settings"] == want and found["different"] == 0 and found["same"] > 0, found
    found = json.loads(cli(*pair, "--json", "--settings", want=1))
    assert found == {"first": "trip@1-a1", "second": "trip@1-a3", "settings": want}, found
    lines = [re.split(" {2,}", line) for line in cli(*pair, "--settings", want=1).splitlines()]
    assert lines == [["trip@1-a1 and trip@1-a3 differ in 3 settings."], [""],
                     ["WHAT", "FIRST", "SECOND"], ["config.training.steps", "10", "20"],
                     ["config.job.run", "-", "x"], ["environment.cpu", "A", "B?[2J"]], lines
    os.remove(os.path.join(store, "trip/step-00000001-a0001/shard-00001-of-00003.safetensors"))
    assert "same settings" in cli("diff", "trip@1-a1", "trip@1-a1", "--store", store, "--settings")


def imported(bed, store, run, vocab, dice):
    """A Llama of finite values, in a separate store; its tensors as NumPy arrays."""
    folder, tensors = os.path.join(bed.folder, run), []

    def data_of(size):
        tensors.append(dice.standard_normal(size // 4, dtype=numpy.float32))
        return tensors[-1].tobytes()

    os.mkdir(folder)
    write_llama(folder, 256, 320, vocab, data_of)
    cli("import", folder, "--run", run, "--store", store)
    return tensors


@test
def diff_tells_the_largest_difference(bed):
    """For floats; clients_elements.c tests the other types as doubles."""
    store = os.path.join(bed.folder, "floats")
    os.makedirs(os.path.join(store, "one"))
    open(os.path.join(store, ".holdfast.lock"), "w").close()
    dice = numpy.random.default_rng(7)
    one, two = ([tensor.astype(numpy.float64) for tensor in imported(bed, store, run, 96, dice)]
                for run in ("one", "two"))
    found = json.loads(cli("diff", "one", "two", "--store", store, "--json", want=1))
    shown = cli("diff", "one", "two", "--store", store, want=1)
    assert found["different"] == len(one) == 12 and found["same"] == 0, found
    want = [(float(numpy.max(numpy.abs(a - b))), int(numpy.sum(a != b)), a.size)
            for a, b in zip(one, two)]  # rows are permuted by the import: not reported
    got = [(t["largest"], t["differing"], t["elements"]) for t in found["tensors"]]
    assert sorted(got) == sorted(want), (got, want)
    for largest, differing, elements in want:
        assert re.search(rf"differs in {differing} of {elements} elements, at most by "
                         rf"{re.escape(f'{largest:.9g}')}\n", shown), (largest, shown)


@test
def diff_names_what_one_side_alone_has_and_what_has_another_shape_or_type(bed):
    store, other = bed.copy("forms"), os.path.join(bed.folder, "other")
    cli("convert", "trip@1-a3", "--store", store, "--output", other, "--dtype", "bf16",
        "--only", "tok_embeddings.weight,layers.0.attention.wq.weight,mask")
    shutil.rmtree(os.path.join(store, "trip", "step-00000001-a0003"))
    shutil.copytree(os.path.join(other, "trip", "step-00000001-a0003"),
                    os.path.join(store, "trip", "step-00000001-a0003"))
    same = {"layers.0.attention.wq.weight", "mask"}  # stored so already
    for pair, alone in ((("trip@1-a1", "trip@1-a3"), "only in the first"),
                        (("trip@1-a3", "trip@1-a1"), "only in the second")):
        states = {name: alone for name, _, _ in MODEL if name not in same}
        states["tok_embeddings.weight"] = "shape or dtype differ"
        found = json.loads(cli("diff", *pair, "--store", store, "--json", want=1))
        assert {t["tensor"]: t["state"] for t in found["tensors"]} == states, found
        assert all(set(t) == {"tensor", "state"} for t in found["tensors"]), found
        assert found["same"] == len(same) and found["different"] == len(states), found
        shown = cli("diff", *pair, "--store", store, want=1)
        for name, state in states.items():
            assert re.search(rf"^{re.escape(name)} +{state}$", shown, re.M), shown
        assert f"differ in {len(states)} of {len(MODEL)} tensors" in shown, shown
    for run, vocab in (("small", 96), ("large", 128)):
        imported(bed, store, run, vocab, numpy.random.default_rng(8))
    found = json.loads(cli("diff", "small", "large", "--store", store, "--json", want=1))
    assert {t["tensor"] for t in found["tensors"] if t["state"] == "shape or dtype differ"} == {
        "tok_embeddings.weight", "output.weight"}, found


@test
def each_command_has_its_help_and_refuses_other_options(bed):
    commands = re.findall(r"^  ([a-z]+) ", cli("--help"), re.M)
    assert {"list", "prune", "server", "health"} < set(commands), commands
    for command in commands:
        text = cli(command, "--help")
        assert f"usage: ckpt-cli {command} " in text and "--json" in text, text
        assert "Exit codes: 0" in text, text
        assert text == cli(command, "-h") == cli("help", command)
        usage = text.split("\n")[0]
        assert (text.count("CHECKPOINT is") == 1) == ("CHECKPOINT" in usage), usage
        for wrong in (["-x"], ["trip", "-x", "--store", bed.store],
                      ["trip", "trip", "--server", bed.server, "-x"]):
            assert "option '-x' is unknown" in cli(command, *wrong, want=2), (command, wrong)
    assert cli("help") == cli("-h")
    assert "(default 5GiB)" in cli("export", "--help")


# ---- damage: clients_damage.c and clients_quick.c change, cut off and exchange bytes for verify


@test
def an_export_of_what_is_damaged_names_the_block_and_leaves_nothing(bed):
    store = bed.copy("damaged")
    change(bed.shards(1, 1)[1].replace(bed.store, store), (1 << 20) + 12345)
    assert os.path.basename(bed.shards(1, 1)[1]) in cli("verify", "trip@1-a1", "--store", store,
                                                        want=1)
    assert "whole" in cli("verify", "trip@2", "--store", store)
    target = os.path.join(bed.folder, "damaged.safetensors")
    assert "block 1" in cli("export", "trip@1-a1", "--store", store, "--output", target, want=1)
    assert not os.path.exists(target) and not os.path.exists(target + ".part")


@test
def quick_finds_no_changed_data_and_says_so(bed):
    store = bed.copy("quick")
    shard = bed.shards(1, 1)[0].replace(bed.store, store)
    arguments = ["verify", "trip@1-a1", "--store", store, "--quick"]
    assert "does not prove" in cli("verify", "--help").replace("\n", " ")
    change(shard, 8 + struct.unpack("<Q", read(shard)[:8])[0] + 77)
    assert "NOT read" in cli(*arguments)
    report = json.loads(cli(*arguments, "--json"))
    assert report["quick"] and report["blocks"] == 0 and report["damages"] == 0
    cli("verify", "trip@1-a1", "--store", store, want=1)


@test
def what_people_read_begins_with_a_summary_and_has_its_words_explained(bed):
    for where in (("--store", bed.store), ("--server", bed.server)):
        lines = cli("show", "trip@2-a2", *where).splitlines()
        assert lines[0].startswith("trip@2-a2: 8 tensors, 6.2") and lines[1] == "", lines[:2]
        lines = cli("diff", "trip@1-a1", "trip@2-a2", *where, want=1).splitlines()
        assert re.match(r"trip@1-a1 and trip@2-a2 differ in \d of 8 tensors", lines[0]), lines
        screen = cli("status", *where)
        assert len(screen.splitlines()) <= 24 and "3 checkpoints in 1 run" in screen, screen
        assert len(cli("status", "--all", *where).splitlines()) > len(screen.splitlines())
        said = cli("list", *where).splitlines()
        words = set(said[0].split()[1:]) | {word for line in said[1:]
                                            for word in re.sub(r".*Z ", "", line).split(", ")}
        told = cli("list", "--help")
        missing = [word for word in words
                   if re.sub(r"verified .*", "verified", word.strip()) not in told]
        assert not missing, missing


@test
def verify_of_all_or_of_a_sample_keeps_what_it_found(bed):
    store = bed.copy("verified")
    for folder, _, files in os.walk(store):
        if "verified.json" in files:
            os.remove(os.path.join(folder, "verified.json"))
    assert "not read back" in cli("list", "--store", store)
    text = cli("verify", "--all", "--store", store)
    assert text.count(": whole, ") == 3, text
    kept = [one["verified"] for one in json.loads(cli("list", "--store", store, "--json"))]
    assert all(one["percent"] == 100 and one["damages"] == 0 for one in kept), kept
    text = cli("list", "--store", store)
    assert text.count("s ago, whole") == 3 and "not read back" not in text, text
    assert "s ago, whole" in cli("show", "trip@2-a2", "--store", store)
    text = cli("verify", "trip@2-a2", "--store", store, "--sample", "40%")
    seed = text.split("--seed ")[1].split(")")[0]
    assert "no damage found" in text
    assert cli("verify", "trip@2-a2", "--store", store, "--sample", "40%", "--seed", seed) == text
    assert "40% verified" in cli("show", "trip@2-a2", "--store", store)
    shard = os.path.join(store, "trip", "step-00000002-a0002",
                         os.path.basename(bed.shards(2, 2)[0]))
    seeds = range(1, 12)
    change(shard, os.path.getsize(shard) * 2 // 3)
    found = [lib_program.run(CLI, "verify", "trip@2-a2", "--store", store, "--sample", "40%",
                             "--seed", s).returncode for s in seeds]
    assert set(found) == {0, 1}, found  # a sample finds it, or does not
    report = json.loads(cli("verify", "trip", "--all", "--store", store, "--json", want=1))
    assert [one["damages"] > 0 for one in report] == [False, True, False], report
    cli("verify", "trip@2", "--store", store, "--sample", "40%", "--seed", seeds[found.index(0)])
    assert "ago, DAMAGED" in cli("list", "--store", store, want=1)  # a match proves nothing
    for where in (("--store", bed.store), ("--server", bed.server)):
        cli("verify", "trip@2-a2", *where)
        assert "ago, whole" in cli("list", *where) and "ago, whole" in cli("show", "trip@2", *where)


@test
def a_manifest_of_a_later_format_is_refused_as_such(bed):
    store = bed.copy("later")
    manifest = os.path.join(store, "trip", "step-00000001-a0001", "manifest.json")
    text = read(manifest)
    start = text.index(b'"version"')
    end = text.index(b",", start)
    with open(manifest, "wb") as file:
        file.write(sealed(text[:start] + b'"version":9'.ljust(end - start) + text[end:]))
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
        other.close()
    there = set(os.listdir(os.path.dirname(manifest))) - {"verified.json"}
    assert read(manifest) == later and len(there) == 4, there
    assert not os.path.exists(os.path.join(store, "trip", "quarantine"))
    cli("verify", "trip@1-a1", "--store", store, want=65)


@test
def the_example_of_one_page_saves_and_goes_on_where_it_stopped(bed):
    for end in (3, 6):
        done = subprocess.run([EXAMPLE, bed.server], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(f"step {end} is durable, weights[0] = {end}") == 2, done.stdout
    cli("verify", "example", "--store", bed.store)


@test
def show_tells_what_came_before_to_the_first_as_far_as_it_is_there(bed):
    subprocess.run([EXAMPLE, bed.server], check=True, timeout=60)
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
    assert "no longer known" in cli("show", "example", "--store", store)


def trained(bed, steps, shards):
    """The run "trained", so far; a step takes two samples."""
    done = subprocess.run(lib_train.command(
        bed.folder, bed.server, "trained", "--training.steps", steps, "--checkpoint.interval", 100,
        "--comm.ranks", shards, "--parallelism.data_parallel_shard_degree", shards),
        capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@test
def show_tells_of_a_trained_run_where_it_stands_and_how_it_was_made(bed):
    lib_train.make_tokens(bed.folder, lib_train.prose())
    trained(bed, 4, 1)
    trained(bed, 7, 2)
    for name, steps, shards, before in (("trained@4", 4, 1, None), ("trained", 7, 2, (4, 1))):
        shown = cli("show", name, "--store", bed.store)
        assert shown == cli("show", name, "--server", bed.server)
        found = dict(re.findall(r"^([a-z]+(?: [a-z]+)?) {2,}(\S.*)$", shown.split("\nTENSOR")[0],
                                re.M))
        assert found["checkpoint"] == f"trained@{steps}-a{shards}", shown
        assert found["ranks"] == str(shards) and found["data at"] == f"sample {2 * steps}", shown
        assert found["updates"] == str(steps), shown
        assert json.loads(found["mesh"]) == {"pp": 1, "dp_replicate": 1, "dp_shard": shards,
                                             "cp": 1, "tp": 1}, shown
        assert json.loads(found["state"])["data"]["next_sample"] == 2 * steps, shown
        whole = json.loads(cli("show", name, "--store", bed.store, "--json"))["config"]
        assert whole["job"]["run"] == "trained" and whole["training"]["steps"] == steps, whole
        config, end, _ = found["config"].partition("... (--json shows all)")
        assert end or json.loads(config) == whole, shown
        assert '"run":"trained"' in config and len(config) > 1000, shown
        lines = re.findall(r"^resumed from +step (\d+) of attempt (\d+), 1 rank, 20\d\d-", shown,
                           re.M)
        assert lines == ([tuple(map(str, before))] if before else []), shown
        assert ("resumed from" in shown) == (before is not None), shown


@test
def a_newest_checkpoint_that_may_not_be_read_makes_no_older_one_the_newest(bed):
    store, output = bed.copy("denied"), os.path.join(bed.folder, "denied.safetensors")
    os.chmod(os.path.join(store, "trip", "step-00000001-a0003", "manifest.json"), 0)
    # root reads it all the same
    user = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []

    def fails(*command):
        done = subprocess.run([*user, CLI, *command, "--store", store], capture_output=True,
                              text=True)
        assert done.returncode == 74 and "Permission denied" in done.stderr, (command, done)
        return done

    for command in (["export", "trip", "--output", output], ["show", "trip"],
                    ["diff", "trip", "trip@2"]):
        assert "trip@1-a3: " in fails(*command).stderr
    assert not os.path.exists(output)
    cli("show", "trip@2", "--store", store)
    rows = json.loads(fails("verify", "--all", "--json").stdout)
    unread = [row["checkpoint"] for row in rows if "manifest.json: " in row.get("error", "")]
    assert unread == ["trip@1-a3"] and len(rows) > 5, rows
    sizes = re.findall(r"^  (trip@\S+) +\S+ MiB(  not read)?$", fails("du", "trip").stdout, re.M)
    assert sizes == [("trip@1-a3", "  not read"), ("trip@2-a2", ""), ("trip@1-a1", "")], sizes


@test
def status_tells_of_the_disk_what_its_file_system_does(bed):
    disk = json.loads(cli("status", "--server", bed.server, "--json"))["disk"]
    system, shown = os.statvfs(bed.store), cli("status", "--all", "--server", bed.server)
    free = system.f_bavail * system.f_frsize
    used = (system.f_blocks - system.f_bfree) * system.f_frsize
    for name, now in (("bytes_used", used), ("bytes_free", free), ("bytes_total", used + free)):
        assert abs(disk[name] - now) < 1 << 30, (name, now, disk)  # others use the disk, too
    assert abs(disk["inodes_total"] - system.f_files) <= 0.01 * system.f_files, disk
    assert (disk["inodes_free"] > 0) == (system.f_favail > 0), disk
    assert disk["bytes_used"] + disk["bytes_free"] == disk["bytes_total"], disk
    usable = disk["usable_fraction"] * disk["bytes_total"]
    assert abs(disk["bytes_usable"] - usable) <= 1, disk
    assert disk["bytes_left"] == max(0, disk["bytes_usable"] - disk["bytes_used"]), disk
    assert set(re.findall(r"^disk\.(\w+) +\S+$", shown, re.M)) == set(disk), shown


if __name__ == "__main__":
    main()
