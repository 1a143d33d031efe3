# slabstream. `make help` lists targets and variables. All that is made lies in $(BUILD); changed flags rebuild it.
#
# A build has one backend. The sources of kernels/ are in both: they hold the references that CUDA kernels are compared with.
# runtime_cpu.cpp and runtime_cuda.cu are the two implementations of kernels/runtime/runtime.h.

PRECISION ?= bf16
BLAS      ?= openblas
BUILD     ?= build$(addprefix -,$(SAN))
# The processor that host code is for.
HOST_ARCH ?= native
# The rooms, from the ground up; a room includes only itself and those before it (`make check-includes`).
ROOMS := kernels/runtime kernels kernels/attention offload data/base data/jinja data/gguf data/tokenizer data \
         train/spec train/files train/model train/run train/export

# Goals that need nothing of the machine are left out.
BUILDING := $(filter-out help clean format check-format source-hash fat,$(or $(MAKECMDGOALS),all))
ifneq ($(BUILDING),)

# What the machine has. It is looked for once, and again when the Makefile, the probe or one of these variables changes. After a
# new GPU, toolkit or OpenBLAS, `make clean` or removing config.mk has it looked for again.
CONFIG     := $(BUILD)/config.mk
PROBE_WITH := CXX='$(CXX)' NVCC='$(NVCC)' CUDA_HOME='$(CUDA_HOME)'
-include $(wildcard $(CONFIG))
ifneq ($(PROBED_WITH)$(shell [ $(CONFIG) -nt Makefile ] && [ $(CONFIG) -nt dev/probe.sh ] || echo old),$(PROBE_WITH))
GPU_ARCHS :=
OLD_GPUS  :=
OPENBLAS  :=
NCCL      :=
$(shell mkdir -p $(BUILD) && { echo "PROBED_WITH := $(PROBE_WITH)"; $(PROBE_WITH) dev/probe.sh; } > $(CONFIG))
include $(CONFIG)
endif
NVCC       ?= $(FOUND_NVCC)
CUDA_HOME  ?= $(FOUND_CUDA_HOME)
BACKEND    ?= $(if $(and $(NVCC),$(GPU_ARCHS),$(if $(SAN),,no sanitizer)),cuda,cpu)
CUDA_ARCHS ?= $(or $(GPU_ARCHS),80 90)

# $(1) variable, $(2) its values
one_of = $(if $(filter $(2),$(or $($(1)),none)),,$(error $(1)=$($(1)): wanted one of: $(2)))
$(call one_of,BACKEND,cpu cuda)
$(call one_of,PRECISION,bf16 fp32)
$(call one_of,BLAS,openblas none)
$(call one_of,SAN,none thread address)
ifeq ($(BACKEND)$(if $(SAN),-san),cuda-san)
$(error SAN=$(SAN) with BACKEND=cuda: the sanitizers watch the CPU backend; leave BACKEND out)
endif
ifeq ($(BACKEND)$(NVCC),cuda)
$(error BACKEND=cuda, but no nvcc in PATH or $(CUDA_HOME)/bin: install the CUDA toolkit, or set NVCC)
endif

# No -ffast-math: sums keep the order they are written in. What is switched off here (errno, traps) changes no result.
# -Wno-restrict: g++ 12 warns falsely on "text" + std::string (GCC bug 105651).
CXXFLAGS := -std=c++20 -O3 -march=$(HOST_ARCH) -fno-math-errno -fno-trapping-math -ffp-contract=fast -g1 -Wall -Wextra -Wno-restrict
CPPFLAGS := -I.
LDFLAGS  := -pthread
LDLIBS   := -lpcre2-8
ifeq ($(SAN),thread)  # OpenBLAS is invisible to ThreadSanitizer, a race through it would go unreported
CXXFLAGS += -O2 -fsanitize=thread
LDFLAGS  += -fsanitize=thread
override BLAS := none
endif
ifeq ($(SAN),address)  # -O1: compiling takes a third of the time
CXXFLAGS += -O1 -fsanitize=address,undefined -fno-sanitize-recover=all
LDFLAGS  += -fsanitize=address,undefined
endif

ifeq ($(BACKEND),cuda)
override BLAS := none
NVCCFLAGS := -std=c++20 -O3 -lineinfo -Xcompiler -Wall,-Wextra --expt-relaxed-constexpr \
             $(foreach a,$(CUDA_PTX),-gencode arch=compute_$a,code=compute_$a) \
             $(foreach a,$(CUDA_ARCHS:90=90a),-gencode arch=compute_$a,code=sm_$a)  # 90a: Hopper's own instructions
CPPFLAGS += -I$(CUDA_HOME)/include -DSLABSTREAM_CUDA $(if $(filter bf16,$(PRECISION)),-DSLABSTREAM_BF16)
LDLIBS   += -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcublasLt -lcudart
ifeq ($(NCCL),links)
CPPFLAGS += -DSLABSTREAM_NCCL
LDLIBS   += -lnccl
endif
else
override PRECISION := fp32
ifeq ($(BLAS)-$(OPENBLAS),openblas-links)
CPPFLAGS += -DSLABSTREAM_OPENBLAS
LDLIBS   += -lopenblas
else ifeq ($(BLAS),openblas)
override BLAS := none (OpenBLAS does not link here; the blocked loop is slower)
endif
endif

# Rewritten only when it differs; every object depends on it.
FLAGS_NOW := $(BACKEND) $(CXX) $(CPPFLAGS) $(strip $(CXXFLAGS) $(EXTRA_CXXFLAGS)) $(NVCC) $(NVCCFLAGS) $(LDFLAGS) $(LDLIBS)
ifneq ($(filter-out check-includes,$(BUILDING)),)
$(shell echo '$(FLAGS_NOW)' | cmp -s - $(BUILD)/flags || echo '$(FLAGS_NOW)' > $(BUILD)/flags)
ifeq ($(MAKELEVEL)$(findstring s,$(firstword -$(MAKEFLAGS))),0)
$(info backend $(BACKEND) ($(PRECISION)$(if $(filter cuda,$(BACKEND)),$(foreach a,$(CUDA_ARCHS), sm_$a)))  \
       GPU $(or $(addprefix sm_,$(GPU_ARCHS)),none)$(if $(OLD_GPUS), (not $(addprefix sm_,$(OLD_GPUS)): 8.0 or higher is wanted))  nvcc $(or $(NVCC),none)  \
       NCCL $(or $(NCCL),none)  BLAS $(BLAS))
endif
endif

# One command uses all cores, without anyone asking; a job of the compiler takes up to 2 GB.
ifeq ($(filter -j%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(shell n=$$(nproc); [ $$n -le 16 ] && echo $$n || echo 16)
endif
endif

.PHONY: all test demo demo-short demo-smollm2 bench fat gpu-report source-hash format check-format check-includes clean help
.SUFFIXES:
.DELETE_ON_ERROR:

in_rooms = $(wildcard $(addsuffix /$(1),$(ROOMS)))
object_of = $(patsubst %,$(BUILD)/obj/%.o,$(1))
ifeq ($(BACKEND),cuda)  # the example's own kernels are for the CPU
OTHER_BACKEND := kernels/runtime/runtime_cpu.cpp dev/example_main.cpp
endif
PROGRAM_SOURCES := $(filter-out $(OTHER_BACKEND),$(call in_rooms,*_main.cpp) $(wildcard dev/*_main.cpp))
PROGRAMS        := $(patsubst %_main.cpp,$(BUILD)/%,$(notdir $(PROGRAM_SOURCES)))
LIB_SOURCES     := $(filter-out %_main.cpp $(OTHER_BACKEND),$(call in_rooms,*.cpp) $(if $(OTHER_BACKEND),$(call in_rooms,*.cu)))
TEST_SOURCES    := $(wildcard tests/*.cpp) $(wildcard $(addsuffix /*.cpp,$(addprefix tests/,$(ROOMS))))
LIB := $(BUILD)/libslabstream.a
# What another trainer takes along, and all that the example may use.
PLUGIN_OBJECTS := $(call object_of,$(filter offload/% kernels/runtime/%,$(LIB_SOURCES)))

all: $(PROGRAMS)

$(BUILD)/obj/%.cpp.o: %.cpp $(BUILD)/flags
	@mkdir -p $(@D) && echo '  c++   $<'
	@$(CXX) $(CPPFLAGS) $(CXXFLAGS) $(EXTRA_CXXFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/obj/%.cu.o: %.cu $(BUILD)/flags
	@mkdir -p $(@D) && echo '  nvcc  $<'
	@$(NVCC) $(CPPFLAGS) $(NVCCFLAGS) -MMD -MP -c $< -o $@

# Tests compute little and are most of what is compiled: this halves the time. What they test keeps its own flags, and
# UndefinedBehaviorSanitizer watches that, not the macros of doctest.
$(BUILD)/obj/tests/%: CXXFLAGS += $(if $(filter address,$(SAN)),-O0 -fno-sanitize=undefined,-O1)
# Checks of every pointer add a third to the time, and AddressSanitizer finds null ones too. Code of data/, offload/ and kernels/
# reads bytes of files and tensors as other types: it keeps these checks, and computes. Its callers need not be fast here.
UNCHECKED := -O0 -fno-sanitize=null,alignment,vptr,object-size
$(BUILD)/obj/train/% $(BUILD)/obj/dev/%: CXXFLAGS += $(if $(filter address,$(SAN)),$(UNCHECKED))

$(LIB): $(call object_of,$(LIB_SOURCES)) $(BUILD)/flags
	@rm -f $@
	@ar rcs $@ $(filter %.o,$^)

$(foreach s,$(PROGRAM_SOURCES),$(eval $(patsubst %_main.cpp,$(BUILD)/%,$(notdir $s)): \
    $(call object_of,$s) $(if $(filter dev/example_main.cpp,$s),$(PLUGIN_OBJECTS),$(LIB))))
$(BUILD)/tests: $(call object_of,$(TEST_SOURCES)) $(LIB)
BENCHES := $(patsubst dev/%.cu,$(BUILD)/%,$(wildcard dev/*_bench.cu))
$(BENCHES): $(BUILD)/%: $(BUILD)/obj/dev/%.cu.o
$(PROGRAMS) $(BUILD)/tests $(BENCHES):
	@echo '  link  $@'
	@$(CXX) $(LDFLAGS) $^ $(LDLIBS) -o $@

test: all $(BUILD)/tests
	@tests/run_all.sh $(BUILD)
demo: all
	BUILD=$(BUILD) dev/demo.sh
demo-short: all
	BUILD=$(BUILD) dev/demo.sh --short
demo-smollm2: all
	BUILD=$(BUILD) dev/demo_smollm2.sh
bench: $(BUILD)/bench_step
	$(BUILD)/bench_step
gpu-report:
	dev/gpu_report.sh

fat:  # for other machines: no instructions that only this one's processor has
	$(MAKE) BACKEND=cuda BUILD=build-fat HOST_ARCH=$(if $(filter x86_64,$(shell uname -m)),x86-64-v3,armv8-a) \
	    CUDA_ARCHS="80 86 89 90 100 120" CUDA_PTX=120 all

source-hash:
	@find kernels offload train -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) | \
	    LC_ALL=C sort | xargs sha256sum | sha256sum | cut -d' ' -f1

FORMATTED = $(wildcard $(foreach d,$(ROOMS) dev tests $(addprefix tests/,$(ROOMS)),$d/*.h $d/*.cpp $d/*.cu $d/*.cuh))
format:
	clang-format -i $(FORMATTED)
check-format:
	clang-format --dry-run -Werror $(FORMATTED)
check-includes:
	@dev/check_includes.sh $(CXX) -std=c++20 $(CPPFLAGS) -- $(ROOMS)

clean:
	rm -rf $(BUILD)

define HELP
targets:   all (default)  test  demo  demo-short  demo-smollm2 (fetches a model)  bench  gpu-report
           fat (CUDA for many GPUs, in build-fat/)  source-hash  format  check-format  check-includes  clean
           build/attention_bench, build/decode_bench (CUDA: time kernels alone, and the tiles that lost)
variables: BACKEND=cpu|cuda (cuda where nvcc and a GPU are)  PRECISION=bf16|fp32 (CUDA; the CPU is fp32)
           BLAS=openblas|none  SAN=thread|address (own build directory)  BUILD=build  EXTRA_CXXFLAGS=...
           CUDA_HOME=/usr/local/cuda  NVCC=nvcc (of PATH or CUDA_HOME)  CUDA_ARCHS="80 90" (of the GPUs here)
           CUDA_PTX=120 (also PTX of that capability, for cards yet to come)
endef
help:
	@: $(info $(HELP))

ifneq ($(BUILDING),)
-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
endif
