#!/usr/bin/env python3
"""partial - a run begins with the fitting tensors of another model: checkpoint.partial.

Goal: from a source with fewer tokens and layers the run takes the exact bits. Further rows are the
mean of the source's rows, added in double in their order; further layers have initial values. A
larger source is truncated. The result is the same on every mesh, with a vocabulary that tensor
parallel does not divide, and from a run, a folder and another store. Without the key the model is
refused, and the message names the key. A run's own checkpoint is never taken in part. Method: seed
checkpoints of a tiny Llama that was trained a little, read by the stock safetensors library and
made again in NumPy. unit/trainer_partial.c tests the tensors taken for each shape.
"""

from lib_hf import bits_of_file, cli, export, main, test, weights_of
import numpy

SEED = "--checkpoint.create_seed_checkpoint"
WIDER = "--model.vocab_size", 603, "--model.n_layers", 3
MESHES = ((), ("--parallelism.data_parallel_shard_degree", 4),
          ("--parallelism.tensor_parallel_degree", 2, "--parallelism.pipeline_parallel_degree", 2),
          ("--parallelism.data_parallel_replicate_degree", 2, "--parallelism.zero_stage", 1))
VOCABULARY = "tok_embeddings.weight", "output.weight"


def prepare(bed):
    bed.train(bed.store, "run", 3)
    bed.train(bed.store, "new", 1, SEED, *WIDER)


def partial(bed, name, path, *options, store=None, want=0):
    """The initial state of the run, or the output of a failure."""
    said = bed.train(store or bed.store, name, 1, SEED, "--checkpoint.partial",
                     "--checkpoint.initial_load_path", path, *options, want=want)
    return weights_of(bed, store or bed.store, name) if want == 0 else said


def array(bits):
    return numpy.frombuffer(bits[1], numpy.float32).reshape(bits[2])


def means(rows, count):
    sums = numpy.add.accumulate(rows.astype(numpy.float64), axis=0)[-1]
    return numpy.repeat((sums / len(rows)).astype(numpy.float32)[None], count, 0)


def wanted(bed, fresh=(), mean=True):
    source, new = weights_of(bed, bed.store, "run"), weights_of(bed, bed.store, "new")
    out = {}
    for name, bits in new.items():
        taken = name in source and not any(part in name for part in fresh)
        if taken and name in VOCABULARY:
            rows, behind = array(source[name]), array(bits)[512:]
            whole = numpy.concatenate([rows, means(rows, len(behind)) if mean else behind])
            out[name] = bits[0], whole.tobytes(), bits[2]
        else:
            out[name] = source[name] if taken else bits
    return out


@test
def what_a_smaller_model_has_is_taken_with_the_same_bits_on_every_mesh(bed):
    want = wanted(bed)
    assert len({bits[1] for bits in want.values()}) > 20, "the bits of layers differ"
    for number, mesh in enumerate(MESHES):
        ranks = 1 if not mesh else 2 if "--parallelism.zero_stage" in mesh else 4
        got = partial(bed, f"mesh{number}", "run", *WIDER, "--comm.ranks", ranks,
                      "--canonical.micro_batches", 4, *mesh)
        assert got == want, (mesh, [name for name in want if got[name] != want[name]])


@test
def a_folder_and_a_run_of_another_store_are_taken_as_the_run_itself(bed):
    want, other = wanted(bed), bed.fresh("other.store")
    folder = export(bed, bed.store, "run", "folder")
    assert partial(bed, "of-folder", folder, *WIDER, store=other) == want
    runs = {line.split("@")[0].split()[0] for line in cli("list", "--store", other).splitlines()}
    assert any(run.startswith("of-folder.initial-") for run in runs), runs
    assert partial(bed, "of-store", f"{bed.store}:run", *WIDER, store=other) == want
    bed.train(other, "late", 9, "--checkpoint.partial", "--checkpoint.initial_load_path", folder,
              "--debug.stop_after_step", 1, *WIDER)
    new = export(bed, bed.store, "new", "new")  # the first start has saved nothing
    got = partial(bed, "late", new, *WIDER, store=other)
    assert got == weights_of(bed, bed.store, "new")


@test
def rows_and_tensors_begin_as_a_new_models_where_that_is_asked_for(bed):
    rows = "--checkpoint.partial_rows", "fresh"
    assert partial(bed, "rows", "run", *WIDER, *rows) == wanted(bed, mean=False)
    head = "--checkpoint.partial_fresh", "output,layers.1.attention"
    got = partial(bed, "head", "run", *WIDER, *head)
    assert got == wanted(bed, ("output", "layers.1.attention"))


@test
def a_larger_model_is_cut(bed):
    got, new = partial(bed, "cut", "new"), weights_of(bed, bed.store, "new")
    source = {name: array(bits)[:512] if name in VOCABULARY else array(bits)
              for name, bits in new.items() if not name.startswith("layers.2.")}
    assert set(got) == set(source)
    for name, bits in got.items():
        assert array(bits).tobytes() == source[name].tobytes(), name


@test
def the_whole_state_has_no_moments_behind_the_rows_that_were_taken(bed):
    def state(name):
        cli("export", name, "--store", bed.store, "--output", bed.path("state"), "--force")
        return bits_of_file(bed.path("state"))

    source, states = state("run"), []
    for name, ranks in ("whole", 1), ("whole2", 2):
        partial(bed, name, "run", *WIDER, "--checkpoint.no_initial_load_model_only", "--comm.ranks",
                ranks)
        states.append(state(name))
    assert states[0] == states[1] and len(states[0]) == 3 * len(wanted(bed))
    for name in states[0]:
        if name.startswith("optimizer."):
            behind = array(states[0][name])
            if name in source:
                rows = source[name][2][0]
                assert array(source[name]).any() and behind[:rows].tobytes() == source[name][1]
                behind = behind[rows:]
            assert not behind.any(), name


@test
def a_run_that_has_a_checkpoint_is_never_taken_in_part(bed):
    said = partial(bed, "mesh0", "run", "--model.n_layers", 2, *WIDER[:2], want=78)
    assert "has layers = 3, this configuration 2" in said, said
    assert "checkpoint.partial" not in said.split("error")[-1], said


@test
def without_the_key_the_words_name_it(bed):
    for name, path in ("a-run", "run"), ("a-folder", bed.path("folder")):
        said = bed.train(bed.store, name, 1, "--checkpoint.initial_load_path", path, *WIDER,
                         want=78)
        assert "has layers = 2, this configuration 3" in said, said
        assert "set checkpoint.partial" in said, said
    said = partial(bed, "narrow", "run", "--model.hidden_dim", 96, want=78)
    assert "has hidden = " in said and "set checkpoint.partial" not in said, said


if __name__ == "__main__":
    main(prepare)
