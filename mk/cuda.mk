# cuda.mk - kernels/cuda: for lanes of a CPU, for GPUs where nvcc is, and for simulated GPUs.
.PHONY: cuda need-nvcc gpu-check gpu-bench gpu-bundle

# The .cu files as C++ for lanes of a CPU (tests/cuda/lanes.h). The lanes themselves are free of
# sanitizers, and their loops stay loops: what they copy between fibers is no access of a kernel.
CU = $(wildcard kernels/cuda/*.cu)
LANES_C_O = $(OBJ)/tests/cuda/lanes.o $(OBJ)/kernels/cuda/run.o
# `#pragma unroll` is nvcc's: gcc does not know it, clang says where it did not.
# A kernel's fma is one instruction where the machine has it, and else a call of libm: the bits are the same.
LANES_FLAGS = -x c++ -include tests/cuda/lanes.h -ffp-contract=off -Wno-unknown-pragmas -Wno-pass-failed \
    $(shell grep -qw fma /proc/cpuinfo && echo -mfma)
$(OBJ)/lanes/%.o: %.cu | deps-now
	$(call say,c++ )
	$(Q)$(CXX) $(CXXFLAGS_ALL) $(LANES_FLAGS) -c -o $@ $<
$(OBJ)/tests/cuda/lanes.o: tests/cuda/lanes.c | deps-now
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
CUDA_C_O = $(call obj,$(filter-out $(if $(DNN_INCLUDE),,%/dnn.c %/dnn_graph.c),$(wildcard kernels/cuda/*.c kernels/cuda/library/*.c)))
CUDA_LIB = $(firstword $(wildcard $(CUDA_HOME)/lib64 $(CUDA_HOME)/lib))
# nccl.h: of the toolkit's folder, of `make deps-cuda`, or of the system.
NCCL_INCLUDE = $(firstword $(patsubst %/nccl.h,%,$(wildcard $(CUDA_HOME)/include/nccl.h \
    $(CUDA_WHEELS)/nccl/include/nccl.h /usr/include/nccl.h)))
# Where cuBLASLt, cuDNN, NCCL, and the compiler that cuDNN calls, looked for at run time, may be. As DT_RPATH, which
# holds for what libraries look for, too.
GPU_PATHS = -Wl$(,)--disable-new-dtags $(addprefix -Wl$(,)-rpath$(,),$(CUDA_LIB) $(realpath $(CUDA_WHEELS)/nccl/lib $(CUDA_WHEELS)/cudnn/lib))
NCCL_O = $(if $(NCCL_INCLUDE),$(call obj,trainer/comm/nccl.c))
NCCL_LIBRARY_O = $(if $(NCCL_INCLUDE),$(call obj,trainer/comm/nccl_library.c))
SIMGPU_O = $(call obj,$(filter-out $(if $(NCCL_INCLUDE),,tests/simgpu/nccl%) $(if $(DNN_INCLUDE),,%/dnn.c %/dnn_graph.c), \
    $(wildcard tests/simgpu/*.c)))
$(filter-out %/run.o,$(CUDA_C_O)) $(SIMGPU_O) $(OBJ)/tests/unit/kernels_graphs.o: CFLAGS += -isystem $(CUDA_HOME)/include
$(call obj,$(addsuffix /dnn.c,kernels/cuda/library tests/simgpu) $(addsuffix /dnn_graph.c,kernels/cuda/library tests/simgpu)) \
    : CFLAGS += -isystem $(DNN_INCLUDE)
$(call obj,$(NCCL_SRC) $(wildcard tests/simgpu/nccl*.c)): CFLAGS += -isystem $(CUDA_HOME)/include -isystem $(NCCL_INCLUDE)
SIMGPU = $(if $(wildcard $(CUDA_HOME)/include/cuda_runtime_api.h),$(SIMGPU_O) $(filter-out %/run.o,$(CUDA_C_O)))
$(BUILD)/libgpu.a: $(CUDA_O) $(CUDA_C_O)
# Where nvcc is, the trainer has the kernels for GPUs in it, and what it needs of CUDA to look for a driver.
GPU_O = $(if $(SANITIZER),,$(if $(NVCC),$(CUDA_O) $(CUDA_C_O)))
GPU_COMM_O = $(if $(GPU_O),$(NCCL_O) $(NCCL_LIBRARY_O))
GPU_LIBS = $(if $(GPU_O),-L$(CUDA_LIB) $(GPU_PATHS) -lcudart_static -ldl -lrt)
$(BUILD)/cuda/start: $(OBJ)/tests/cuda/start.o $(BUILD)/libgpu.a $(BUILD)/libkernels.a $(BUILD)/libproto.a
	$(link) -ldnnl -lgomp $(GPU_PATHS) $(firstword $(wildcard $(CUDA_LIB)/libcudart.so $(CUDA_LIB)/libcudart.so.*))
# Plans of cuDNN for a GPU that is not there, and what stands in for its driver meanwhile.
$(BUILD)/cuda/plans: $(OBJ)/tests/cuda/plans.o $(call obj,$(addprefix kernels/cuda/library/,dnn.c dnn_graph.c lookup.c)) $(BUILD)/libproto.a
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
$(BUILD)/bench/rates: $(GPU_O)
$(BUILD)/bench/rates: LIBS += $(GPU_LIBS)
$(BUILD)/cuda/rates_on_simgpu: $(OBJ)/tests/bench/rates.o $(BUILD)/libkernels.a $(BUILD)/libproto.a $(SIMGPU) $(BUILD)/liblanes.a
	$(link) -ldnnl -lgomp
need-nvcc:
	$(if $(NVCC),,@echo "no nvcc here (make deps-cuda): what a GPU runs cannot be built" >&2; exit 78)
gpu-check: need-nvcc deps-now all $(BUILD)/cuda/kernels ## on a GPU: kernels and steps against the CPU; writes the evidence to commit
	@BUILD=$(BUILD) tests/cuda/gpu_check $(GPU_OPTIONS)
gpu-bench: need-nvcc deps-now all $(BUILD)/bench/rates ## on a GPU: tokens/s of whole steps, rates of kernels, beside the goals; GPU_OPTIONS=--bound needs none
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
