# Holdfast: the build of every program, and its installation. `make help` lists the targets.
# Objects and programs go to $(BUILD). mk/cuda.mk has the kernels for GPUs, mk/tests.mk the tests and benches.
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

src = $(wildcard $(1)/*.c $(1)/*/*.c $(1)/*/*/*.c)
obj = $(patsubst %.c,$(OBJ)/%.o,$(1))
PB_C = $(patsubst %.proto,$(OBJ)/gen/%.pb-c,proto/wire/ckpt.proto $(wildcard proto/model/*.proto))
PROTO_O = $(call obj,$(call src,proto)) $(OBJ)/proto/base/toml.o $(PB_C:=.o) $(OBJ)/gen/proto/version.o
STORAGE_O = $(call obj,$(call src,storage))
CKPTD_O = $(call obj,$(filter-out ckptd/main.c,$(call src,ckptd)))
CKPT_O = $(call obj,$(filter-out clients/cli/% clients/examples/%,$(call src,clients)))
CLI_O = $(call obj,$(filter-out clients/cli/main.c,$(call src,clients/cli)))
# Files of kernels/cpu/isa are compiled once per ISA level; -DISA names the level.
KERNELS_O = $(call obj,$(filter-out kernels/cuda/% kernels/cpu/isa/%,$(call src,kernels)))
ISA_SRC = $(wildcard kernels/cpu/isa/*.c)
ISA_O = $(foreach i,sse2 avx2 avx512,$(patsubst %.c,$(OBJ)/%.$(i).o,$(ISA_SRC)))
TRAINER_MAINS = trainer/train.c trainer/tokenize.c
# What includes NVIDIA's header of NCCL is linked where that is.
NCCL_SRC = trainer/comm/nccl.c trainer/comm/nccl_library.c
TRAINER_O = $(call obj,$(filter-out $(TRAINER_MAINS) $(NCCL_SRC),$(call src,trainer)))
PROGRAMS = $(addprefix $(BUILD)/,trainer tokenizer ckptd ckpt-cli)
EXAMPLES = $(patsubst clients/examples/%.c,$(BUILD)/%,$(wildcard clients/examples/*.c))
SOURCES = $(shell git ls-files --cached --others --exclude-standard '*.c' '*.h' '*.cpp' '*.cu')

, := ,
# One short line per file; V=1 shows the commands, -s nothing.
Q = $(if $(V),,@)
say = @mkdir -p $(@D)$(if $(V)$(findstring s,$(firstword -$(MAKEFLAGS))),,; echo "  $(1) $@")

.PHONY: help deps deps-cuda deps-now all client python run format install deb image clean FORCE
.SECONDARY:
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' Makefile mk/tests.mk mk/cuda.mk | sed 's/:.*## /\t/' | expand -t 12
deps: ## install every package that is missing (apt; root or sudo)
	@deploy/deps
deps-cuda: ## nvcc, CUDA's runtime, cuBLASLt, cuDNN and NCCL where the system lacks them, into build/cuda-venv (1.6 GB)
	@CUDA_VENV=$(CUDA_VENV) deploy/deps cuda
deps-now: # what the goals at hand need; a few milliseconds when nothing is missing
	@deploy/deps build $(filter run test torture mutants check fuzz bench bench-peers interop install deb image python,$(MAKECMDGOALS:test-no-uring=test))
all: $(PROGRAMS) $(BUILD)/libckpt.a $(BUILD)/libckpt.so.1 $(EXAMPLES) cuda ## build every program and library
client: deps-now $(BUILD)/libckpt.a $(BUILD)/libckpt.so.1 $(BUILD)/ckpt_example ## libckpt alone; CROSS=aarch64-linux-gnu SYSROOT=DIR for another machine
python: deps-now $(addprefix $(BUILD)/,libckpt.so.1 ckptd ckpt-cli) ## a wheel of the Python package, all inside, into $(BUILD)/wheel
	@BUILD=$(BUILD) WHEEL_VENV=$${WHEEL_VENV:-build/wheel-venv} clients/python/make_wheel
# Behind deps-now, which may install the compiler; on all processors, unless -j says otherwise.
built = +@$(MAKE) --no-print-directory $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$(shell nproc)) $(1)
run: deps-now ## train on real text, kill it, resume on other world sizes, compare bit for bit
	$(call built,all)
	@BUILD=$(BUILD) deploy/main-job
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
	for folder in $(addprefix deploy/,slurm grafana prometheus kubernetes kubernetes/monitored kubernetes/configured) \
	    trainer/configs; do \
	    install -d $(DESTDIR)$(PREFIX)/share/holdfast/$${folder#*/} && \
	    install -m 644 $$folder/*.* $(DESTDIR)$(PREFIX)/share/holdfast/$${folder#*/} || exit; done
	chmod 755 $(DESTDIR)$(PREFIX)/share/holdfast/slurm/train.sbatch
	install -d $(addprefix $(DESTDIR),$(PREFIX)/lib/systemd/system $(SYSCONFDIR)/holdfast)
	sed 's|@PREFIX@|$(PREFIX)|g; s|@SYSCONFDIR@|$(SYSCONFDIR)|g' deploy/ckptd.service.in \
	    >$(DESTDIR)$(PREFIX)/lib/systemd/system/ckptd.service
	test -e $(DESTDIR)$(SYSCONFDIR)/holdfast/ckptd.conf || sed 's/^#\(listen\|store\) = /\1 = /' deploy/ckptd.conf \
	    >$(DESTDIR)$(SYSCONFDIR)/holdfast/ckptd.conf
	install deploy/launch $(DESTDIR)$(PREFIX)/bin/holdfast-launch
	install -m 644 deploy/launch_rules.py $(DESTDIR)$(PREFIX)/share/holdfast
	install deploy/launch-rank $(DESTDIR)$(PREFIX)/bin/holdfast-launch-rank
	install deploy/certificates $(DESTDIR)$(PREFIX)/bin/holdfast-certificates
# A later commit is a higher version: the time of the commit stands before its name.
DEB_VERSION = $(subst -,.,$(subst -g,$(shell git log -1 --format=+%cd.g --date=format-local:%Y%m%d%H%M%S),$(VERSION)))
DEB_TREE = $(BUILD)/deb/tree
deb: deps-now all ## Debian packages of the built programs, into $(BUILD)/deb
	@rm -rf $(BUILD)/deb && mkdir -p $(DEB_TREE) && cp -a deploy/debian CHANGELOG.md $(DEB_TREE)
	@printf 'holdfast (%s) unstable; urgency=medium\n\n  * %s\n\n -- %s  %s\n' "$(DEB_VERSION)" \
	    "CHANGELOG.md has what changed." "$$(sed -n 's/^Maintainer: //p' deploy/debian/control)" \
	    "$$(git log -1 --format=%cD)" >$(DEB_TREE)/debian/changelog
	+@cd $(DEB_TREE) && SOURCE=$(CURDIR) debian/rules binary >../log 2>&1 || { tail ../log >&2; exit 1; }
	@ls $(BUILD)/deb/*.deb
image: deb ## an OCI image of these packages, into $(BUILD)/image/holdfast.tar
	@deploy/image $(BUILD)
clean: ## remove what was built
	rm -rf $(BUILD)

$(OBJ)/gen/proto/%.pb-c.c $(OBJ)/gen/proto/%.pb-c.h: proto/%.proto | deps-now
	$(call say,gen )
	$(Q)mkdir -p $(@D)
	$(Q)protoc-c --c_out=$(OBJ)/gen $<
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
include mk/cuda.mk


$(BUILD)/libproto.a: $(PROTO_O)
$(BUILD)/libstorage.a: $(STORAGE_O)
$(BUILD)/libckptd.a: $(CKPTD_O)
$(BUILD)/libclient.a: $(CKPT_O)
$(BUILD)/libcli.a: $(CLI_O)
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
$(BUILD)/ckpt-cli: $(OBJ)/clients/cli/main.o $(BUILD)/libcli.a $C $S $P
	$(link)
$(BUILD)/trainer: $(OBJ)/trainer/train.o $(GPU_O) $(GPU_COMM_O) $T $K $C $S $P
	$(link) $(MPICC_L) -ldnnl -lgomp $(T_LIBS) $(GPU_LIBS)
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
include mk/tests.mk

-include $(shell find $(OBJ) -name '*.d' 2>/dev/null)
