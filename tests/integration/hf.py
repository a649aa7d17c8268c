#!/usr/bin/env python3
"""hf - a model is exported to Hugging Face's form and imported again, bit for bit, and trained
further.

Goal: `export --format hf` leaves a folder that the stock safetensors library reads, whose weights
in Hugging Face's order of rows equal ours in our order; `import` takes such a folder, in fp32, bf16
and fp16, tied or not, in one file or several, with any alignment; import(export(x)) is x; a trainer
starts from an import as from its own equal weights. Hostile folders are refused and leave no files.
Method: a tiny Llama is trained by the real trainer. Its logits are computed again from the exported
folder by a forward in NumPy that turns halves as Hugging Face does. Folders are then written by
hand, byte by byte. A seed checkpoint that is exported, imported and trained has the losses of the
seed that was trained directly.
"""

import hashlib
import json
import os
import random
import shutil
import struct
import subprocess
from unittest import mock

import lib_reference
from lib_hf import (CLI, SEQ, bits_of_file, bits_of_folder, cli, export, main, read, samples, test,
                    train_hot, weights_of, write)
from lib_store import llama_shapes, write_safetensors
import numpy

(HEADS, KV_HEADS), HEAD_DIM, THETA = lib_reference.HEADS, 16, lib_reference.THETA  # of flavor tiny
OUR_NAMES = {"model.embed_tokens": "tok_embeddings", "lm_head": "output", "model.": "", "_proj": "",
             "self_attn.": "attention.w", "mlp.gate": "feed_forward.w1",
             "mlp.down": "feed_forward.w2", "mlp.up": "feed_forward.w3",
             "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"}
SENTENCEPIECE = "tests/fuzz/corpus/tokenizer_json/genuine-sentencepiece"
NUMPY = {"F32": numpy.float32, "F16": numpy.float16, "BF16": numpy.uint16}


def arrays(folder):
    return {name: numpy.frombuffer(data, numpy.float32).reshape(shape).astype(numpy.float64)
            for name, (_, data, shape) in bits_of_folder(folder).items()}


def turned(x, _sign):
    """Rotary embedding that turns (i, i + D/2), as transformers has it; [B,T,H,D]."""
    angle = numpy.arange(x.shape[1])[:, None] * THETA ** (-numpy.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    cos, sin = (numpy.concatenate([f(angle)] * 2, 1)[:, None] for f in (numpy.cos, numpy.sin))
    half = HEAD_DIM // 2
    return x * cos + numpy.concatenate([-x[..., half:], x[..., :half]], -1) * sin


def forward(weights, ids):
    """By the reference's model, with their rotary embedding."""
    named = {}
    for name, value in weights.items():
        for theirs, ours in OUR_NAMES.items():
            name = name.replace(theirs, ours)
        named[name] = value
    with mock.patch.object(lib_reference, "rope", turned):
        return lib_reference.Model(named, HEADS, KV_HEADS).forward(ids[None])[0][0]


# ---- out


@test
def an_exported_folder_gives_the_logits_of_the_trainer(bed):
    folder = export(bed, bed.store, "run", "out", "--tokenizer", bed.path("tok"))
    config = json.loads(read(os.path.join(folder, "config.json")))
    assert config["architectures"] == ["LlamaForCausalLM"] and config["torch_dtype"] == "float32"
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (HEADS, KV_HEADS)
    assert (config["rms_norm_eps"], config["rope_theta"]) == (lib_reference.EPS, THETA)
    assert not config["tie_word_embeddings"] and config["max_position_embeddings"] == SEQ
    vocab = config["vocab_size"]  # of the tokens file, which has the two last around a text
    assert (config["bos_token_id"], config["eos_token_id"]) == (vocab - 2, vocab - 1), config
    assert read(os.path.join(folder, "original", "tokenizer.model")) == read(bed.path("tok"))
    train_hot(bed, "--debug.logits_file", bed.path("logits"))
    got = numpy.fromfile(bed.path("logits"), numpy.float32).reshape(SEQ, -1)
    weights = arrays(folder)
    ids = samples(bed, 1)[0][0]
    want = forward(weights, ids)
    assert numpy.abs(got - want).max() < 1e-4 * numpy.abs(want).max()
    halves = dict(weights)
    name = "model.layers.0.self_attn.q_proj.weight"
    halves[name] = halves[name].reshape(HEADS, 2, -1, 64).transpose(0, 2, 1, 3).reshape(64, 64)
    seen = numpy.abs(forward(halves, ids) - want).max() / numpy.abs(want).max()
    print(f"# rows in another order move the logits by {seen:.2g} of the largest")
    assert seen > 1e-2, "the order of rows matters"


@test
def a_checkpoint_that_names_its_model_takes_no_other(bed):
    said = cli("export", "run", "--store", bed.store, "--output", bed.path("no"), "--format",
               "hf", "--model", bed.path("out"), want=2)
    assert "already describes its model" in said, said


@test
def the_limit_of_a_file_is_kept_and_the_index_is_true(bed):
    one = bits_of_folder(export(bed, bed.store, "run", "one"))
    folder = export(bed, bed.store, "run", "many", "--shard-size", "64KiB")
    many = bits_of_folder(folder)
    assert one == many
    files = [name for name in os.listdir(folder) if name.endswith(".safetensors")]
    count = len(files)
    assert count > 3
    names = [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    assert sorted(files) == names, files  # as stock programs look for them
    index = json.loads(read(os.path.join(folder, "model.safetensors.index.json")))
    assert sorted(set(index["weight_map"].values())) == names, index
    for name in files:
        part = bits_of_file(os.path.join(folder, name))
        assert len(part) == 1 or sum(len(data) for _, data, _ in part.values()) <= 64 << 10
    half = bits_of_folder(export(bed, bed.store, "run", "half", "--dtype", "bf16", "--except",
                                 "*norm*=keep,output.weight=fp16"))
    assert {half[name][0] for name in half if "norm" in name} == {"F32"}
    assert half["lm_head.weight"][0] == "F16"
    assert half["model.embed_tokens.weight"][0] == "BF16"
    want = numpy.frombuffer(one["lm_head.weight"][1], numpy.float32).astype(numpy.float16)
    assert half["lm_head.weight"][1] == want.tobytes()


@test
def weights_alone_are_a_folder_unless_another_format_or_only_some_are_asked_for(bed):
    want, whole = bits_of_folder(bed.path("one")), weights_of(bed, bed.store, "run")

    def exported(*options):
        path = bed.path("default")
        if os.path.isdir(path):
            shutil.rmtree(path)
        cli("export", "run", "--store", bed.store, "--output", path, "--force", *options)
        return bits_of_folder(path) if os.path.isdir(path) else bits_of_file(path)

    for options in (["--weights-only"], ["--weights-only", "--format", "auto"],
                    ["--weights-only", "--shard-size", "64KiB"], ["--format", "hf"]):
        assert exported(*options) == want, options
    assert exported("--weights-only", "--format", "safetensors") == whole
    some = exported("--weights-only", "--only", "layers.0.*")
    assert some == {name: bits for name, bits in whole.items() if name.startswith("layers.0.")}
    every = exported()
    assert len(every) > len(whole) and every == every | whole, sorted(every)


@test
def an_export_replaces_no_folder_and_leaves_none_when_it_fails(bed):
    folder = export(bed, bed.store, "run", "kept")
    before = sorted(os.listdir(folder))
    arguments = ["export", "run", "--store", bed.store, "--format", "hf", "--output"]
    for force in ([], ["--force"]):
        assert "exists already" in cli(*arguments, folder, *force, want=74)
    assert sorted(os.listdir(folder)) == before
    gone = bed.fresh("gone")
    cli(*arguments, gone, "--tokenizer", bed.path("text"), want=1)  # another tokenizer
    cli(*arguments, gone, "--tokenizer", bed.path("nothing"), want=74)
    cli("export", "run", "--store", bed.store, "--output", gone, "--tokenizer", "x", want=2)
    assert not os.path.exists(gone) and not os.path.exists(gone + ".part")
    os.mkdir(gone + ".part")
    write(gone + ".part/model.safetensors", b"old")
    assert "--force" in cli(*arguments, gone, want=74)
    cli(*arguments, gone, "--force")
    assert bits_of_folder(gone) == bits_of_folder(folder)


@test
def a_folder_without_the_tokenizer_that_the_checkpoint_names_says_which_to_pass(bed):
    tok, sha256 = bed.path("tok"), hashlib.sha256(read(bed.path("tok"))).hexdigest()
    bed.train(bed.store, "named", 1, "--checkpoint.create_seed_checkpoint",
              "--model.hf_assets_path", tok)

    def said(store, checkpoint, *options):
        done = subprocess.run([CLI, "export", checkpoint, "--store", store, "--json", "--output",
                               bed.fresh("told"), *options], capture_output=True, text=True)
        assert done.returncode == 0 and set(json.loads(done.stdout)) == {
            "checkpoint", "output", "tensors", "objects_left_out", "files", "bytes",
            "durability"}, done
        return done.stderr

    file = "FILE (of a trainer: model.hf_assets_path)"
    for checkpoint, where in (("named", tok), ("run", file)):
        told = said(bed.store, checkpoint, "--weights-only")
        assert told.count("\n") == 1 and " warn export: " in told, told
        assert f"no tokenizer: add --tokenizer {where}, whose SHA-256 is {sha256}\n" in told, told
    assert said(bed.store, "named", "--weights-only", "--tokenizer", tok) == ""
    assert said(bed.store, "named") == ""  # one file has no place for it
    os.remove(bed.path("told"))
    store = bed.fresh("nameless.store")
    cli("import", bed.path("out"), "--run", "nameless", "--store", store)
    assert said(store, "nameless", "--weights-only") == ""
    own = ["original", "tokenizer.json", "tokenizer_config.json"]
    for name, path, beside in (("tokenizer.json", bed.path("out", "tokenizer.json"), own),
                               ("original/tokenizer.model", tok, own),
                               ("tokenizer.model", SENTENCEPIECE, ["tokenizer.model"])):
        folder = export(bed, store, "nameless", "as-it-is", "--tokenizer", path)
        assert read(os.path.join(folder, name)) == read(path)
        assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors", *beside]
    bare = bed.fresh("bare")
    shutil.copytree(bed.path("out"), bare)
    os.remove(os.path.join(bare, "tokenizer.json"))
    write(os.path.join(bare, "chat_template.jinja"), b"as it came")
    cli("import", bare, "--run", "bare", "--store", store)
    folder = export(bed, store, "bare", "as-it-is", "--tokenizer", tok)  # tiktoken's is the same
    assert sorted(os.listdir(folder)) == ["chat_template.jinja", "config.json",
                                          "model.safetensors", *own]


# ---- and in


@test
def force_removes_what_an_export_left_and_nothing_else(bed):
    folder, theirs = bed.fresh("forced"), bed.fresh("theirs")
    arguments = ("export", "run", "--store", bed.store, "--output", folder, "--format", "hf",
                 "--force")
    os.mkdir(theirs)
    write(theirs + "/model.safetensors", b"theirs")
    os.symlink(theirs, folder + ".part")
    assert "not a folder" in cli(*arguments, want=74)
    os.unlink(folder + ".part")
    os.mkdir(folder + ".part")
    for name in ("notes.txt", "model.safetensors"):
        write(os.path.join(folder + ".part", name), b"theirs")
    assert "it holds notes.txt" in cli(*arguments, want=74)
    assert len(os.listdir(folder + ".part")) == 2
    assert read(theirs + "/model.safetensors") == b"theirs"


@test
def what_is_exported_and_imported_is_the_same_to_the_bit(bed):
    want = weights_of(bed, bed.store, "run")
    for number, (size, shards) in enumerate((("5GiB", 1), ("64KiB", 3), ("300KiB", 5))):
        folder = export(bed, bed.store, "run", f"round{number}", "--shard-size", size)
        store = bed.fresh(f"round{number}.store")
        report = json.loads(cli("import", folder, "--run", "back", "--store", store, "--shards",
                                shards, "--json"))
        assert report["checkpoint"] == "back@0-a1" and report["shards"] == shards
        assert json.loads(cli("verify", "back", "--store", store, "--json"))["damages"] == 0
        assert weights_of(bed, store, "back") == want
        again = export(bed, store, "back", "again", "--shard-size", size)
        assert bits_of_folder(again) == bits_of_folder(folder)
        assert read(os.path.join(again, "config.json")) == read(os.path.join(folder, "config.json"))
        assert "already" in cli("import", folder, "--run", "back", "--store", store, want=74)
        assert "another name" in cli("import", folder, "--run", "run", "--store", bed.store,
                                     want=74)


def bfloat(values):
    """Their upper halves, cut: any bits will do."""
    return (values.view(numpy.uint32) >> 16).astype(numpy.uint16)


def made_folder(bed, name, tensors, config=None, padding=0):
    """Of {name: (dtype, array)}."""
    folder = bed.fresh(name)
    os.mkdir(folder)
    base = json.loads(read(os.path.join(bed.path("out"), "config.json")))
    base.update(config or {})
    write(os.path.join(folder, "config.json"), json.dumps(base).encode())
    write_safetensors(os.path.join(folder, "model.safetensors"),
                      {name: (dtype, array.shape, array.nbytes, array.tobytes())
                       for name, (dtype, array) in tensors.items()}, padding)
    return folder


def tensors_of(bed):
    return {name: ("F32", numpy.frombuffer(data, numpy.float32).reshape(shape))
            for name, (_, data, shape) in bits_of_folder(bed.path("out")).items()}


@test
def every_type_and_any_alignment_is_read_exactly(bed):
    tensors = tensors_of(bed)
    for padding in (0, 1, 2, 3, 5):
        for dtype in ("F32", "F16", "BF16"):
            shuffled = list(tensors.items())
            random.Random(padding).shuffle(shuffled)
            narrow = {n: (dtype, bfloat(a) if dtype == "BF16" else a.astype(NUMPY[dtype]))
                      for n, (_, a) in shuffled}
            folder = made_folder(bed, "narrow", narrow, padding=padding)
            store = bed.fresh("narrow.store")
            cli("import", folder, "--run", "n", "--store", store, "--shards", 1 + padding)
            back = bits_of_folder(export(bed, store, "n", "narrow.back", "--dtype", "fp32"))
            for name, (_, array) in narrow.items():
                want = (array.astype(numpy.uint32) << 16).view(numpy.float32) \
                    if dtype == "BF16" else array.astype(numpy.float32)
                assert back[name][1] == want.tobytes(), (name, dtype, padding)


@test
def kept_types_are_those_of_the_folder_that_was_imported(bed):
    tensors = {name: ("BF16", bfloat(array)) for name, (_, array) in tensors_of(bed).items()}
    store, norm = bed.fresh("kept.store"), "model.norm.weight"
    folder = made_folder(bed, "kept", tensors, {"torch_dtype": "bfloat16"})
    cli("import", folder, "--run", "k", "--store", store)
    bed.train(store, "k", 1)
    for step in (0, 1):
        back = export(bed, store, f"k@{step}", "kept.back")
        assert {dtype for dtype, _, _ in bits_of_folder(back).values()} == {"BF16"}
        assert json.loads(read(os.path.join(back, "config.json")))["torch_dtype"] == "bfloat16"
    assert {dtype for dtype, _, _ in weights_of(bed, store, "k@1").values()} == {"F32"}
    mixed = made_folder(bed, "mixed", dict(tensors, **{norm: tensors_of(bed)[norm]}))
    cli("import", mixed, "--run", "m", "--store", store)
    assert bits_of_folder(export(bed, store, "m", "mixed.back")) == bits_of_folder(mixed)
    half = bits_of_folder(export(bed, store, "m", "half.back", "--dtype", "fp16", "--except",
                                 "*norm.weight=keep"))
    assert {name: dtype for name, (dtype, _, _) in half.items() if "norm" in name} == {
        name: "F32" if name == norm else "BF16" for name in half if "norm" in name}, half.keys()
    assert half["lm_head.weight"][0] == "F16"
    other = bed.fresh("kept.other")
    cli("convert", "m", "--store", store, "--output", other, "--dtype", "fp16")
    converted = bits_of_folder(export(bed, other, "m", "converted.back"))
    assert {dtype for dtype, _, _ in converted.values()} == {"F16"}


@test
def heads_of_many_blocks_change_places_and_come_back(bed):
    dim, heads, kv_heads, hidden, vocab = 1024, 4, 2, 1536, 700
    config = {"hidden_size": dim, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
              "head_dim": dim // heads, "intermediate_size": hidden, "vocab_size": vocab,
              "num_hidden_layers": 1}
    shapes = llama_shapes(dim, dim // 2, hidden, vocab)
    dice = numpy.random.default_rng(7)
    tensors = {name: ("F32", dice.standard_normal(shape, numpy.float32))
               for name, shape in shapes.items()}
    folder = made_folder(bed, "blocks", tensors, config, padding=3)
    for shards in (1, 4):
        store = bed.fresh("blocks.store")
        cli("import", folder, "--run", "b", "--store", store, "--shards", shards)
        ours = weights_of(bed, store, "b")
        for name, number in (("q", heads), ("k", kv_heads)):
            theirs = tensors[f"model.layers.0.self_attn.{name}_proj.weight"][1]
            pairs = theirs.reshape(number, 2, -1, dim).transpose(0, 2, 1, 3)
            assert ours[f"layers.0.attention.w{name}.weight"][1] == pairs.tobytes()
        back = bits_of_folder(export(bed, store, "b", "blocks.back", "--shard-size", "3MiB"))
        assert back == bits_of_folder(folder)


@test
def a_tied_model_comes_back_tied(bed):
    tensors = tensors_of(bed)
    head, other = "lm_head.weight", tensors["lm_head.weight"][1].copy()
    tensors[head] = tensors["model.embed_tokens.weight"]
    both = made_folder(bed, "both", tensors, {"tie_word_embeddings": True})
    del tensors[head]
    store = bed.fresh("tied.store")
    folder = made_folder(bed, "tied", tensors, {"tie_word_embeddings": True})
    cli("import", folder, "--run", "tied", "--store", store)
    ours = weights_of(bed, store, "tied")
    assert "output.weight" not in ours and "tok_embeddings.weight" in ours
    back = export(bed, store, "tied", "tied.back")
    assert json.loads(read(os.path.join(back, "config.json")))["tie_word_embeddings"] is True
    assert "lm_head.weight" not in bits_of_folder(back)
    assert bits_of_folder(back) == bits_of_folder(folder)
    cli("import", both, "--run", "both", "--store", store)  # the head is the embedding
    assert weights_of(bed, store, "both") == ours
    other[:] = tensors["model.embed_tokens.weight"][1]
    other[-1, -1] += 1
    both = made_folder(bed, "both", dict(tensors, **{head: ("F32", other)}),
                       {"tie_word_embeddings": True})
    said = cli("import", both, "--run", "third", "--store", store, want=2)
    for word in ("model.safetensors holds", head, "tie_word_embeddings to false"):
        assert word in said, said
    assert not os.path.exists(os.path.join(store, "third"))


@test
def what_config_json_says_is_read_and_goes_out_again(bed):
    spelled = {"rope_theta": None,
               "rope_parameters": {"rope_theta": 54321.0, "rope_type": "default"}}
    unknown = {"max_position_embeddings": 8192}
    for config, theta, want in (({"rope_theta": 12345.0}, 12345.0, {}), (spelled, 54321.0, {}),
                                ({"max_position_embeddings": 131072}, THETA, {}),
                                ({"max_position_embeddings": None}, THETA, unknown),
                                ({"max_position_embeddings": -7}, THETA, unknown),
                                ({"max_position_embeddings": 1 << 40}, THETA, unknown),
                                ({"bos_token_id": None, "eos_token_id": None}, THETA, {})):
        store = bed.fresh("said.store")
        folder = made_folder(bed, "said", tensors_of(bed), config)
        cli("import", folder, "--run", "said", "--store", store)
        identity = json.loads(cli("show", "said", "--store", store, "--json"))["identity"]
        assert identity["model"]["rope_theta"] == theta, identity
        out = json.loads(read(os.path.join(export(bed, store, "said", "said.back"), "config.json")))
        came = json.loads(read(os.path.join(folder, "config.json")))
        assert out == {**came, **want}, (config, out)


@test
def the_scaling_of_a_run_begun_here_goes_out(bed):
    store = bed.fresh("scaling.store")
    for kind, options, want in (("linear", ("--model.rope_factor", 2), {"factor": 2.0}),
                                ("none", (), None)):
        bed.train(store, kind, 1, "--model.rope_scaling", kind, *options)
        out = json.loads(read(os.path.join(export(bed, store, kind, kind + ".out"), "config.json")))
        told = out["rope_scaling"]
        assert told == (want and {"rope_type": kind, **want}), out


@test
def config_json_goes_out_as_it_came_but_for_what_was_asked_for(bed):
    base = json.loads(read(os.path.join(bed.path("out"), "config.json")))
    begin, end = base["bos_token_id"], base["eos_token_id"]
    tensors = {name: ("BF16", bfloat(array)) for name, (_, array) in tensors_of(bed).items()}
    folder, store = made_folder(bed, "came", tensors), bed.fresh("came.store")
    del base["torch_dtype"]
    base.update({"dtype": "bfloat16", "eos_token_id": [3, end], "pad_token_id": 5,
                 "max_position_embeddings": 2048, "initializer_range": 0.01, "head_dim": None,
                 "transformers_version": "4.57.0", "attention_dropout": 0.0})
    plain = dict(base, quantization_config={"quant_method": "fp8"})
    write(os.path.join(folder, "config.json"), json.dumps(plain).encode())
    said = subprocess.run([CLI, "import", folder, "--run", "w", "--store", store],
                          capture_output=True, text=True, timeout=120, check=True).stderr
    assert "has a quantization_config (fp8), but the weights are not quantized: " in said, said
    bed.train(store, "w", 1)
    for step, options, want in ((0, (), base), (1, (), base),
                                (1, ("--dtype", "fp16"), dict(base, dtype="float16"))):
        back = export(bed, store, f"w@{step}", "came.back", *options)
        out = json.loads(read(os.path.join(back, "config.json")))
        assert out == want and list(out) == list(base), (step, out)
    base.update({"bos_token_id": begin - 1, "eos_token_id": [3]})
    write(os.path.join(folder, "config.json"), json.dumps(base).encode())
    cli("import", folder, "--run", "v", "--store", store)
    bed.train(store, "v", 1)  # on a text whose tokens the folder does not name
    out = json.loads(read(os.path.join(export(bed, store, "v", "came.back"), "config.json")))
    assert out == dict(base, bos_token_id=begin, eos_token_id=end), out


@test
def what_a_folder_has_beside_its_weights_goes_out_as_it_came(bed):
    files = {name: name.encode() * 1000 for name in (
        "generation_config.json", "chat_template.jinja", "tokenizer_config.json",
        "special_tokens_map.json", "added_tokens.json", "tokenizer.json", "tokenizer.model",
        "vocab.json", "merges.txt", "original/tokenizer.model")}
    files["tokenizer_config.json"] = b'{"eos_token": "<|of no text here|>"}'
    files["generation_config.json"] = b'{"eos_token_id": [3, 7]}'  # nor is the trained one
    folder = made_folder(bed, "beside", tensors_of(bed), {"max_position_embeddings": 131072})
    os.mkdir(os.path.join(folder, "original"))
    for name, data in files.items():
        write(os.path.join(folder, name), data)
    write(os.path.join(folder, "notes.txt"), b"no file of a model")
    config, store = read(os.path.join(folder, "config.json")), bed.fresh("beside.store")
    cli("import", folder, "--run", "b", "--store", store, "--shards", 3)
    bed.train(store, "b", 1)
    bed.train(store, "b", 2, "--comm.ranks", 2)
    bed.train(store, "of-run", 1, "--checkpoint.initial_load_path", "b@1", "--comm.ranks", 2,
              "--parallelism.data_parallel_shard_degree", 1, "--parallelism.tensor_parallel_degree",
              2)
    bed.train(store, "of-folder", 1, "--checkpoint.initial_load_path", folder)
    bed.train(store, "of-config", 1, "--model.config", folder)
    config_of = json.loads(read(os.path.join(
        export(bed, store, "of-config", "beside.back"), "config.json")))
    assert config_of["max_position_embeddings"] == 131072, config_of
    other = bed.fresh("beside.other")
    cli("convert", "b@1", "--store", store, "--output", other, "--shards", "2")
    for of, checkpoint in ((store, "b@0"), (store, "b@1"), (store, "b@2"), (store, "of-run"),
                           (store, "of-folder"), (other, "b@1")):
        back = export(bed, of, checkpoint, "beside.back")
        found = [os.path.relpath(os.path.join(where, name), back)
                 for where, _, names in os.walk(back) for name in names]
        assert sorted(found) == sorted([*files, "config.json", "model.safetensors"]), found
        assert {name: read(os.path.join(back, name)) for name in files} == files, checkpoint
        assert json.loads(read(os.path.join(back, "config.json"))) == json.loads(config)
    shards = [os.path.join(where, name) for where, _, names in os.walk(os.path.join(store, "b"))
              for name in names if "00000002-" in where and name.endswith(".safetensors")]
    damaged = next(path for path in shards if files["merges.txt"] in read(path))
    write(damaged, read(damaged).replace(files["merges.txt"], b"M" + files["merges.txt"][1:]))
    alone = bed.fresh("beside.alone")
    shutil.copytree(store, alone)
    for name in os.listdir(os.path.join(alone, "b")):
        if name.startswith("step-") and "00000002-" not in name:
            shutil.rmtree(os.path.join(alone, "b", name))
    bed.train(alone, "b", 3, want=78)  # none is left, and it does not begin anew
    bed.train(store, "b", 3)  # from step 1: a file is a part of a checkpoint
    lineage = json.loads(cli("show", "b@3", "--store", store, "--json"))["lineage"]
    assert lineage["step"] == 1, lineage
    assert read(os.path.join(export(bed, store, "b@3", "beside.back"), "merges.txt")) == \
        files["merges.txt"]


@test
def training_starts_from_an_import_as_from_the_same_weights(bed):
    options = ("--debug.seed", 42)
    bed.train(bed.store, "seed", 4, "--checkpoint.create_seed_checkpoint", *options)
    folder = export(bed, bed.store, "seed", "seed")
    direct = bed.train(bed.store, "seed", 4, *options)
    assert len(direct) >= 5
    for shards, ranks in ((1, 1), (3, 2)):
        store = bed.fresh("start.store")
        cli("import", folder, "--run", "start", "--store", store, "--shards", shards)
        assert bed.train(store, "start", 4, "--comm.ranks", ranks, *options) == direct
        lineage = json.loads(cli("show", "start", "--store", store, "--json"))["lineage"]
        assert (lineage["step"], lineage["attempt"]) == (0, 1), lineage
        assert weights_of(bed, store, "start") == weights_of(bed, bed.store, "seed")


@test
def moments_read_from_a_damaged_checkpoint_do_not_get_into_an_older_seed(bed):
    options, store = ("--debug.seed", 42), bed.fresh("walk.store")
    bed.train(store, "walk", 4, "--checkpoint.create_seed_checkpoint", *options)
    direct = bed.train(store, "walk", 4, "--comm.ranks", 2, "--checkpoint.interval", 2, *options)
    shutil.rmtree(os.path.join(store, "walk/step-00000004-a0002"))  # else all is done
    shard = os.path.join(store, "walk/step-00000002-a0002/shard-00002-of-00002.safetensors")
    content = bytearray(read(shard))
    content[len(content) // 2] ^= 1  # the first shard is whole, and read first
    write(shard, content)
    assert bed.train(store, "walk", 4, *options) == direct
    entries = json.loads(cli("list", "walk", "--store", store, "--json", want=1))
    assert [(entry["step"], entry["attempt"]) for entry in entries] == [(4, 3), (2, 2), (0, 1)]
    assert "damaged" in entries[1]["damage"], entries


@test
def another_model_than_the_configured_one_is_not_trained(bed):
    for key, value in (("rope_theta", 10000.0), ("rms_norm_eps", 1e-6),
                       ("rope_scaling", {"rope_type": "llama3", "factor": 8.0})):
        folder = made_folder(bed, "other", tensors_of(bed), {key: value})
        store = bed.fresh("other.store")
        cli("import", folder, "--run", "other", "--store", store)
        said = bed.train(store, "other", 2, want=78)
        assert key.replace("rms_", "") in said, said
        back = export(bed, store, "other", "other.back")
        written = json.loads(read(os.path.join(back, "config.json")))[key]
        assert written == value or value.items() <= written.items(), written
        bed.train(store, "other", 2, "--model.config", back)


# ---- hostile folders


@test
def what_does_not_fit_is_named(bed):
    tensors = tensors_of(bed)
    norm = "model.norm.weight"
    store = bed.fresh("bad.store")

    def refused(word, tensors=tensors, config=None, want=1, change=None):
        folder = made_folder(bed, "bad", tensors, config)
        if change:
            change(folder)
        said = cli("import", folder, "--run", "bad", "--store", store, want=want)
        assert word in said and said.count("\n") == 1, said
        assert not os.path.exists(os.path.join(store, "bad")), said

    def index(weight_map):
        def change(folder):
            write(os.path.join(folder, "model.safetensors.index.json"),
                  json.dumps({"weight_map": weight_map}).encode())
        return change

    refused(norm, {k: v for k, v in tensors.items() if k != norm})
    refused("extra", dict(tensors, extra=tensors[norm]), want=2)
    refused(norm, dict(tensors, **{norm: ("F32", tensors[norm][1][:-1])}))
    refused(norm, dict(tensors, **{norm: ("I32", tensors[norm][1])}), want=2)
    refused("F8", dict(tensors, F8=("F8_E4M3", tensors[norm][1])))
    refused("model_type", config={"model_type": "gpt2"}, want=2)
    refused("hidden_act", config={"hidden_act": "gelu"}, want=2)
    refused("attention_bias", config={"attention_bias": True}, want=2)
    for key, value in (("num_hidden_layers", 0), ("hidden_size", -1), ("vocab_size", 1 << 40),
                       ("num_attention_heads", "four"), ("num_key_value_heads", 5),
                       ("intermediate_size", 1.5)):
        refused(key, config={key: value})
    refused("head_dim = 3", config={"head_dim": 3})
    refused("has no tensor model.layers.", config={"num_hidden_layers": 4096})
    refused("elsewhere", change=index({norm: "model.safetensors"}))
    refused("folder", change=index({norm: "../model.safetensors"}))
    refused("file", change=index({norm: 7}))
    refused("weight_map", change=index([]))
    refused("other.safetensors", change=index({norm: "other.safetensors"}), want=66)
    refused("config.json", want=66, change=lambda f: os.remove(os.path.join(f, "config.json")))
    refused("JSON", change=lambda f: write(os.path.join(f, "config.json"), b"{"))
    refused("model.safetensors", want=66,
            change=lambda f: os.remove(os.path.join(f, "model.safetensors")))
    refused("not a safetensors", change=lambda f: write(os.path.join(f, "model.safetensors"), b""))
    for more in (b"x", b"x" * 4096):
        refused("no tensor", change=lambda f, more=more: write(
            os.path.join(f, "model.safetensors"),
            read(os.path.join(f, "model.safetensors")) + more))
    refused("ends within",
            change=lambda f: os.truncate(os.path.join(f, "model.safetensors"), 99999))
    for wrong in (["--run", "a/b"], ["--run", ".."], [], ["--run", "x", "--shards", "-1"]):
        cli("import", bed.path("out"), "--store", store, *wrong, want=2)
    cli("import", bed.path("absent"), "--run", "x", "--store", store, want=66)
    cli("import", bed.path("out"), "--run", "x", "--server", f"unix:{bed.root}/nobody", want=69)


@test
def a_header_of_millions_of_values_is_refused_in_little_memory(bed):
    folder = made_folder(bed, "many", tensors_of(bed))
    room = 16 << 20
    for unit, what in ((b"[{}", "objects and arrays"), (b"[[]", "objects and arrays"),
                       (b"[1", "values")):
        rest = b"," + unit[1:]
        text = b'{"a":' + unit
        text += rest * ((room - len(text) - 8) // len(rest)) + b"]}"
        header = struct.pack("<Q", len(text)) + text
        for name, whole in (("model.safetensors", header), ("model.safetensors.index.json", text)):
            with open(os.path.join(folder, name), "wb") as file:
                file.write(whole)
            process = subprocess.Popen(
                [CLI, "import", folder, "--run", "m", "--store", bed.path("many.store")],
                stderr=subprocess.PIPE, text=True)
            said = process.stderr.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            print(f"# {name}, {len(text)} bytes, {usage.ru_maxrss >> 10} MiB: {said.strip()}")
            assert process.returncode == 1 and what in said, said
            assert usage.ru_maxrss < 256 << 10, usage.ru_maxrss
        os.remove(os.path.join(folder, "model.safetensors.index.json"))


@test
def an_import_that_was_killed_is_no_checkpoint_and_can_be_done_again(bed):
    folder, unfinished = bed.path("out"), 0
    for count in range(20):
        store = bed.fresh("killed.store")
        step = os.path.join(store, "k", "step-00000000-a0001")
        arguments = ["import", folder, "--run", "k", "--store", store, "--shards", "16"]
        process = subprocess.Popen([CLI, *arguments], stdout=subprocess.DEVNULL)
        while process.poll() is None and not (
                os.path.isdir(step) and len(os.listdir(step)) > count % 12):
            pass
        process.kill()
        process.wait()
        left = [name for name in os.listdir(step) if not name.startswith(".")] \
            if os.path.isdir(step) else []  # the mark of unfinished work may be all
        if not json.loads(cli("list", "--store", store, "--json")) and left:
            unfinished += 1
            assert "--force" in cli(*arguments, want=74)
            cli(*arguments, "--force")
        elif os.path.isdir(step) and not left:
            cli(*arguments)
        if os.path.isdir(step):
            cli("verify", "k", "--store", store)
    assert unfinished > 0, "every import was over before it was killed"


if __name__ == "__main__":
    main(train_hot)
