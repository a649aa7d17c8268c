# tests.mk - the tests, the benches, and what they are linked with.
.PHONY: tests-built test test-no-uring torture sim mutants check fuzz bench bench-peers interop

# The unit tests are 190 programs of the whole tree: the faster linker takes them, where binutils has it.
TEST_LINK := $(if $(shell command -v ld.gold),-fuse-ld=gold)
FUZZ_SECONDS = 60
# What a stock gRPC client needs; of ckpt.proto there are also C structs.
PROTOS = proto/wire/ckpt.proto proto/wire/grpc/health.proto
# check_*: too long for `make test`; steps of `make check`.
TESTS = $(patsubst tests/unit/%.c,$(BUILD)/tests/%,$(filter-out tests/unit/check_%,$(wildcard tests/unit/*.c)))
# A store that injects faults: linked into the tests, and into a ckptd of the same objects.
FAULT_O = $(call obj,$(wildcard tests/fault/*.c))
# A device whose lanes run late: linked into the tests.
DEVICE_O = $(call obj,$(wildcard tests/device/*.c))
# What many unit tests stand on.
BEDS_O = $(call obj,$(wildcard tests/beds/*.c))
# What stands between a program and the system: preloaded, or run in front of it.
SHIMS = $(addprefix $(BUILD)/shims/,alarms.so clock.so fill.so forked.so kill_at.so leaks.so mpi_one_thread.so nfs.so slow_read.so no_uring)
INTEGRATION = $(filter-out tests/integration/lib% tests/integration/check% tests/s3/lib% tests/s3/check%, \
    $(wildcard tests/integration/*.sh tests/integration/*.py tests/s3/*.py))
INTEROP = $(filter-out tests/interop/lib%,$(wildcard tests/interop/*.py)) tests/integration/hf_tokenizer.py
BENCHES = $(patsubst tests/bench/%.c,$(BUILD)/bench/%,$(wildcard tests/bench/*.c))

FUZZERS = $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(filter-out tests/fuzz/replay.c,$(wildcard tests/fuzz/*.c)))
# What runs a fuzz target: replay.c over files; libFuzzer when `make fuzz` says so.
FUZZ_MAIN = $(OBJ)/tests/fuzz/replay.o
FUZZ_LINK =

tests-built: $(TESTS) $(BUILD)/tests/descriptors.pb $(BUILD)/tests/ckptd $(BUILD)/tests/saver $(SHIMS) $(FUZZERS) $(BENCHES)
tests-built: $(if $(SIMGPU),$(BUILD)/tests/trainer_on_simgpu $(addprefix $(BUILD)/cuda/,on_simgpu rates_on_simgpu)) \
    $(if $(GPU_O),$(BUILD)/cuda/kernels)
test: deps-now ## unit and integration tests; ends with "N passed, N failed"
	$(call built,all tests-built)
	@BUILD=$(BUILD) tests/run $(TEST_OPTIONS) $(TESTS) $(INTEGRATION)
test-no-uring: deps-now ## the same where the system refuses io_uring
	$(call built,all tests-built)
	@BUILD=$(BUILD) $(BUILD)/shims/no_uring tests/run $(TEST_OPTIONS) $(TESTS) $(INTEGRATION)
torture: deps-now ## the tests of failures and kills, for hours; SEED=, KILLS=5000, SECONDS= bound it
	$(call built,all $(TESTS) $(BUILD)/tests/ckptd $(SHIMS))
	@BUILD=$(BUILD) TEST_OPTIONS="$(TEST_OPTIONS)" tests/torture
sim: deps-now ## a million simulated schedules each, of nodes with a bucket and with trainers; SIM_WORLDS=, SIM_SEED= (one, again)
	$(call built,$(BUILD)/tests/ckptd_sim $(BUILD)/tests/ckptd_sim_nodes)
	@SIM_WORLDS=$${SIM_WORLDS:-1000000} $(BUILD)/tests/ckptd_sim
	@SIM_WORLDS=$${SIM_WORLDS:-1000000} $(BUILD)/tests/ckptd_sim_nodes
mutants: deps-now ## plant known bugs in a copy; each must be caught by the tests named for it
	@BUILD=$(BUILD) tests/mutants $(TEST_OPTIONS)
check: deps-now ## style, include arrows, both compilers, fuzzers; tests under sanitizers and without io_uring
	@tests/check
fuzz: deps-now ## libFuzzer on everything that is parsed, FUZZ_SECONDS=60 each
	@tests/fuzz/run $(FUZZ_SECONDS)
bench: deps-now ## side-by-side measurements, into $(BUILD)/bench.json
	$(call built,all $(BENCHES))
	@BUILD=$(BUILD) tests/bench/run
bench-peers: deps-now ## beside PyTorch and safetensors (installs them, some GB)
	$(call built,all $(BUILD)/bench/peers/libckpt.so)
	@BUILD=$(BUILD) tests/bench/run peers
interop: deps-now ## beside transformers, PyTorch's AdamW and tiktoken (installs them, some GB)
	$(call built,all python)
	@BUILD=$(BUILD) VENV=$${INTEROP_VENV:-build/interop-venv} tests/run -v --no-skip $(INTEROP)
	@echo "equal within the tolerances above: our logits and those of transformers from our export;" \
	    "our step and PyTorch's on an import; our tokens, those of transformers from our export and" \
	    "those of tiktoken, tokenizers and SentencePiece with published files"

$(BUILD)/tests/descriptors.pb: $(PROTOS) | deps-now
	$(call say,gen )
	$(Q)protoc-c --descriptor_set_out=$@ $(PROTOS)
# A unit test's own code runs once: what it costs is its compilation, a third of it at this level.
$(OBJ)/tests/unit/%.o $(BEDS_O): OPT = -Og -g
$(BUILD)/libbeds.a: $(BEDS_O)
$(BUILD)/tests/ckptd: $(OBJ)/ckptd/main.o $(FAULT_O) $(BUILD)/libckptd.a $S $P
	$(link)
# The same program, and simulated GPUs in place of CUDA.
$(BUILD)/tests/trainer_on_simgpu: $(OBJ)/trainer/train.o $(SIMGPU) $(BUILD)/liblanes.a $T $K $C $S $P
	$(link) $(MPICC_L) -ldnnl -lgomp $(T_LIBS)

# Some tests stand between the tree and the system: --wrap sends these calls through them.
WRAP_CALLS = mkdir mkdirat fsync fdatasync fallocate ftruncate fstat fstatat statx fstatvfs \
    unlinkat linkat fdopendir readdir getrandom renameat2 open fcntl syscall pread pwrite write \
    truncate rmdir openat fchown close stat lstat access
WRAP_MEMORY = malloc calloc realloc aligned_alloc posix_memalign strdup strndup open_memstream fopencookie \
    realpath free protobuf_c_message_free_unpacked EVP_Digest
WRAP_POWER = mkdir mkdirat rmdir openat unlinkat renameat2 fallocate ftruncate truncate pwrite \
    write fsync fdatasync
WRAP_ckptd_power = $(WRAP_POWER)
WRAP_storage_calls = $(WRAP_CALLS)
WRAP_storage_uring = io_uring_submit_and_wait io_uring_submit
WRAP_clients_cli_calls = $(WRAP_CALLS) io_uring_queue_init
WRAP_clients_cli_power = $(WRAP_POWER) io_uring_queue_init
WRAP_ckptd_memory = $(WRAP_MEMORY)
WRAP_proto_layout = $(WRAP_MEMORY)
WRAP_proto_manifest = malloc calloc
WRAP_proto_memfile = realloc
WRAP_proto_rpc = calloc
WRAP_clients_memory = $(WRAP_MEMORY) mmap pthread_create
WRAP_clients_cli_memory = $(WRAP_MEMORY) mmap pthread_create
WRAP_ckptd_scrub = clock_read scrub_wait
WRAP_proto_rpc_guard = clock_gettime
WRAP_ckptd_stage = checksum_block_beside storage_submit
WRAP_ckptd_window = checksum_block_beside
WRAP_ckptd_pool = fallocate fopen syscall
WRAP_ckptd_fill = fallocate
WRAP_ckptd_busy = pool_clean
WRAP_ckptd_load = storage_object_open
WRAP_ckptd_gc = storage_remove
WRAP_ckptd_admit = storage_publish storage_object_create
WRAP_trainer_device_copy = ckpt_hook_memory ckpt_save_place ckpt_save_announce ckpt_save_is_window ckpt_save_digest
WRAP_clients_lease = $(WRAP_CALLS) storage_hold
# What the tests in other languages save and load by.
$(BUILD)/tests/saver: $(OBJ)/tests/integration/saver.o $(OBJ)/tests/beds/clients_group.o $(BUILD)/libckpt.a $S $P
	$(link)
# A unit test may use every part of the tree.
$(BUILD)/tests/%: $(OBJ)/tests/unit/%.o $(FAULT_O) $(DEVICE_O) $(BUILD)/libbeds.a $(BUILD)/libckptd.a $(BUILD)/libcli.a $T $K $C $S $P
	$(link) $(TEST_LINK) $(MPICC_L) -ldnnl -lgomp $(T_LIBS) -lcmocka $(addprefix -Wl$(,)--wrap=,$(WRAP_$*))
$(BUILD)/tests/kernels_cuda: $(BUILD)/liblanes.a
$(BUILD)/tests/kernels_cuda_lanes: $(OBJ)/lanes/tests/cuda/faulty.o $(BUILD)/liblanes.a
$(BUILD)/tests/check_kernels_cuda: | $(CHECKED)
# What is looked for at run time is found among the program's symbols.
$(addprefix $(BUILD)/,cuda/on_simgpu cuda/rates_on_simgpu tests/kernels_simgpu tests/kernels_dnn tests/kernels_graphs tests/trainer_simgpu tests/trainer_nccl \
    tests/trainer_device_copy tests/trainer_on_simgpu): LIBS += -rdynamic
$(addprefix $(BUILD)/tests/,kernels_simgpu kernels_dnn kernels_graphs trainer_simgpu trainer_nccl trainer_device_copy): $(SIMGPU) $(if $(SIMGPU),$(BUILD)/liblanes.a)
$(addprefix $(BUILD)/tests/,trainer_simgpu trainer_nccl trainer_on_simgpu): $(if $(SIMGPU),$(NCCL_O))
# Without sanitizers: what they test is the program behind it.
$(BUILD)/shims/%.so: tests/shims/%.c tests/shims/segment.h
	$(call say,link)
	$(Q)$(CC) -std=c17 -D_GNU_SOURCE -I. -O2 $(WARN) -fPIC -shared -o $@ $<
$(BUILD)/shims/%: tests/shims/%.c
	$(call say,link)
	$(Q)$(CC) -std=c17 -D_GNU_SOURCE -O2 $(WARN) -o $@ $<
$(BUILD)/fuzz/%: $(OBJ)/tests/fuzz/%.o $(FUZZ_MAIN) $(BUILD)/libckptd.a $T $K $C $S $P
	$(link) $(MPICC_L) -ldnnl -lgomp $(T_LIBS) $(FUZZ_LINK)
$(BUILD)/bench/%: $(OBJ)/tests/bench/%.o $(BUILD)/libckptd.a $T $K $C $S $P
	$(link) $(MPICC_L) -ldnnl -lgomp $(T_LIBS)
# libckpt for a program that loads it at run time, here Python's ctypes.
$(BUILD)/bench/peers/libckpt.so: $(OBJ)/tests/bench/peers/holdfast.o $(BUILD)/libckpt.a
	$(link) -shared
