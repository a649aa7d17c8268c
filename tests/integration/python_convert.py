#!/usr/bin/env python3
"""python_convert - ckpt-cli import and export of DCP's folders and of safetensors: without torch.

Goal: a folder that torch or Megatron saved is imported with every name, type and bit, and its
export imports equally. A run of Hugging Face's Trainer is converted to our names and back with
every bit. common.pt is copied unread. Memory does not grow with the size. Damage and hostile
pickles are errors, and execute nothing. The commands behave like ckpt-cli's: bars, JSON, exit
codes, signals. Method: folders that torch recorded (tests/golden/dcp, by tests/interop), ones that
dcp_files.py writes, a real ckptd. In tests/interop torch loads the exports.
"""

import doctest
import filecmp
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import lib_train
from lib_store import CLI, PATIENCE, World, is_sanitized, llama_shapes, take_libckpt
from lib_tap import need, run, tests_of_script
from lib_terminal import bar_is_wrong, on_a_terminal

need("numpy")
import numpy  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GOLDEN = os.path.join(ROOT, "tests/golden/dcp")
FILES = "safetensors-folder"
os.environ.update(HOLDFAST_PYTHON=sys.executable,
                  PYTHONPATH=os.path.join(ROOT, "clients/python/src"))
sys.path.insert(0, os.environ["PYTHONPATH"])
sys.dont_write_bytecode = True
take_libckpt()
import holdfast  # noqa: E402
from holdfast import convert, dcp_files, dtypes, safetensors_files, sharded  # noqa: E402

SEED = int(os.environ.get("SEED", time.time_ns() % 10**9))
chance = random.Random(SEED)


def write_folder(folder, tensors, rows=1 << 30):
    """A folder of DCP: {name: array}, of at most so many rows in a box."""
    os.makedirs(folder)
    entries = {}
    with open(os.path.join(folder, "data"), "wb") as out:
        for name, array in tensors.items():
            dtype, boxes = dtypes.of_numpy(array.dtype), []
            for first in range(0, len(array), rows):
                part = array[first:first + rows]
                begin, offset = out.tell(), (first,) + (0,) * (array.ndim - 1)
                length = dcp_files.write_box(out, dtype, part.shape, iter([part.tobytes()]))
                boxes.append((offset, part.shape, dcp_files.Place("data", begin, length)))
            entries[name] = dcp_files.Tensor(dtype, array.shape, boxes)
    with open(os.path.join(folder, ".metadata"), "wb") as file:
        file.write(dcp_files.metadata_of(entries, {}, None))


def raw_bytes(folder):
    """{name: (type, shape, bytes)} of a folder of DCP."""
    found, out = dcp_files.Folder(folder), {}
    for name, tensor in found.tensors.items():
        memory = numpy.zeros(convert.tensor_bytes(tensor), numpy.uint8)
        found.fill(memory, 0, tensor)
        out[name] = tensor.dtype, tensor.size, memory.tobytes()
    return out, {name: found.object(place) for name, place in found.objects.items()}, found.paths


def brought(folder, name, form="dcp"):
    return "import", folder, "--run", name, "--format", form


def written(name, folder, form="dcp"):
    return "export", name, "--output", folder, "--format", form


def done(world, *words):
    code, out, err = world.cli(*words)
    assert code == 0, (words, code, out, err)
    return out


# ---- tests ----


def what_torch_recorded_comes_in_and_goes_out(world):
    """Four ranks cut a tensor along both axes; another tensor is the transpose of the one that
    torch stored."""
    folder, out = os.path.join(GOLDEN, "folder"), os.path.join(world.folder, "out")
    said = done(world, *brought(folder, "recorded@7"), *world.where)
    assert said == f"recorded@7-a1: 6 tensors, 428 B, saved from {folder}, local\n", said
    with holdfast.open("recorded@7", server=world.server) as found:
        assert {name: (one.dtype, one.shape) for name, one in found.items()} == {
            "model.whole": ("F32", (8, 12)), "model.half": ("BF16", (4, 3)),
            "model.f8": ("F8_E5M2", (6,)), "model.count": ("I64", ()),
            "model.none": ("F32", (0, 3)), "model.u16": ("U16", (3,))}, dict(found)
        assert (found["model.whole"][...] == numpy.arange(96).reshape(8, 12)).all()
        half = found["model.half"].bits().astype(numpy.uint32) << 16
        assert (half.view(numpy.float32) == numpy.arange(12).reshape(3, 4).T).all()
        assert list(found["model.u16"][...]) == [0, 1, 2] and found["model.count"][...] == 7
    for number, where in enumerate((world.where, ("--store", world.store))):
        said = json.loads(done(world, *written("recorded@7", out + str(number)), *where, "--json"))
        assert said == {"checkpoint": "recorded@7-a1", "tensors": 6, "bytes": 428, "objects": 1,
                        "files": [], "durability": "local"}, said
        assert raw_bytes(out + str(number)) == raw_bytes(folder)
    assert raw_bytes(folder)[2]["model.whole"] == ("model", "whole")


def of_megatron_the_files_go_along(world):
    folder = os.path.join(GOLDEN, "torch_dist")
    out = os.path.join(world.folder, "torch_dist@a-folder-is-no-tag")
    said = done(world, *brought(folder, "megatron@100"), *world.where)
    assert ", with common.pt and metadata.json as they are, local\n" in said, said
    with holdfast.open("megatron@100", server=world.server) as found:
        assert (found["rows"][...] == numpy.arange(24).reshape(12, 2)).all()
        assert (found["experts"][...] == numpy.arange(4)[:, None]).all()
    done(world, *written("megatron@100", out), *world.where)
    assert filecmp.cmpfiles(folder, out, convert.FILES, shallow=False)[0] == list(convert.FILES)
    assert raw_bytes(out) == raw_bytes(folder)
    done(world, *brought(out, "megatron-again@1"), *world.where)


def pieces_of_any_cut_are_put_together(world):
    print(f"# SEED={SEED}")
    for number in range(30):
        shape = [chance.randint(1, 5) for _ in range(chance.randint(1, 4))]
        array = numpy.arange(numpy.prod(shape), dtype=numpy.int16).reshape(shape)
        folder = os.path.join(world.folder, f"cut{number}")
        write_folder(folder, {"a": array}, rows=chance.randint(1, 3))
        found = dcp_files.Folder(folder)
        for _ in range(20):
            low, high = sorted(chance.sample(range(array.nbytes + 1), 2))
            memory = numpy.zeros(high - low, numpy.uint8)
            found.fill(memory, low, found.tensors["a"])
            assert memory.tobytes() == array.tobytes()[low:high], (SEED, shape, low, high)
        offsets = [at for at in numpy.ndindex(*shape)]
        boxes = [[tuple(a + b for a, b in zip(offset, inner)) for inner in numpy.ndindex(*extent)]
                 for offset, extent in dcp_files.boxes_between(shape, low // 2, high // 2)]
        assert sum(boxes, []) == offsets[low // 2:high // 2]


def damage_is_told_and_runs_nothing(world):
    """Every bit that may be wrong: an error of ours, or bytes that differ; never another one."""
    planted = os.path.join(world.folder, "planted")
    folder = os.path.join(world.folder, "damaged")
    refusals = 0
    for turn in range(200):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(os.path.join(GOLDEN, chance.choice(["folder", "torch_dist"])), folder)
        name = chance.choice([".metadata"] + [one for one in os.listdir(folder)
                                              if one.endswith(".distcp")])
        path = os.path.join(folder, name)
        with open(path, "rb") as file:
            data = bytearray(file.read())
        if chance.random() < 0.2:
            del data[chance.randrange(len(data)):]
        else:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        with open(path, "wb") as file:
            file.write(data)
        try:
            raw_bytes(folder)
        except (holdfast.HoldfastError, OSError):  # a file of another name
            refusals += 1
    assert refusals > 25, (SEED, refusals)
    for pickle in (f"cos\nmkdir\n(S'{planted}'\ntR.", "cbuiltins\neval\n(S'1'\ntR."):
        with open(os.path.join(folder, ".metadata"), "w") as file:
            file.write(pickle)
        code, out, err = world.cli(*brought(folder, "hostile@1"), *world.where)
        assert code == 1 and "is not a class of DCP" in err and out == "", (code, out, err)
    assert not os.path.exists(planted)
    with open(os.path.join(folder, "data"), "wb") as file:  # half the bytes that it names
        place = dcp_files.Place("data", 0, dcp_files.write_box(file, "F32", (4,), iter([bytes(8)])))
    for tensors, objects, said in (
            ({}, {"key": dcp_files.Place("../../../etc/hostname", 0, 1)}, "etc/hostname"),
            ({"a": dcp_files.Tensor("F32", (4,), [((0,), (4,), place)])}, {}, "does not match")):
        with open(os.path.join(folder, ".metadata"), "wb") as file:
            file.write(dcp_files.metadata_of(tensors, objects, None))
        code, _, err = world.cli(*brought(folder, "hostile@1"), *world.where)
        assert code == 1 and said in err, (code, err)


def slips_have_the_codes_of_ckpt_cli(world):
    folder, new = os.path.join(GOLDEN, "folder"), os.path.join(world.folder, "new")
    away = ("--server", f"unix:{world.folder}/nobody")
    for code, words, said in (
            (66, [*brought(new, "r@1"), *world.where], "is not a folder"),
            (66, [*brought(world.folder, "r@1"), *world.where], "it has no .metadata"),
            (2, [*brought(folder, "r"), *world.where], "names no step"),
            (69, [*brought(folder, "r@1"), *away], "nobody"),
            (66, [*written("nobody@1", new), *world.where], "nobody"),
            (74, [*written("recorded@7", folder), *world.where], "has a checkpoint already"),
            (74, [*written("recorded@7", "/dev/null"), *world.where], "/dev/null")):
        got, out, err = world.cli(*words, "--json")
        assert json.loads(err)["exit_code"] == got == code and out == "", (words, got, err)
        assert said in json.loads(err)["message"], err
    code, _, err = world.cli(*brought(new, "r@1"), *world.where)
    assert (code, err) == (66, f"holdfast: {new} is not a folder\n"), (code, err)
    for values, said in ((dict(HOLDFAST_PYTHON="/no/python"), "needs Python"),
                         (dict(PYTHONPATH=world.folder), "No module named 'holdfast'")):
        for form in ([], ["--json"]):
            ran = subprocess.run([CLI, *brought(folder, "r@1"), *world.where, *form], text=True,
                                 env=dict(os.environ, **values), capture_output=True,
                                 cwd=world.folder, timeout=PATIENCE)
            assert ran.returncode == 69 and said in ran.stderr and "HOLDFAST_PYTHON" in ran.stderr
            assert ran.stderr.count("\n") == 1 and (not form or json.loads(ran.stderr))


def bars_are_those_of_ckpt_cli(world):
    folder = os.path.join(world.folder, "bars")
    write_folder(folder, {"a": numpy.zeros((1 << 20,), numpy.float32)})
    for number, columns in enumerate((100, 40)):
        for words in ([*brought(folder, f"bars{number}@1"), *world.where],
                      [*written(f"bars{number}@1", f"{folder}{number}"), *world.where]):
            shown, code, out = on_a_terminal(CLI, *words, columns=columns)
            assert code == 0 and not bar_is_wrong(words, shown, ["iB/s"], columns), (shown, out)
            if words[0] == "export":
                shutil.rmtree(f"{folder}{number}")
            shown, code, out = on_a_terminal(CLI, *words, "--json", columns=columns)
            assert code == 0 and shown == "" and json.loads(out), (shown, out)


def wait_until_it_waits(process):
    """Python runs, and for half a second nothing was computed: Python itself ends by a signal that
    comes while it starts."""
    ticks, same = None, 0
    while same < 10:
        with open(f"/proc/{process}/stat") as file:
            now = file.read().rpartition(")")[2].split()[11:13]
        is_python = "python" in os.readlink(f"/proc/{process}/exe")
        same = same + 1 if is_python and now == ticks and now != ["0", "0"] else 0
        ticks = now
        time.sleep(0.05)


def a_signal_ends_it_and_the_same_command_begins_anew(world):
    """It waits for a pipe without a reader in the place of its data."""
    folder = os.path.join(world.folder, "signals")
    os.mkdir(folder)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.mkfifo(os.path.join(folder, convert.DATA))
        process = subprocess.Popen([CLI, *written("recorded@7", folder), *world.where])
        wait_until_it_waits(process.pid)
        process.send_signal(number)
        assert process.wait(PATIENCE) == -number
        os.remove(os.path.join(folder, convert.DATA))
    assert os.listdir(folder) == []
    with open(os.path.join(folder, convert.DATA), "wb") as file:
        file.write(bytes(1 << 20))  # of one that was killed
    done(world, *written("recorded@7", folder), *world.where)
    assert raw_bytes(folder) == raw_bytes(os.path.join(GOLDEN, "folder"))


def peak_of(*words):
    """The most MiB that a command had in memory, including memory shared with ckptd. It counts from
    the size of this process, which therefore holds no tensor."""
    process = subprocess.Popen([CLI, *words], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, words
    return usage.ru_maxrss / 1024


def memory_does_not_follow_the_size(world):
    """Eight times the bytes, in one tensor; ckptd lends less memory than even a half of them."""
    peaks, block = {}, chance.randbytes(1 << 20)
    for rows in (32, 256):
        folder, name = os.path.join(world.folder, f"of{rows}"), f"of{rows}@1"
        os.mkdir(folder)
        half = (rows // 2, 1 << 20)
        tensor = dcp_files.Tensor("U8", (rows, 1 << 20), [])
        with open(os.path.join(folder, "data"), "wb") as out:
            for first in (0, half[0]):
                begin = out.tell()
                length = dcp_files.write_box(out, "U8", half, (
                    bytes([first + row]) + block[1:] for row in range(half[0])))
                tensor.boxes.append(((first, 0), half, dcp_files.Place("data", begin, length)))
        with open(os.path.join(folder, ".metadata"), "wb") as file:
            file.write(dcp_files.metadata_of({"a": tensor}, {}, None))
        again, files = f"of{rows}@2", folder + "-files"
        peaks[rows] = [peak_of(*brought(folder, name), *world.where),
                       peak_of(*written(name, folder + "-out"), *world.where),
                       peak_of(*written(name, files, FILES), *world.where),
                       peak_of(*brought(files, again, FILES), *world.where)]
        with holdfast.open(again, server=world.server) as saved:
            assert saved["a"][rows - 1].tobytes() == bytes([rows - 1]) + block[1:]
        found = dcp_files.Folder(folder + "-out")
        for row in range(0, rows, 31):
            memory = numpy.zeros(1 << 20, numpy.uint8)
            found.fill(memory, row << 20, found.tensors["a"])
            assert memory.tobytes() == bytes([row]) + block[1:]
        shutil.rmtree(folder)
        shutil.rmtree(folder + "-out")
        shutil.rmtree(files)
    print(f"# peak in MiB of import, export, export, import, by MiB: {peaks}",
          flush=True)
    assert is_sanitized() or all(large < small + 40 for small, large in zip(*peaks.values())), peaks


def held_in(folder):
    """{name: (type, shape, bytes)} of a directory, by NumPy alone."""
    out = {}
    for file in sorted(os.listdir(folder)):
        if file.endswith(".safetensors"):
            with open(os.path.join(folder, file), "rb") as opened:
                head = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
                data = opened.read()
            head.pop("__metadata__", None)
            out.update({name: (one["dtype"], one["shape"], data[slice(*one["data_offsets"])])
                        for name, one in head.items()})
    return out


def write_safetensors(path, arrays, metadata=None):
    at, head = 0, {"__metadata__": metadata} if metadata else {}
    for name, array in arrays.items():
        head[name] = {"dtype": dtypes.of_numpy(array.dtype), "shape": list(array.shape),
                      "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(head).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            file.write(array.tobytes())


def command(world, *words, code=0):
    got, _, err = world.cli(*words, *world.where)
    assert got == code, (words, got, err)
    return err


def directories_of_safetensors_of_any_names_go_both_ways(world):
    """Foreign files, one with boxes as DCP's HuggingFaceStorageWriter writes them. The export is
    whole and imports equally, in several files too."""
    folder, out = (os.path.join(world.folder, name) for name in ("st-in", "st-out"))
    os.mkdir(folder)
    whole = numpy.arange(96, dtype=numpy.float32).reshape(8, 12)
    some = {"layers.0.w \u00e4": numpy.arange(7, dtype=numpy.int16), "x@1": numpy.zeros((3, 0)),
            "scalar": numpy.array(2.5), "b": numpy.arange(40000, dtype=numpy.uint8)}
    write_safetensors(os.path.join(folder, "a.safetensors"), some)
    for file, box in (("s1", numpy.s_[:8, :5]), ("s2", numpy.s_[:8, 5:])):
        info = {"cut": {"saved_offsets": [0, box[1].start or 0]}}
        write_safetensors(os.path.join(folder, file + ".safetensors"), {"cut": whole[box]},
                          {"DCP_SHARDING_INFO": json.dumps(info)})
    want = {name: (dtypes.of_numpy(array.dtype), list(array.shape), array.tobytes())
            for name, array in {**some, "cut": whole}.items()}
    command(world, *brought(folder, "st@3", FILES))
    command(world, *written("st@3", out, FILES))
    assert held_in(out) == want, held_in(out)
    command(world, *written("st@3", out, FILES), code=74)
    with holdfast.open("st@3", server=world.server) as found:
        done = safetensors_files.to_safetensors(found, out + "2", file_bytes=1000)
        assert done.tensors == 5 and held_in(out + "2") == want
    with open(os.path.join(out + "2", "model.safetensors.index.json")) as index:
        places = json.load(index)["weight_map"]
    assert set(places) == set(want) and len(set(places.values())) > 1, places
    command(world, *brought(out + "2", "st2@1", FILES))
    with open(os.path.join(folder, "a.safetensors"), "r+b") as cut:
        cut.truncate(os.path.getsize(cut.name) - 1)
    assert "a.safetensors does not lie in the file" in command(
        world, *brought(folder, "st@4", FILES), code=1)
    shutil.copy(os.path.join(folder, "s1.safetensors"), os.path.join(out, "again.safetensors"))
    assert "cut" in command(world, *brought(out, "st@4", FILES), code=2)


def what_a_trainer_of_hugging_face_saved_becomes_the_folder_of_its_model(world):
    """As transformers.py saves it: names by DCP's paths, config.json in the settings, files."""
    weights = {"model.embed.weight": numpy.array([1.00390625, 1.01171875, -0.0], numpy.float32),
               "lm_head.weight": numpy.array([3e38], numpy.float32),
               "steps": numpy.arange(3, dtype=numpy.int64)}
    names = {f"model.{name}": ["model", name] for name in weights}
    names["optimizer.state.lm_head.weight.step"] = ["optimizer", "state", "lm_head.weight", "step"]
    arrays = dict(zip(names, [*weights.values(), numpy.ones(1, numpy.float32)]))
    items = [sharded.Item(name, array.shape, (0,), array) for name, array in arrays.items()]
    config = {"model_type": "llama", "dtype": "float32", "eos_token_id": [3, 4]}
    files = {"generation_config.json": b"{}", "tokenizer.json": b"x" * 1000}
    for run, beside in (("trainer", files), ("hostile", {"x/../../out": b""})):
        saver = sharded.Saver(world.server, run, 0, 1, lambda value: [value],
                              {f"hf/{name}": value for name, value in beside.items()},
                              config={"hf": config})
        saver.save(5, items, {}, about={"paths": names})
        saver.wait(5)
        saver.close()
    out = os.path.join(world.folder, "hf-out")
    command(world, *written("trainer@5", out, FILES), "--weights-only", "--dtype", "bf16")
    held = held_in(out)
    bits = {name: list(numpy.frombuffer(one[2], "u2")) for name, one in held.items()
            if one[0] == "BF16"}
    assert bits == {"model.embed.weight": [0x3f80, 0x3f82, 0x8000],
                    "lm_head.weight": [0x7f62]}, bits
    assert held["steps"] == ("I64", [3], weights["steps"].tobytes()) and len(held) == 3, held
    with open(os.path.join(out, "config.json")) as file:
        assert json.load(file) == dict(config, dtype="bfloat16")
    for name, value in files.items():
        with open(os.path.join(out, name), "rb") as file:
            assert file.read() == value
    command(world, *written("trainer@5", out + "-all", FILES))
    assert set(held_in(out + "-all")) == set(names) and len(os.listdir(out + "-all")) == 1
    assert "not a valid name beside weights" in command(
        world, *written("hostile@5", out + "-hostile", FILES), "--weights-only", code=1)
    assert not os.path.exists(os.path.join(world.folder, "out"))


HEADS, KV_HEADS, HEAD_DIM = 4, 2, 6
OUR_NAMES = {"model.embed_tokens": "tok_embeddings", "model.norm": "norm", "lm_head": "output"}
OF_A_LAYER = {"self_attn.q_proj": ("attention.wq", (HEADS * HEAD_DIM, 8)),
              "self_attn.k_proj": ("attention.wk", (KV_HEADS * HEAD_DIM, 8)),
              "self_attn.v_proj": ("attention.wv", (KV_HEADS * HEAD_DIM, 8)),
              "self_attn.o_proj": ("attention.wo", (8, HEADS * HEAD_DIM)),
              "mlp.gate_proj": ("feed_forward.w1", (12, 8)),
              "mlp.down_proj": ("feed_forward.w2", (8, 12)),
              "mlp.up_proj": ("feed_forward.w3", (12, 8)),
              "input_layernorm": ("attention_norm", (8,)),
              "post_attention_layernorm": ("ffn_norm", (8,))}  # ours, and a size


def a_checkpoint_that_names_no_model_goes_to_hugging_face_with_a_config(world):
    """As a run of torchtitan is when it has crossed to our names."""
    names = dict(OUR_NAMES)
    for theirs, (ours, _) in OF_A_LAYER.items():
        names[f"model.layers.0.{theirs}"] = f"layers.0.{ours}"
    arrays = {f"{names[name[:-7]]}.weight": numpy.full(shape, at, numpy.float32)
              for at, (name, shape) in enumerate(llama_shapes(8, 4, 12, 20).items())}
    with holdfast.Client(world.server, "crossed") as client:
        client.save(1, arrays).wait()
    folder, out = (os.path.join(world.folder, name) for name in ("model", "crossed-out"))
    os.mkdir(folder)
    config = {"model_type": "llama", "hidden_size": 8, "intermediate_size": 12, "vocab_size": 20,
              "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
              "max_position_embeddings": 99, "torch_dtype": "float32"}
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    words = "export", "crossed@1", "--format", "hf", "--output", out
    assert "--model FOLDER" in command(world, *words, code=2)
    command(world, *words, "--model", folder)
    held = held_in(out)
    assert len(held) == len(arrays) and all(
        held[f"{theirs}.weight"][2] == arrays[f"{ours}.weight"].tobytes()
        for theirs, ours in names.items()), held
    with open(os.path.join(out, "config.json")) as file:
        assert json.load(file) == config


OUR_SETTINGS = {"optimizer": {"lr": 0.5, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8,
                              "weight_decay": 0.1, "no_decay_norms": True},
                "lr_scheduler": {"warmup_steps": 10, "total_steps": 20, "decay_ratio": 0.5,
                                 "decay_type": "linear", "min_lr_factor": 0.0}}


def state_of_a_trainer(is_tied):
    """Arrays of a Llama by transformers.py's names, and {ours: theirs} of weights and moments."""
    random = numpy.random.default_rng(3)
    sizes = {"model.embed_tokens": (10, 8), "model.norm": (8,), "lm_head": (10, 8)}
    ours = dict(OUR_NAMES)
    for layer in "01":
        for theirs, (name, size) in OF_A_LAYER.items():
            sizes[f"model.layers.{layer}.{theirs}"] = size
            ours[f"model.layers.{layer}.{theirs}"] = f"layers.{layer}.{name}"
    arrays, pairs = {}, {}
    for name, size in sizes.items():
        def make():
            return random.standard_normal(size).astype(numpy.float32)

        arrays[f"model.{name}.weight"] = make()
        if is_tied and name == "lm_head":
            arrays["model.lm_head.weight"] = arrays["model.model.embed_tokens.weight"]
            continue
        pairs[f"{ours[name]}.weight"] = f"model.{name}.weight"
        for moment in ("exp_avg", "exp_avg_sq"):
            theirs = f"optimizer.state.{name}.weight.{moment}"
            arrays[theirs] = make()
            pairs[f"optimizer.{moment}.{ours[name]}.weight"] = theirs
        arrays[f"optimizer.state.{name}.weight.step"] = numpy.float32(7)
    return arrays, pairs


def crossed(world, *words, code=0):
    done = subprocess.run([sys.executable, "-m", "holdfast", "cross", *words, "--server",
                           world.server], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done
    return done.stdout if code == 0 else done.stderr


def rows_of_pairs(theirs):
    """Rotary embedding turns rows i and i + D/2 there, 2i and 2i + 1 here."""
    half, ours = HEAD_DIM // 2, numpy.empty_like(theirs)
    for row in range(len(theirs)):
        head, inside = divmod(row, HEAD_DIM)
        ours[row] = theirs[head * HEAD_DIM + inside % 2 * half + inside // 2]
    return ours


def a_run_of_hugging_face_s_trainer_crosses_to_our_names_and_back(world):
    """With every bit, tied and not; its counts and the files of its folder go along."""
    plain = {"scheduler.0.last_epoch": 6, "trainer": json.dumps({
        "num_input_tokens_seen": 512, "log_history": ["a long run"] * 200000})}
    hf = {"model_type": "llama", "hidden_size": 8, "num_attention_heads": HEADS}
    for is_tied in (False, True):
        arrays, pairs = state_of_a_trainer(is_tied)
        run, config = f"hf-{is_tied}".lower(), dict(hf, head_dim=HEAD_DIM)
        saver = sharded.Saver(world.server, run, 0, 1, lambda value: [value],
                              {"hf/tokenizer.json": b"{}"}, config={"hf": config})
        saver.save(7, [sharded.Item(name, one.shape, (0,) * one.ndim, one)
                       for name, one in arrays.items()],
                   {name: dcp_files.object_bytes(value) for name, value in plain.items()})
        saver.wait(7)
        saver.close()
        assert crossed(world, f"{run}@7", run + "-ours") == f"{run}-ours@7-a1\n"
        with holdfast.open(run + "-ours", server=world.server) as found:
            assert set(found) == set(pairs) and found.object("hf/tokenizer.json") == b"{}"
            for ours, theirs in pairs.items():
                is_moved = any(part in theirs for part in ("q_proj", "k_proj"))
                want = rows_of_pairs(arrays[theirs]) if is_moved else arrays[theirs]
                assert found[ours][...].tobytes() == want.tobytes(), ours
            assert found.metadata.config == {"hf": config}
            state = found.state
            assert state == {"data": {"next_sample": 0, "tokens": 512}, "schedule": {"step": 6},
                             "optimizer": {"step": 7}}, state
            held = {name: found[name][...] for name in found}
        assert "does not record its settings" in crossed(
            world, run + "-ours@7", "x", "--to", "huggingface", code=2)
        with holdfast.Client(world.server, run + "-trained",
                             config={**OUR_SETTINGS, "hf": config}) as client:
            client.save(7, held, state, {"hf/tokenizer.json": b"{}"}).wait()
        crossed(world, run + "-trained@7", run + "-back", "--to", "huggingface")
        with holdfast.open(run + "-back", server=world.server) as found:
            stored = sharded.tensors_of(found.metadata)
            assert set(stored) == set(arrays)
            for name, one in arrays.items():
                assert found[name][...].tobytes() == one.tobytes(), name
            assert found.object("hf/tokenizer.json") == b"{}"
            objects, abouts = sharded.read_objects(found._client, found.metadata)
            values = {name: dcp_files.read_object(data, name) for name, data in objects.items()}
            paths = abouts[0]["paths"]
        rate = 0.5 * 7 / 10
        assert values["scheduler.0._last_lr"] == [rate] * 2 == [
            values[f"optimizer.param_groups.{group}.lr"] for group in (0, 1)], values
        assert values["optimizer.param_groups.1.weight_decay"] == 0.0
        assert sorted(values["optimizer.param_groups.1.params"]) == sorted(
            name[len("model."):] for name in arrays if name.startswith("model.") and "norm" in name)
        assert json.loads(values["trainer"]) == {"global_step": 7, "num_input_tokens_seen": 512}
        assert paths["model.lm_head.weight"] == ["model", "lm_head.weight"]
    crossed(world, "hf-true-trained@7", "x", "--to", "torchtitan", code=2)
    for width in ("3", "8"):
        assert f"heads of width {width}" in crossed(world, "hf-false@7", "x", "--head-dim", width,
                                                    code=2)


def a_run_of_our_trainer_goes_on_from_hugging_face_s_names(world):
    """With every bit of the losses of the run that stayed: there, back, and trained on."""
    tokens, seq_len, batch = os.path.join(world.folder, "tokens"), 64, 2
    lib_train.make_tokens(world.folder, lib_train.prose())

    def train(name, steps):
        done = subprocess.run(lib_train.command(
            world.folder, world.server, name, "--training.steps", steps, "--checkpoint.interval", 3,
            "--lr_scheduler.total_steps", 6), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done
        with open(os.path.join(world.folder, "loss")) as file:
            return {int(line.split()[0]): line.split()[1] for line in file}

    train("stays", 3)
    crossed(world, "stays@3", "as-hf", "--to", "huggingface")
    crossed(world, "as-hf@3", "comes", "--tokens", tokens, "--seq-len", str(seq_len), "--samples",
            str(3 * batch))
    with holdfast.open("stays@3", server=world.server) as before, holdfast.open(
            "comes@3", server=world.server) as after:
        assert before.metadata.digests == after.metadata.digests and len(before) == len(after)
    stayed, came = train("stays", 6), train("comes", 6)
    assert {4, 5, 6} <= set(came) and all(stayed[step] == came[step] for step in (4, 5, 6)), (
        stayed, came)


def the_examples_in_the_docstrings_are_true(world):
    for module in (dcp_files, convert, dtypes):
        result = doctest.testmod(module)
        assert result.attempted > 0 and result.failed == 0, result


if __name__ == "__main__":
    bed = World()
    bed.start("--memory.pool_bytes", "48MiB", "--limits.takeover_ms", "200")
    passed = run(tests_of_script(*sys.argv[1:]), bed)
    bed.close()
    sys.exit(not passed)
