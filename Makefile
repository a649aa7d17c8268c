# Holdfast. `make help` lists the targets. Objects and programs go to $(BUILD).
BUILD ?= build$(addprefix /,$(CROSS))
# One name for one place, or objects that were made under the other are taken for old or new ones.
override BUILD := $(patsubst $(CURDIR)/%,%,$(abspath $(BUILD)))
PREFIX ?= /usr/local
# A prefix of a user's own has all: who may not write into /etc can install as well.
SYSCONFDIR ?= $(if $(filter /usr /usr/local,$(PREFIX)),/etc,$(PREFIX)/etc)
OBJ = $(BUILD)/obj
# For machines of another kind (`make client`): the prefix of a cross compiler, and the root of their libraries.
CROSS ?=
SYSROOT ?=
CC = $(if $(CROSS),$(CROSS)-gcc $(addprefix --sysroot=,$(SYSROOT)),gcc)
CXX = $(if $(CROSS),$(CROSS)-g++ $(addprefix --sysroot=,$(SYSROOT)),g++)
PKG_CONFIG = $(if $(CROSS),PKG_CONFIG_SYSROOT_DIR=$(SYSROOT) \
    PKG_CONFIG_LIBDIR=$(SYSROOT)/usr/lib/$(CROSS)/pkgconfig:$(SYSROOT)/usr/share/pkgconfig) pkg-config
SANITIZER ?=
OPT ?= -O2 -g
WARN = -Wall -Wextra -Werror
# A finding ends the process: one that is only printed fails no test.
SAN = $(if $(SANITIZER),-fsanitize=$(SANITIZER) -fno-sanitize-recover=all -fno-omit-frame-pointer)
# Against bugs that a hostile file or peer could use: overruns end the process. Not in the ISA files of the kernels,
# which see nobody's bytes but ours. (FORTIFY needs an optimizing compiler; some distributions set it already.)
HARDEN = $(if $(SANITIZER)$(filter -O0,$(OPT)),,-fstack-protector-strong -fstack-clash-protection $(CET) \
    -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3)
# Asked for by every command: when make starts on a bare machine there is no compiler yet.
CET = $(if $(filter x86_64-%,$(shell $(CC) -dumpmachine)),-fcf-protection)
HARDEN_LINK = -Wl,-z,relro,-z,now
# The unit tests are 190 programs of the whole tree: the faster linker takes them, where binutils has it.
TEST_LINK := $(if $(shell command -v ld.gold),-fuse-ld=gold)
# No contraction: the bits of the numerics must not depend on what the compiler fuses.
CFLAGS_ALL = -std=c17 -D_GNU_SOURCE -I. -I$(OBJ)/gen $(OPT) $(WARN) -ffp-contract=off -fPIC -pthread -MMD -MP $(SAN) $(CFLAGS)
CXXFLAGS_ALL = -std=c++17 -I. $(OPT) $(WARN) -fPIC -pthread -MMD -MP $(SAN) $(CXXFLAGS)

PKG_LIBS = $(shell $(PKG_CONFIG) --libs libprotobuf-c liburing libxxhash jansson libssl libcrypto libpcre2-8 libcurl expat) -lgrpc -lgpr
MPICC_C = $(shell mpicc --showme:compile 2>/dev/null)
MPICC_L = $(shell mpicc --showme:link 2>/dev/null)
LIBS = $(PKG_LIBS) -lstdc++ -lm -pthread
# What only the trainer and the tokenizer need: packed corpora.
T_LIBS = -lz -lzstd
# What only ckptd needs: its HTTP page.
D_LIBS = $(shell $(PKG_CONFIG) --libs libmicrohttpd)

FUZZ_SECONDS = 60
src = $(wildcard $(1)/*.c $(1)/*/*.c $(1)/*/*/*.c)
obj = $(patsubst %.c,$(OBJ)/%.o,$(1))
# What a stock gRPC client needs; of ckpt.proto there are also C structs.
PROTOS = proto/wire/ckpt.proto proto/wire/grpc/health.proto
PB_C = $(OBJ)/gen/proto/wire/ckpt.pb-c
PROTO_O = $(call obj,$(call src,proto)) $(OBJ)/proto/base/toml.o $(PB_C:=.o) $(OBJ)/gen/proto/version.o
STORAGE_O = $(call obj,$(call src,storage))
CKPTD_O = $(call obj,$(filter-out ckptd/main.c,$(call src,ckptd)))
CKPT_O = $(call obj,$(filter-out clients/cli/% clients/examples/%,$(call src,clients)))
CLI_O = $(call obj,$(filter-out clients/cli/main.c,$(call src,clients/cli)))
KERNELS_O = $(call obj,$(filter-out kernels/cuda/%,$(call src,kernels)))
# Files of kernels/cpu/isa are compiled once per ISA level; -DISA names the level.
ISA_SRC = $(wildcard kernels/cpu/isa/*.c)
ISA_O = $(foreach i,sse2 avx2 avx512,$(patsubst %.c,$(OBJ)/%.$(i).o,$(ISA_SRC)))
TRAINER_MAINS = trainer/train.c trainer/tokenize.c
# What includes NVIDIA's header of NCCL is linked where that is.
NCCL_SRC = trainer/comm/nccl.c trainer/comm/nccl_library.c
TRAINER_O = $(call obj,$(filter-out $(TRAINER_MAINS) $(NCCL_SRC),$(call src,trainer)))
PROGRAMS = $(addprefix $(BUILD)/,trainer tokenizer ckptd ckpt-cli)
EXAMPLES = $(patsubst clients/examples/%.c,$(BUILD)/%,$(wildcard clients/examples/*.c))
# check_*: too long for `make test`; steps of `make check`.
TESTS = $(patsubst tests/unit/%.c,$(BUILD)/tests/%,$(filter-out tests/unit/check_%,$(wildcard tests/unit/*.c)))
# A store that injects faults: linked into the tests, and into a ckptd of the same objects.
FAULT_O = $(call obj,$(wildcard tests/fault/*.c))
# A device whose lanes run late: linked into the tests.
DEVICE_O = $(call obj,$(wildcard tests/device/*.c))
# What many unit tests stand on.
BEDS_O = $(call obj,$(wildcard tests/beds/*.c))
# What stands between a program and the system: preloaded, or run in front of it.
SHIMS = $(addprefix $(BUILD)/shims/,alarms.so clock.so fill.so forked.so kill_at.so mpi_one_thread.so nfs.so slow_read.so slow_sync.so no_uring)
INTEGRATION = $(filter-out tests/integration/lib% tests/integration/check% tests/s3/lib% tests/s3/check%, \
    $(wildcard tests/integration/*.sh tests/integration/*.py tests/s3/*.py))
INTEROP = $(filter-out tests/interop/lib%,$(wildcard tests/interop/*.py)) tests/integration/tokenizer_interop.py
SOURCES = $(shell git ls-files --cached --others --exclude-standard '*.c' '*.h' '*.cpp' '*.cu')
BENCHES = $(patsubst tests/bench/%.c,$(BUILD)/bench/%,$(wildcard tests/bench/*.c))

FUZZERS = $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(filter-out tests/fuzz/replay.c,$(wildcard tests/fuzz/*.c)))
# What runs a fuzz target: replay.c over files; libFuzzer when `make fuzz` says so.
FUZZ_MAIN = $(OBJ)/tests/fuzz/replay.o
FUZZ_LINK =

, := ,
# One short line per file; V=1 shows the commands, -s nothing.
Q = $(if $(V),,@)
say = @mkdir -p $(@D)$(if $(V)$(findstring s,$(firstword -$(MAKEFLAGS))),,; echo "  $(1) $@")

.PHONY: help deps deps-cuda all client cuda need-nvcc gpu-check gpu-bench gpu-bundle python run test test-no-uring torture sim mutants check fuzz bench bench-peers interop format install clean deps-now tests-built
.SECONDARY:
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12
deps: ## install every package that is missing (apt; root or sudo)
	@deploy/deps
deps-cuda: ## nvcc, CUDA's runtime, cuBLASLt, cuDNN and NCCL where the system lacks them, into build/cuda-venv (1.6 GB)
	@CUDA_VENV=$(CUDA_VENV) deploy/deps cuda
deps-now: # what the goals at hand need; a few milliseconds when nothing is missing
	@deploy/deps build $(filter run test torture mutants check fuzz bench bench-peers interop install python,$(MAKECMDGOALS:test-no-uring=test))
all: $(PROGRAMS) $(BUILD)/libckpt.a $(BUILD)/libckpt.so.1 $(EXAMPLES) cuda ## build every program and library
client: deps-now $(BUILD)/libckpt.a $(BUILD)/libckpt.so.1 $(BUILD)/ckpt_example ## libckpt alone; CROSS=aarch64-linux-gnu SYSROOT=DIR for another machine
python: deps-now $(addprefix $(BUILD)/,libckpt.so.1 ckptd ckpt-cli) ## a wheel of the Python package, all inside, into $(BUILD)/wheel
	@BUILD=$(BUILD) WHEEL_VENV=$${WHEEL_VENV:-build/wheel-venv} clients/python/make_wheel
# Behind deps-now, which may install the compiler; on all processors, unless -j says otherwise.
built = +@$(MAKE) --no-print-directory $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$(shell nproc)) $(1)
run: deps-now ## train on real text, kill it, resume on other world sizes, compare bit for bit
	$(call built,all)
	@BUILD=$(BUILD) deploy/main-job
tests-built: $(TESTS) $(BUILD)/tests/descriptors.pb $(BUILD)/tests/ckptd $(BUILD)/tests/saver $(SHIMS) $(FUZZERS) $(BENCHES)
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
format: ## clang-format every C and C++ file
	@clang-format -i $(SOURCES)
install: deps-now all ## programs, man pages, ckpt.h, libckpt, ckptd's unit, below $(DESTDIR)$(PREFIX)
	install -d $(addprefix $(DESTDIR)$(PREFIX)/,bin include lib/pkgconfig share/holdfast \
	    share/bash-completion/completions share/zsh/site-functions share/fish/vendor_completions.d)
	deploy/man $(BUILD) $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 deploy/completion.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/ckpt-cli
	install -m 644 deploy/completion.zsh $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_ckpt-cli
	install -m 644 deploy/completion.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/ckpt-cli.fish
	install $(PROGRAMS) $(DESTDIR)$(PREFIX)/bin
	install -m 644 clients/ckpt.h $(DESTDIR)$(PREFIX)/include
	install -d $(DESTDIR)$(PREFIX)/share/holdfast/proto/grpc
	install -m 644 proto/wire/ckpt.proto $(DESTDIR)$(PREFIX)/share/holdfast/proto
	install -m 644 proto/wire/grpc/health.proto $(DESTDIR)$(PREFIX)/share/holdfast/proto/grpc
	install -m 644 $(BUILD)/libckpt.a $(BUILD)/libckpt.so.1 $(DESTDIR)$(PREFIX)/lib
	ln -sf libckpt.so.1 $(DESTDIR)$(PREFIX)/lib/libckpt.so
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' clients/libckpt.pc.in \
	    >$(DESTDIR)$(PREFIX)/lib/pkgconfig/libckpt.pc
	install -m 644 deploy/ckptd.conf deploy/network.conf $(DESTDIR)$(PREFIX)/share/holdfast
	for folder in deploy/slurm deploy/grafana deploy/kubernetes trainer/configs; do \
	    install -d $(DESTDIR)$(PREFIX)/share/holdfast/$${folder#*/} && \
	    install -m 644 $$folder/*.* $(DESTDIR)$(PREFIX)/share/holdfast/$${folder#*/} || exit; done
	install -d $(addprefix $(DESTDIR),$(PREFIX)/lib/systemd/system $(SYSCONFDIR)/holdfast)
	sed 's|@PREFIX@|$(PREFIX)|g; s|@SYSCONFDIR@|$(SYSCONFDIR)|g' deploy/ckptd.service.in \
	    >$(DESTDIR)$(PREFIX)/lib/systemd/system/ckptd.service
	test -e $(DESTDIR)$(SYSCONFDIR)/holdfast/ckptd.conf || sed 's/^#\(listen\|store\) = /\1 = /' deploy/ckptd.conf \
	    >$(DESTDIR)$(SYSCONFDIR)/holdfast/ckptd.conf
	install deploy/launch $(DESTDIR)$(PREFIX)/bin/holdfast-launch
	install deploy/launch-rank $(DESTDIR)$(PREFIX)/bin/holdfast-launch-rank
	install deploy/certificates $(DESTDIR)$(PREFIX)/bin/holdfast-certificates
clean: ## remove what was built
	rm -rf $(BUILD)

$(OBJ)/gen/proto/%.pb-c.c $(OBJ)/gen/proto/%.pb-c.h: proto/%.proto | deps-now
	$(call say,gen )
	$(Q)mkdir -p $(@D)
	$(Q)protoc-c --c_out=$(OBJ)/gen $<
$(BUILD)/tests/descriptors.pb: $(PROTOS) | deps-now
	$(call say,gen )
	$(Q)protoc-c --descriptor_set_out=$@ $(PROTOS)
# The table of kernels/cuda/gpus.toml for trainer/observe/peaks.c.
$(OBJ)/gen/trainer/gpus.h: kernels/cuda/gpus.toml
	$(call say,gen )
	$(Q)mkdir -p $(@D)
	$(Q)awk '/^\[(gpu|board)\./ { sub(/^[^.]*\./, ""); gsub(/[]"]/, ""); name = $$0 } \
	    /^\[multiprocessor/ { name = "" } \
	    name && $$1 == "bf16" { bf16 = $$3 } \
	    name && $$1 == "float" { printf "{\"%s\", %s, %s},\n", name, bf16, $$3 }' $< >$@
$(OBJ)/trainer/observe/peaks.o: $(OBJ)/gen/trainer/gpus.h
# What --version says and manifests keep; written again only when it changes.
VERSION = 0.1$(shell git describe --always --dirty --exclude '*' 2>/dev/null | sed 's/^/-g/')
.PHONY: FORCE
$(OBJ)/gen/proto/version.c: FORCE
	@mkdir -p $(@D); line='const char report_version[] = "$(VERSION)";'; \
	printf '#include "proto/base/report.h"\n%s\n' "$$line" | cmp -s - $@ || \
	printf '#include "proto/base/report.h"\n%s\n' "$$line" >$@
$(OBJ)/gen/proto/%.o: $(OBJ)/gen/proto/%.c
	$(call say,cc  )
	$(Q)$(CC) $(HARDEN) $(CFLAGS_ALL) -c -o $@ $<
$(OBJ)/%.o: %.c | deps-now $(PB_C:=.h)
	$(call say,cc  )
	$(Q)$(CC) $(HARDEN) $(CFLAGS_ALL) $(if $(findstring comm/mpi,$@),$(MPICC_C)) -c -o $@ $<
# A unit test's own code runs once: what it costs is its compilation, a third of it at this level.
$(OBJ)/tests/unit/%.o $(BEDS_O): OPT = -Og -g
$(OBJ)/%.o: %.cpp | deps-now
	$(call say,c++ )
	$(Q)$(CXX) $(HARDEN) $(CXXFLAGS_ALL) -c -o $@ $<
# Neither flag changes a result: no errno from sqrtf, no care for exception flags.
ISA_FLAGS = -fno-math-errno -fno-trapping-math
ISA_FLAGS_sse2 = -march=x86-64
ISA_FLAGS_avx2 = -march=x86-64-v3
ISA_FLAGS_avx512 = -march=x86-64-v4 -mprefer-vector-width=512
define ISA_RULE
$(OBJ)/kernels/cpu/isa/%.$(1).o: kernels/cpu/isa/%.c | deps-now
	$$(call say,cc  )
	$$(Q)$(CC) $$(CFLAGS_ALL) -O3 $$(ISA_FLAGS) $$(ISA_FLAGS_$(1)) -DISA=$(1) -c -o $$@ $$<
endef
$(foreach i,sse2 avx2 avx512,$(eval $(call ISA_RULE,$(i))))

# The .cu files as C++ for lanes of a CPU (kernels/cuda/cpu/lanes.h). The lanes themselves are free of
# sanitizers, and their loops stay loops: what they copy between fibers is no access of a kernel.
CU = $(wildcard kernels/cuda/*.cu)
LANES_C_O = $(OBJ)/kernels/cuda/cpu/lanes.o $(OBJ)/kernels/cuda/run.o
# `#pragma unroll` is nvcc's: gcc does not know it, clang says where it did not.
# A kernel's fma is one instruction where the machine has it, and else a call of libm: the bits are the same.
LANES_FLAGS = -x c++ -ffp-contract=off -Wno-unknown-pragmas -Wno-pass-failed \
    $(shell grep -qw fma /proc/cpuinfo && echo -mfma)
$(OBJ)/lanes/%.o: %.cu | deps-now
	$(call say,c++ )
	$(Q)$(CXX) $(CXXFLAGS_ALL) $(LANES_FLAGS) -c -o $@ $<
$(OBJ)/kernels/cuda/cpu/lanes.o: kernels/cuda/cpu/lanes.c | deps-now
	$(call say,cc  )
	$(Q)$(CC) $(filter-out $(SAN),$(CFLAGS_ALL)) -fno-builtin -c -o $@ $<
$(BUILD)/liblanes.a: $(CU:%.cu=$(OBJ)/lanes/%.o) $(LANES_C_O)

# The .cu files for GPUs, where nvcc is: machine code for sm_90a, and PTX that newer and older ones
# compile when they load it; `make check` takes more of them. What ptxas said of each kernel
# lies beside the object.
CUDA_VENV ?= build/cuda-venv
CUDA_WHEELS = $(firstword $(wildcard $(CUDA_VENV)/lib/python3*/site-packages/nvidia))
NVCC ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc $(CUDA_WHEELS)/cu13/bin/nvcc))
CUDA_ARCHS ?= 90a
CUDA_O = $(patsubst %.cu,$(OBJ)/gpu/%.o,$(CU))
# Multiplication and addition stay apart: values.h.
NVCC_CODE = -std=c++17 -I. -O2 -fmad=false
NVCC_FLAGS = $(NVCC_CODE) -Werror all-warnings -Xcompiler -Wall$(,)-Wextra$(,)-Werror$(,)-fPIC -Xptxas -v \
    $(foreach i,$(CUDA_ARCHS),-gencode arch=compute_$(i)$(,)code=sm_$(i)) -gencode arch=compute_80$(,)code=compute_80
$(OBJ)/gpu/%.o: %.cu | deps-now
	$(call say,nvcc)
	$(Q)$(NVCC) $(NVCC_FLAGS) -MMD -MP -c -o $@ $< >$(@:.o=.log) 2>&1 || { cat $(@:.o=.log); rm -f $@; exit 1; }
# Float8 products are in no PTX below compute capability 8.9: a newer GPU loads this one.
$(OBJ)/gpu/kernels/cuda/mma.o: NVCC_FLAGS += -gencode arch=compute_89$(,)code=compute_89
# A header that changed shows in the object, so that the PTX is as new.
$(OBJ)/gpu/%.ptx: %.cu $(OBJ)/gpu/%.o
	$(call say,nvcc)
	$(Q)$(NVCC) $(NVCC_CODE) -arch=compute_80 -ptx -o $@ $<
# And what is linked with NVIDIA's runtime, or in tests with a simulated GPU (tests/simgpu).
CUDA_HOME = $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
# cudnn.h: likewise of the toolkit's folder, of `make deps-cuda`, or of the system.
DNN_INCLUDE = $(firstword $(patsubst %/cudnn.h,%,$(wildcard $(CUDA_HOME)/include/cudnn.h \
    $(CUDA_WHEELS)/cudnn/include/cudnn.h /usr/include/cudnn.h)))
CUDA_C_O = $(call obj,$(filter-out $(if $(DNN_INCLUDE),,%/dnn.c %/dnn_graph.c),$(wildcard kernels/cuda/*.c)))
CUDA_LIB = $(firstword $(wildcard $(CUDA_HOME)/lib64 $(CUDA_HOME)/lib))
# nccl.h: of the toolkit's folder, of `make deps-cuda`, or of the system.
NCCL_INCLUDE = $(firstword $(patsubst %/nccl.h,%,$(wildcard $(CUDA_HOME)/include/nccl.h \
    $(CUDA_WHEELS)/nccl/include/nccl.h /usr/include/nccl.h)))
# Where cuBLASLt, cuDNN, NCCL, and the compiler that cuDNN calls, looked for at run time, may be. As DT_RPATH, which
# holds for what libraries look for, too.
GPU_PATHS = -Wl$(,)--disable-new-dtags $(addprefix -Wl$(,)-rpath$(,),$(CUDA_LIB) $(realpath $(CUDA_WHEELS)/nccl/lib $(CUDA_WHEELS)/cudnn/lib))
NCCL_O = $(if $(NCCL_INCLUDE),$(call obj,trainer/comm/nccl.c))
NCCL_LIBRARY_O = $(if $(NCCL_INCLUDE),$(call obj,trainer/comm/nccl_library.c))
SIMGPU_O = $(call obj,$(filter-out $(if $(NCCL_INCLUDE),,%/nccl.c) $(if $(DNN_INCLUDE),,%/dnn.c %/dnn_graph.c), \
    $(wildcard tests/simgpu/*.c)))
$(filter-out %/run.o,$(CUDA_C_O)) $(SIMGPU_O) $(OBJ)/tests/unit/kernels_graphs.o: CFLAGS += -isystem $(CUDA_HOME)/include
$(call obj,$(addsuffix /dnn.c,kernels/cuda tests/simgpu) $(addsuffix /dnn_graph.c,kernels/cuda tests/simgpu)) \
    : CFLAGS += -isystem $(DNN_INCLUDE)
$(call obj,$(NCCL_SRC) tests/simgpu/nccl.c): CFLAGS += -isystem $(CUDA_HOME)/include -isystem $(NCCL_INCLUDE)
SIMGPU = $(if $(wildcard $(CUDA_HOME)/include/cuda_runtime_api.h),$(SIMGPU_O) $(filter-out %/run.o,$(CUDA_C_O)))
$(BUILD)/libgpu.a: $(CUDA_O) $(CUDA_C_O)
# Where nvcc is, the trainer has the kernels for GPUs in it, and what it needs of CUDA to look for a driver.
GPU_O = $(if $(SANITIZER),,$(if $(NVCC),$(CUDA_O) $(CUDA_C_O)))
GPU_COMM_O = $(if $(GPU_O),$(NCCL_O) $(NCCL_LIBRARY_O))
GPU_LIBS = $(if $(GPU_O),-L$(CUDA_LIB) $(GPU_PATHS) -lcudart_static -ldl -lrt)
$(BUILD)/cuda/start: $(OBJ)/tests/cuda/start.o $(BUILD)/libgpu.a $(BUILD)/libkernels.a $(BUILD)/libproto.a
	$(link) -ldnnl -lgomp $(GPU_PATHS) $(firstword $(wildcard $(CUDA_LIB)/libcudart.so $(CUDA_LIB)/libcudart.so.*))
# Plans of cuDNN for a GPU that is not there, and what stands in for its driver meanwhile.
$(BUILD)/cuda/plans: $(OBJ)/tests/cuda/plans.o $(call obj,$(addprefix kernels/cuda/,dnn.c dnn_graph.c lookup.c)) $(BUILD)/libproto.a
	$(link) $(GPU_PATHS) -ldl
$(BUILD)/cuda/driver/libcuda.so.1: tests/cuda/driver.c | deps-now
	$(call say,link)
	$(Q)$(CC) $(CFLAGS_ALL) -isystem $(CUDA_HOME)/include -shared -Wl,-soname,libcuda.so.1 -o $@ $<
# The test of the kernels on a GPU, and on a simulated one to test `make gpu-check`.
$(OBJ)/on_gpu/%.o: %.c | deps-now
	$(call say,cc  )
	$(Q)$(CC) $(HARDEN) $(CFLAGS_ALL) -DON_GPU -c -o $@ $<
GPU_KERNELS = $(OBJ)/on_gpu/tests/unit/kernels_cuda.o $(BUILD)/libkernels.a $(BUILD)/libproto.a
$(BUILD)/cuda/kernels: $(GPU_KERNELS) $(GPU_O)
	$(link) -ldnnl -lgomp -lcmocka $(GPU_LIBS)
$(BUILD)/cuda/on_simgpu: $(GPU_KERNELS) $(SIMGPU) $(BUILD)/liblanes.a
	$(link) -ldnnl -lgomp -lcmocka
# What gpu-bench times, and the same on a simulated GPU to test it.
GPU_RATES = $(OBJ)/tests/cuda/rates.o $(BUILD)/libkernels.a $(BUILD)/libproto.a
$(BUILD)/cuda/rates: $(GPU_RATES) $(GPU_O)
	$(link) -ldnnl -lgomp $(GPU_LIBS)
$(BUILD)/cuda/rates_on_simgpu: $(GPU_RATES) $(SIMGPU) $(BUILD)/liblanes.a
	$(link) -ldnnl -lgomp
tests-built: $(if $(SIMGPU),$(BUILD)/tests/trainer_on_simgpu $(addprefix $(BUILD)/cuda/,on_simgpu rates_on_simgpu)) \
    $(if $(GPU_O),$(addprefix $(BUILD)/cuda/,kernels rates))
need-nvcc:
	$(if $(NVCC),,@echo "no nvcc here (make deps-cuda): what a GPU runs cannot be built" >&2; exit 78)
gpu-check: need-nvcc deps-now all $(BUILD)/cuda/kernels ## on a GPU: kernels and steps against the CPU; writes the evidence to commit
	@BUILD=$(BUILD) tests/cuda/gpu_check $(GPU_OPTIONS)
gpu-bench: need-nvcc deps-now all $(BUILD)/cuda/rates ## on a GPU: tokens/s of whole steps, rates of kernels, beside the goals; GPU_OPTIONS=--bound needs none
	@BUILD=$(BUILD) tests/cuda/gpu_bench $(or $(GPU_OPTIONS),--kernels --fast --saves --torch)
gpu-bundle: need-nvcc deps-now all $(BUILD)/cuda/kernels ## one archive that runs gpu-check on another machine, without a compiler
	@BUILD=$(BUILD) tests/cuda/gpu_bundle $(BUILD)/holdfast-gpu.tar.gz
CUDA_PLANS = $(if $(DNN_INCLUDE),$(BUILD)/cuda/plans $(BUILD)/cuda/driver/libcuda.so.1)
cuda: $(if $(SANITIZER),,$(if $(NVCC),$(BUILD)/cuda/start $(CUDA_PLANS) $(CUDA_O:.o=.ptx))) ## compile kernels/cuda for GPUs, where nvcc is
	$(if $(NVCC),$(if $(DNN_INCLUDE),,@echo "cuda: no cudnn.h here (make deps-cuda): attention is by our own kernels"),@echo "cuda: no nvcc here (make deps-cuda): kernels/cuda is compiled for lanes of a CPU only")

# Two programs that are always sanitized, and by gcc, whose ThreadSanitizer knows fibers; the libraries
# behind them are not, so that there are none in a build with SANITIZER.
CHECKED = $(if $(SANITIZER),,$(addprefix $(BUILD)/cuda/,racecheck memcheck))
CHECKED_SAN_racecheck = -fsanitize=thread
CHECKED_SAN_memcheck = -fsanitize=address,undefined -fno-sanitize-recover=all
define CHECKED_RULE
$(OBJ)/$(1)/%.o: %.cu | deps-now
	$$(call say,c++ )
	$$(Q)g++ $$(CXXFLAGS_ALL) $$(LANES_FLAGS) $$(CHECKED_SAN_$(1)) -O1 -c -o $$@ $$<
$(OBJ)/$(1)/%.o: %.c | deps-now
	$$(call say,cc  )
	$$(Q)gcc $$(CFLAGS_ALL) $$(CHECKED_SAN_$(1)) -O1 -c -o $$@ $$<
$(BUILD)/cuda/$(1): $(OBJ)/$(1)/tests/cuda/checked.o $(patsubst %.cu,$(OBJ)/$(1)/%.o,$(CU) tests/cuda/faulty.cu) \
    $(LANES_C_O) $(BUILD)/libkernels.a $(BUILD)/libproto.a
	$$(call say,link)
	$$(Q)gcc $$(CHECKED_SAN_$(1)) -pthread -o $$@ $$(filter %.o,$$^) -Wl,--start-group $$(filter %.a,$$^) \
	    -Wl,--end-group $$(LIBS) -lcmocka -ldnnl -lgomp
endef
$(foreach i,racecheck memcheck,$(eval $(call CHECKED_RULE,$(i))))

$(BUILD)/libproto.a: $(PROTO_O)
$(BUILD)/libstorage.a: $(STORAGE_O)
$(BUILD)/libckptd.a: $(CKPTD_O)
$(BUILD)/libclient.a: $(CKPT_O)
$(BUILD)/libcli.a: $(CLI_O)
$(BUILD)/libbeds.a: $(BEDS_O)
$(BUILD)/libkernels.a: $(KERNELS_O) $(ISA_O)
$(BUILD)/libtrainer.a: $(TRAINER_O)
$(BUILD)/libckpt.a: $(CKPT_O) $(STORAGE_O) $(PROTO_O)
$(BUILD)/%.a:
	$(call say,ar  )
	@rm -f $@
	$(Q)ar rcs $@ $^

define link
$(call say,link)
$(Q)$(CC) $(OPT) $(SAN) $(HARDEN_LINK) -pthread -o $@ $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LIBS) \
    $(if $(filter %/libckptd.a,$^),$(D_LIBS))
endef
P = $(BUILD)/libproto.a
S = $(BUILD)/libstorage.a
K = $(BUILD)/libkernels.a
C = $(BUILD)/libclient.a
T = $(BUILD)/libtrainer.a
$(BUILD)/ckptd: $(OBJ)/ckptd/main.o $(BUILD)/libckptd.a $S $P
	$(link)
$(BUILD)/tests/ckptd: $(OBJ)/ckptd/main.o $(FAULT_O) $(BUILD)/libckptd.a $S $P
	$(link)
$(BUILD)/ckpt-cli: $(OBJ)/clients/cli/main.o $(BUILD)/libcli.a $C $S $P
	$(link)
$(BUILD)/trainer: $(OBJ)/trainer/train.o $(GPU_O) $(GPU_COMM_O) $T $K $C $S $P
	$(link) $(MPICC_L) -ldnnl -lgomp $(T_LIBS) $(GPU_LIBS)
# The same program, and simulated GPUs in place of CUDA.
$(BUILD)/tests/trainer_on_simgpu: $(OBJ)/trainer/train.o $(SIMGPU) $(BUILD)/liblanes.a $T $K $C $S $P
	$(link) $(MPICC_L) -ldnnl -lgomp $(T_LIBS)
$(BUILD)/tokenizer: $(OBJ)/trainer/tokenize.o $T $P
	$(link) $(T_LIBS)
# Its one number is the version of its interface: clients/libckpt.map.
$(BUILD)/libckpt.so.1: $(CKPT_O) $(STORAGE_O) $(PROTO_O) clients/libckpt.map
	$(call say,link)
	$(Q)$(CC) $(OPT) $(SAN) $(HARDEN_LINK) -shared -pthread -o $@ $(filter %.o,$^) -Wl,-soname,libckpt.so.1 \
	    -Wl,--version-script=clients/libckpt.map $(if $(SAN),,-Wl,--no-undefined) $(LIBS)
# An example is what a user builds: ckpt.h and libckpt.a.
$(EXAMPLES:$(BUILD)/%=$(OBJ)/clients/examples/%.o): CFLAGS += -Iclients
$(EXAMPLES): $(BUILD)/%: $(OBJ)/clients/examples/%.o $(BUILD)/libckpt.a
	$(link)
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
WRAP_ckptd_scrub = loop_now_ms
WRAP_proto_rpc_guard = clock_gettime
WRAP_ckptd_stage = checksum_block_beside storage_submit
WRAP_ckptd_window = checksum_block_beside
WRAP_ckptd_pool = fallocate fopen syscall
WRAP_ckptd_fill = fallocate
WRAP_ckptd_busy = pool_clean
WRAP_ckptd_load = storage_object_open
WRAP_ckptd_sparse = storage_object_close read_plan_ask_from
WRAP_ckptd_gc = storage_remove
WRAP_ckptd_admit = storage_publish
WRAP_trainer_device_copy = ckpt_hook_memory ckpt_save_place ckpt_save_announce ckpt_save_is_window ckpt_save_digest
WRAP_clients_lease = $(WRAP_CALLS) storage_hold
# What the tests in other languages save and load by.
$(BUILD)/tests/saver: $(OBJ)/tests/integration/saver.o $(BUILD)/libckpt.a $S $P
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

-include $(shell find $(OBJ) -name '*.d' 2>/dev/null)
