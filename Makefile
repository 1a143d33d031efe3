# slabstream. `make help` lists targets and variables. Everything made lies in $(BUILD); changed flags rebuild it.
#
# A build has one backend. The sources of kernels/ are in both (they hold the references that CUDA kernels are compared with);
# runtime_cpu.cpp and runtime_cuda.cu are the two implementations of kernels/runtime/runtime.h.

PRECISION ?= bf16
BLAS      ?= openblas
BUILD     ?= build$(addprefix -,$(SAN))
# The CUDA toolkit: where CUDA_HOME says, or its compiler is (links followed), or it is usually put.
FOUND_NVCC := $(firstword $(shell command -v nvcc) $(wildcard $(or $(CUDA_HOME),/usr/local/cuda)/bin/nvcc))
NVCC      ?= $(FOUND_NVCC)
CUDA_HOME ?= $(or $(patsubst %/bin/nvcc,%,$(filter %/bin/nvcc,$(realpath $(NVCC)))),/usr/local/cuda)

# The compute capabilities of the GPUs here, such as 90, and those of them that the kernels are for: 8.0 and higher.
GPUS_HERE := $(shell nvidia-smi -L >/dev/null 2>&1 && \
                     nvidia-smi --query-gpu=compute_cap --format=csv,noheader | tr -d . | sort -un)
OLD_GPUS  := $(foreach a,$(GPUS_HERE),$(shell [ $(a) -ge 80 ] || echo $(a)))
GPU_ARCHS := $(filter-out $(OLD_GPUS),$(GPUS_HERE))
BACKEND   ?= $(if $(and $(NVCC),$(GPU_ARCHS),$(if $(SAN),,no sanitizer)),cuda,cpu)
# CUDA_PTX: also PTX of this capability, for cards yet to come.
CUDA_ARCHS ?= $(or $(GPU_ARCHS),80 90)
CUDA_PTX   ?=
# The processor that host code is for.
HOST_ARCH  ?= native

ifeq ($(filter $(BACKEND),cpu cuda),)
$(error BACKEND=$(BACKEND): cpu or cuda wanted)
endif
ifeq ($(filter $(PRECISION),bf16 fp32),)
$(error PRECISION=$(PRECISION): bf16 or fp32 wanted)
endif
ifeq ($(filter $(BLAS),openblas none),)
$(error BLAS=$(BLAS): openblas or none wanted)
endif
ifneq ($(SAN),$(filter $(SAN),thread address))
$(error SAN=$(SAN): thread or address wanted)
endif
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
else
override PRECISION := fp32
ifeq ($(BLAS),openblas)
BLAS_LINKS := $(shell echo 'extern "C" void openblas_set_num_threads(int); int main() { openblas_set_num_threads(1); }' | \
                      $(CXX) -x c++ - -lopenblas -o /dev/null 2>/dev/null && echo yes)
ifeq ($(BLAS_LINKS),yes)
CPPFLAGS += -DSLABSTREAM_OPENBLAS
LDLIBS   += -lopenblas
else
override BLAS := none
BLAS_NOTE := (OpenBLAS does not link here; the blocked loop is slower)
endif
endif
endif

comma := ,
# The rooms, from the ground up; a room includes only itself and those before it (`make check-includes`).
ROOMS := kernels/runtime kernels kernels/attention offload data/base data/gguf data/tokenizer data \
         train/spec train/files train/model train/run train/export
in_rooms = $(wildcard $(addsuffix /$(1),$(ROOMS)))
PROGRAM_SOURCES := $(call in_rooms,*_main.cpp) $(wildcard dev/*_main.cpp)
ifeq ($(BACKEND),cuda)  # the example's own kernels are for the CPU
PROGRAM_SOURCES := $(filter-out dev/example_main.cpp,$(PROGRAM_SOURCES))
endif
PROGRAMS        := $(patsubst %_main.cpp,$(BUILD)/%,$(notdir $(PROGRAM_SOURCES)))
LIB_SOURCES     := $(filter-out %_main.cpp,$(call in_rooms,*.cpp))
ifeq ($(BACKEND),cuda)
LIB_SOURCES := $(filter-out kernels/runtime/runtime_cpu.cpp,$(LIB_SOURCES)) $(call in_rooms,*.cu)
endif
TEST_SOURCES := $(wildcard tests/*.cpp) $(wildcard $(addsuffix /*.cpp,$(addprefix tests/,$(ROOMS))))
object_of = $(patsubst %,$(BUILD)/obj/%.o,$(1))
LIB := $(BUILD)/libslabstream.a
# What another trainer takes along, and all that the example may use.
PLUGIN_OBJECTS := $(call object_of,$(filter offload/% kernels/runtime/%,$(LIB_SOURCES)))

BUILDING := $(filter-out help clean format check-format check-includes source-hash fat,$(or $(MAKECMDGOALS),all))
ifneq ($(BUILDING),)
# Rewritten only when it differs; every object depends on it.
FLAGS_NOW := $(BACKEND) $(CXX) $(CPPFLAGS) $(strip $(CXXFLAGS) $(EXTRA_CXXFLAGS)) $(NVCC) $(NVCCFLAGS) $(LDFLAGS) $(LDLIBS)
$(shell mkdir -p $(BUILD); echo '$(FLAGS_NOW)' | cmp -s - $(BUILD)/flags || echo '$(FLAGS_NOW)' > $(BUILD)/flags)
ifeq ($(MAKELEVEL)$(findstring s,$(firstword -$(MAKEFLAGS))),0)
$(info backend $(BACKEND) ($(PRECISION)$(if $(filter cuda,$(BACKEND)),$(foreach a,$(CUDA_ARCHS), sm_$a)))  \
       GPU $(or $(addprefix sm_,$(GPU_ARCHS)),none)$(if $(OLD_GPUS), (not $(addprefix sm_,$(OLD_GPUS)): 8.0 or higher is wanted))  nvcc $(or $(NVCC),none)  \
       NCCL $(if $(wildcard $(CUDA_HOME)/include/nccl.h /usr/include/nccl.h),found,none)  BLAS $(BLAS) $(BLAS_NOTE))
endif
endif

# One command uses all cores, without anyone asking; a job of the compiler takes up to 2 GB.
ifeq ($(filter -j%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(shell n=$$(nproc); [ $$n -le 16 ] && echo $$n || echo 16)
endif

.PHONY: all test demo demo-short demo-smollm2 bench fat gpu-report source-hash format check-format check-includes clean help
.SUFFIXES:
.DELETE_ON_ERROR:

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
# What checks every pointer adds a third to the time, and AddressSanitizer finds null ones too. Bytes of files and tensors are read
# as other types in data/, offload/ and kernels/, which keep these checks. They compute, too: what calls them need not be fast here.
$(BUILD)/obj/train/% $(BUILD)/obj/dev/%: CXXFLAGS += $(if $(filter address,$(SAN)),-O0 -fno-sanitize=null$(comma)alignment$(comma)vptr$(comma)object-size)

$(LIB): $(call object_of,$(LIB_SOURCES)) $(BUILD)/flags
	@rm -f $@
	@ar rcs $@ $(filter %.o,$^)

# $(1) folder, $(2) name, $(3) what it links
define program
$(BUILD)/$(2): $(BUILD)/obj/$(1)$(2)_main.cpp.o $(3)
	@echo '  link  $$@'
	@$$(CXX) $$(LDFLAGS) $$^ $$(LDLIBS) -o $$@
endef
$(foreach s,$(PROGRAM_SOURCES),$(eval $(call program,$(dir $s),$(patsubst %_main.cpp,%,$(notdir $s)),\
    $(if $(filter dev/example_main.cpp,$s),$(PLUGIN_OBJECTS),$(LIB)))))

$(BUILD)/tests: $(call object_of,$(TEST_SOURCES)) $(LIB)
	@echo '  link  $@'
	@$(CXX) $(LDFLAGS) $^ $(LDLIBS) -o $@

$(BUILD)/attention_bench: $(BUILD)/obj/dev/attention_bench.cu.o  # times attention and the tiles that lost
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

FORMATTED := $(wildcard $(foreach d,$(ROOMS) dev tests $(addprefix tests/,$(ROOMS)),$d/*.h $d/*.cpp $d/*.cu $d/*.cuh))
format:
	clang-format -i $(FORMATTED)
check-format:
	clang-format --dry-run -Werror $(FORMATTED)

check-includes:
	@dev/check_includes.sh $(CXX) -std=c++20 $(CPPFLAGS) -- $(ROOMS)

clean:
	rm -rf $(BUILD)

help:
	@echo 'targets:   all (default)  test  demo  demo-short  demo-smollm2 (fetches a model)  bench  gpu-report'
	@echo '           fat (CUDA for many GPUs, in build-fat/)  source-hash  format  check-format  check-includes  clean'
	@echo '           build/attention_bench (CUDA: times attention and the tiles that lost)'
	@echo 'variables: BACKEND=cpu|cuda (cuda where nvcc and a GPU are)  PRECISION=bf16|fp32 (CUDA; the CPU is fp32)'
	@echo '           BLAS=openblas|none  SAN=thread|address (own build directory)  BUILD=build  EXTRA_CXXFLAGS=...'
	@echo '           CUDA_HOME=/usr/local/cuda  NVCC=nvcc (of PATH or CUDA_HOME)  CUDA_ARCHS="80 90" (of the GPUs here)'
	@echo '           CUDA_PTX=120 (also PTX of that capability, for cards yet to come)'

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
