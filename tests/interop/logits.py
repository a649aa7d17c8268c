#!/usr/bin/env python3
"""logits - transformers computes from our export the same as our trainer.

Goal: `export --format hf` of a trained model loads in LlamaForCausalLM, with every tensor, and
gives the trainer's logits, in fp32 and in bf16; a rounded export equals PyTorch's rounding. A
folder that was imported, trained and exported differs only in the weights: it loads without a
warning, and `generate` stops at its ends of a text. Method: a tiny Llama is trained hot, so that
its attention depends on positions. The trainer writes the logits of its first sample
(debug.logits_file), transformers computes them again from the folder. Tolerances, relative to the
largest logit: fp32 1e-5 (sums in another order). bf16 has 8 bits, and the two round at different
places: 2e-2; and the root mean square distance of ours from the fp32 logits is at most 1.5 times
that of PyTorch's. Query rows in another order show that the comparison detects errors.
"""
import json
import logging
import os

from lib_llama import (TINY, compare, difference, load, rope_theta, save_random, torch,
                       transformers)
from lib_hf import SEQ, bits_of_folder, cli, export, main, read, samples, test, train_hot
import numpy

FP32, BF16, BF16_AVERAGE = 1e-5, 2e-2, 1.5


def trainer_logits(bed, dtype):
    train_hot(bed, "--debug.logits_file", bed.path("logits"),
              "--training.mixed_precision_param", dtype)
    return torch.from_numpy(numpy.fromfile(bed.path("logits"), numpy.float32).reshape(SEQ, -1))


def logits(model, bed):
    with torch.no_grad():
        return model(torch.from_numpy(samples(bed, 1)[0])).logits[0].float()


@test
def transformers_loads_the_export_with_every_tensor_and_setting(bed):
    folder = export(bed, bed.store, "run", "out", "--tokenizer", bed.path("tok"))
    config = load(folder).config
    got = {key: getattr(config, key) for key in TINY if key != "rope_theta"}
    assert dict(got, rope_theta=rope_theta(config)) == TINY, config
    assert config.tie_word_embeddings is False and config.hidden_act == "silu"


@test
def in_fp32_its_logits_are_those_of_the_trainer(bed):
    ours, model = trainer_logits(bed, "float32"), load(bed.path("out"))
    compare("fp32: difference of the logits", difference(logits(model, bed), ours), FP32)
    weight = model.model.layers[0].self_attn.q_proj.weight
    weight.data = weight.data.reshape(4, 2, 8, 64).transpose(1, 2).reshape(64, 64)
    seen = difference(logits(model, bed), ours)
    print(f"# rows in another order move the logits by {seen:.2g} of the largest")
    assert seen > 1e-2, f"the comparison does not see the order of rows: {seen:g}"


@test
def in_bf16_its_logits_are_those_of_the_trainer(bed):
    exact = logits(load(bed.path("out")), bed)
    ours = trainer_logits(bed, "bfloat16")
    theirs = logits(load(bed.path("out"), torch.bfloat16), bed)
    compare("bf16: difference of the logits", difference(theirs, ours), BF16)
    ours_off, theirs_off = (float((part - exact).square().mean().sqrt()) for part in (ours, theirs))
    assert ours_off > 0 and theirs_off > 0, "one of them did not round"
    compare("bf16: our root mean square distance from fp32 beside PyTorch's",
            ours_off / theirs_off, BF16_AVERAGE)


@test
def a_rounded_export_is_what_pytorch_rounds_to(bed):
    exact = load(bed.path("out")).state_dict()
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        folder = export(bed, bed.store, "run", name, "--dtype", name, "--shard-size", "64KiB")
        model = load(folder, "auto")
        assert model.dtype == dtype and len(os.listdir(folder)) > 3, (model.dtype, name)
        for tensor, value in model.state_dict().items():
            assert torch.equal(value, exact[tensor].to(dtype)), (name, tensor)


@test
def transformers_writes_what_it_loaded_and_the_bits_are_ours(bed):
    load(bed.path("out")).save_pretrained(bed.path("saved"))
    assert bits_of_folder(bed.path("saved")) == bits_of_folder(bed.path("out"))
    assert json.loads(read(bed.path("saved", "config.json")))["model_type"] == "llama"


class Told(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def told_by(function):
    """(its output, the warnings of transformers)"""
    logger, told = logging.getLogger("transformers"), Told()
    transformers.utils.logging.set_verbosity_warning()
    logger.addHandler(told)
    try:
        return function(), told.lines
    finally:
        logger.removeHandler(told)
        transformers.utils.logging.set_verbosity_error()


class Third(transformers.LogitsProcessor):
    """The third token is this one, the others are 11."""

    def __init__(self, token):
        self.token, self.calls = token, 0

    def __call__(self, ids, scores):
        self.calls += 1
        scores[:] = 0
        scores[:, self.token if self.calls == 3 else 11] = 1
        return scores


@test
def a_folder_that_was_trained_has_other_weights_and_nothing_else(bed):
    folder, store = save_random(bed, transformers.LlamaConfig(
        **dict(TINY, max_position_embeddings=4096), bos_token_id=1, eos_token_id=[7, 9],
        pad_token_id=5, initializer_range=0.1), "begun"), bed.fresh("begun.store")
    tokenizer = transformers.AutoTokenizer.from_pretrained(bed.path("out"))
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    transformers.GenerationConfig(bos_token_id=1, eos_token_id=[7, 9], pad_token_id=5,
                                  max_new_tokens=8).save_pretrained(folder)
    cli("import", folder, "--run", "w", "--store", store)
    bed.train(store, "w", 2)
    back = export(bed, store, "w@2", "begun.back")
    assert sorted(os.listdir(back)) == sorted(os.listdir(folder)), os.listdir(back)
    for name in os.listdir(folder):
        if name == "config.json":
            assert json.loads(read(os.path.join(back, name))) == json.loads(
                read(os.path.join(folder, name)))
        elif not name.endswith(".safetensors"):
            assert read(os.path.join(back, name)) == read(os.path.join(folder, name)), name
    before, after = bits_of_folder(folder), bits_of_folder(back)
    assert {name: (kind, shape) for name, (kind, _, shape) in before.items()} == {
        name: (kind, shape) for name, (kind, _, shape) in after.items()}
    assert before != after
    (model, theirs), warned = told_by(lambda: (
        load(back), transformers.AutoTokenizer.from_pretrained(back)))
    assert warned == [], warned
    assert theirs.chat_template == tokenizer.chat_template
    ids = torch.tensor([[1, 20, 21]])
    for token, length in (7, 3), (9, 3), (10, 8):
        made, warned = told_by(lambda token=token: model.generate(
            ids, attention_mask=torch.ones_like(ids),
            logits_processor=transformers.LogitsProcessorList([Third(token)])))
        assert made.shape[1] - 3 == length and warned == [], (token, made, warned)


if __name__ == "__main__":
    main(train_hot)
