# lib_tiny.sh - a training run small enough for tests: a tiny Llama on some text of our own.
#
#   . tests/integration/lib_tiny.sh     # after lib.sh
#   make_tiny                           # $tiny: its configuration; tokenizer and tokens under $tmp
#
# The text is the prose of this repository: always there, long enough for a tokenizer of 512 tokens.

make_tiny() {
    cat README.md ./*/README.md LICENSE >"$tmp/text.txt"
    "$BUILD/tokenizer" train --vocab 512 --out "$tmp/tokenizer.model" "$tmp/text.txt" &&
        "$BUILD/tokenizer" tokens --tokenizer "$tmp/tokenizer.model" --out "$tmp/text.tokens" \
            "$tmp/text.txt" || { note "could not make the tokens file" && exit 1; }
    tiny=$tmp/tiny.toml
    cat >"$tiny" <<END
[job]
run = "tiny"
[model]
flavor = "tiny"
hf_assets_path = "$tmp/tokenizer.model"
[lr_scheduler]
warmup_steps = 5
[training]
dataset_path = "$tmp/text.tokens"
local_batch_size = 1
seq_len = 64
steps = 20
mixed_precision_param = "float32"
[canonical]
micro_batches = 6
[checkpoint]
enable = true
interval = 5
async_mode = "async"
[metrics]
log_freq = 1
loss_file = "$tmp/tiny.loss"
[kernels]
backend = "${HOLDFAST_TEST_KERNELS:-best}"
END
} >"$tmp/make_tiny.log" 2>&1
