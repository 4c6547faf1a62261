# Paceline's build. `make` leaves the program at build/paceline; `make help` lists the targets.
#
# Every folder of src/ becomes one archive build/lib/libFOLDER.a from src/FOLDER/*.c, and a test
# program links only the archives that its folder may reach (the table REACH below): the order of
# the folders is held by the linker. Files are found by wildcard, so adding one needs no edit here.
#
# Variables: BUILD (output folder), CC, OPT, PREFIX, LIBDIR, DESTDIR, SAN (sanitizers: address,undefined),
# V=1 (show whole commands).

BUILD  ?= build
OPT    ?= -O2 -g
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
PKGCONFIG ?= pkg-config
OBJCOPY ?= objcopy
NVRTC_ARCHS ?= sm_80 sm_90 sm_100 sm_120
FUZZ_RUNS ?= 20000
FUZZ_SECONDS ?= 10

# A missing generator of the environment must not change the language of messages that tools read.
export LC_ALL := C.UTF-8

# $(call short,WORD): what stands for a whole command; the command itself with V=1.
Q := $(if $(V),,@)
short = $(if $(V),,@echo '  $1 $@')

# ---- folders, lowest first, and what each may reach (closed under "may use") -------------------
FOLDERS := core io expr dev text dist flex data nn model decode train report serve api cli
REACH_core   := core
REACH_io     := core io
REACH_expr   := core expr
REACH_dev    := core dev
REACH_text   := core io text
REACH_dist   := core dev dist
REACH_flex   := core expr dev flex
REACH_data   := core io text data
REACH_nn     := core expr dev flex nn
REACH_model  := core io expr dev flex nn model
REACH_decode := core io expr dev text flex nn model decode
REACH_train  := core io expr dev text dist flex data nn model decode train
REACH_report := core io report
REACH_serve  := core io expr dev text flex nn model decode serve
REACH_api    := core io expr dev text dist flex data nn model decode train report serve api
REACH_cli    := $(FOLDERS)

# Folders that hold C files, and the order in which archives are linked: users first.
present   := $(foreach f,$(FOLDERS),$(if $(wildcard src/$f/*.c),$f))
highfirst := cli api serve report train decode model nn data flex dist text dev expr io core
# $(call archives,FOLDER): its archives with core and io (for fixtures), present ones, in order.
archives = $(foreach f,$(highfirst),$(if $(filter $f,$(present)),$(if $(filter $f,$(REACH_$1) core io),$(BUILD)/lib/lib$f.a)))

# ---- flags --------------------------------------------------------------------------------------
PACKAGES := jansson yaml-0.1 libpcre2-8 libutf8proc libzstd libxxhash libpng
ifneq ($(filter-out setup clean help demo-model format,$(or $(MAKECMDGOALS),all)),)
absent := $(shell for p in $(PACKAGES) cmocka; do $(PKGCONFIG) --exists $$p 2>/dev/null || printf '%s ' $$p; done)
ifneq ($(absent),)
$(error $(if $(shell command -v $(PKGCONFIG)),Libraries are missing: $(absent),$(PKGCONFIG) is missing); run 'make setup' first)
endif
PKG_CFLAGS := $(shell $(PKGCONFIG) --cflags $(PACKAGES))
PKG_LIBS   := $(shell $(PKGCONFIG) --libs $(PACKAGES))
TEST_LIBS  := $(shell $(PKGCONFIG) --libs cmocka)
endif

WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes \
        -Wundef -Wvla -Werror
SAN ?=
SAN_FLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer)
# Compilers see the sanitizers' own branches and warn about code that is fine: the plain builds judge warnings.
SAN_WARN  := $(if $(SAN),-w)
CSTD   := -std=c11 -D_GNU_SOURCE
# Objects serve the program and the shared library alike; only what include/ declares is seen outside (PL_API there).
CFLAGS_ALL = $(CSTD) $(OPT) -ffp-contract=off -fPIC -fvisibility=hidden $(WARN) $(SAN_FLAGS) \
             $(if $(SAN),$(SAN_WARN)) -Isrc -Iinclude $(PKG_CFLAGS) $(CFLAGS)
LDFLAGS_ALL = $(SAN_FLAGS) -Wl,--as-needed $(LDFLAGS)
LIBS = $(PKG_LIBS) -lpthread -ldl -lm
# Kernels for wide CPUs are told by their file's name and chosen at run time (dev_get_isa).
isa_flags = $(if $(filter %_avx2,$(basename $1)),-mavx2 -mfma -mf16c)$(if $(filter %_avx512,$(basename $1)),-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c)$(if $(filter %_avx512bf16,$(basename $1)),-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mavx2 -mfma -mf16c)$(if $(filter %_amx,$(basename $1)),-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c -mamx-tile -mamx-bf16)

# ---- what is built ------------------------------------------------------------------------------
sources      := $(foreach f,$(present),$(wildcard src/$f/*.c))
libs         := $(foreach f,$(present),$(BUILD)/lib/lib$f.a)
program      := $(if $(wildcard src/cli/main.c),$(BUILD)/paceline)
# The public library is for other programs, which have no sanitizer: it is not part of such builds.
library      := $(if $(SAN),,$(BUILD)/lib/libpaceline.so.0 $(BUILD)/lib/libpaceline.a)
version      := $(shell sed -n 's/^.define VERSION_TEXT "\(.*\)"$$/\1/p' src/core/version.h)
test_sources := $(foreach f,$(FOLDERS),$(wildcard tests/$f/test_*.c))
test_bins    := $(test_sources:%.c=$(BUILD)/%)
test_scripts := $(wildcard tests/cli/test_*.sh tests/api/test_*.sh)
gpu_sources  := $(wildcard tests/gpu/test_*.c)
gpu_bins     := $(gpu_sources:%.c=$(BUILD)/%)
support      := $(wildcard tests/support/*.c)
support_objs := $(support:%.c=$(BUILD)/obj/%.o)
support_lib  := $(if $(support),$(BUILD)/tests/libsupport.a)
bench_sources:= $(wildcard bench/*.c)
bench_bins   := $(bench_sources:bench/%.c=$(BUILD)/bench/%)
fuzz_sources := $(wildcard fuzz/*.c)
kernels      := $(wildcard src/*/kernels/*.cu)
all_objs     := $(sources:%.c=$(BUILD)/obj/%.o) $(support_objs) $(test_sources:%.c=$(BUILD)/obj/%.o) \
                $(gpu_sources:%.c=$(BUILD)/obj/%.o) \
                $(bench_sources:%.c=$(BUILD)/obj/%.o) $(fuzz_sources:%.c=$(BUILD)/obj/%.o)

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: all lib tests benches help setup demo demo-model test gpu-test gpu-check test-asan test-tsan lint format fuzz fuzz-build \
        bench bundle bundle-check install kernels-check clean FORCE

all: lib $(program) $(library) ## the program, the public library and the archives (default)
lib: $(libs)        ## the archives build/lib/libFOLDER.a
tests: $(test_bins) ## all test programs, not run
benches: $(bench_bins)

# Objects depend on this file, which changes only when the compiler or its flags do.
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(CC) $(CFLAGS_ALL) $(call isa_flags,x_avx2.c) $(call isa_flags,x_avx512.c) $(call isa_flags,x_amx.c)' | cmp -s - $@ || \
	  printf '%s\n' '$(CC) $(CFLAGS_ALL) $(call isa_flags,x_avx2.c) $(call isa_flags,x_avx512.c) $(call isa_flags,x_amx.c)' > $@

$(BUILD)/obj/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call short,cc  )
	$(Q)$(CC) $(CFLAGS_ALL) $(if $(filter tests/% bench/%,$<),-Itests) $(call isa_flags,$<) -MMD -MP -c $< -o $@

# Device kernels are embedded as text by src/FOLDER/FOLDER_kernels.c, which the compiler's list of headers cannot know.
$(foreach f,$(present),$(eval $(BUILD)/obj/src/$f/$f_kernels.o: $(wildcard src/$f/kernels/*)))

define folder_rules
$(BUILD)/lib/lib$1.a: $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard src/$1/*.c))
	@mkdir -p $$(@D)
	@rm -f $$@
	$$(call short,ar  )
	$$(Q)$(AR) rcs $$@ $$^
$(BUILD)/tests/$1/%: $(BUILD)/obj/tests/$1/%.o $(support_lib) $(call archives,$1)
	@mkdir -p $$(@D)
	$$(call short,link)
	$$(Q)$(CC) $$(LDFLAGS_ALL) -o $$@ $$^ $$(TEST_LIBS) $$(LIBS)
endef
$(foreach f,$(FOLDERS),$(eval $(call folder_rules,$f)))

# Tests of GPUs reach everything; `test` runs them on the device that tests/emu plays, gpu-test on a real one.
$(BUILD)/tests/gpu/%: $(BUILD)/obj/tests/gpu/%.o $(support_lib) $(call archives,api)
	@mkdir -p $(@D)
	$(call short,link)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(TEST_LIBS) $(LIBS)

# Helpers of tests: a program takes the objects that it uses, so a helper for one folder burdens no other.
$(BUILD)/tests/libsupport.a: $(support_objs)
	@mkdir -p $(@D)
	@rm -f $@
	$(call short,ar  )
	$(Q)$(AR) rcs $@ $^

# Functions are bound when first called: so main can name the file of a search path that lacks one (cli/linked.c).
lazy := -Wl,-z,lazy
$(BUILD)/paceline: $(BUILD)/obj/src/cli/main.o $(call archives,cli)
	$(call short,link)
	$(Q)$(CC) $(LDFLAGS_ALL) $(lazy) -o $@ $^ $(LIBS)

# ---- the public library: src/api whole, and of the folders below what it uses --------------------
api_archives := $(call archives,api)
api_whole     = --whole-archive $(BUILD)/lib/libapi.a --no-whole-archive $(filter-out %/libapi.a,$(api_archives))
comma        := ,
empty        :=
space        := $(empty) $(empty)

$(BUILD)/lib/libpaceline.so.0: $(api_archives) tools/libpaceline.sym
	$(call short,link)
	$(Q)$(CC) $(LDFLAGS_ALL) -shared -Wl,-soname,libpaceline.so.0 -Wl,-z,defs -Wl,--version-script=tools/libpaceline.sym -o $@ \
	  -Wl,$(subst $(space),$(comma),$(strip $(api_whole))) $(LIBS)

# One object, whose hidden names are made local: a static library that takes no name but its own.
$(BUILD)/lib/libpaceline.a: $(api_archives)
	@rm -f $@
	$(call short,ar  )
	$(Q)$(LD) -r -o $(BUILD)/obj/libpaceline.o $(api_whole)
	$(Q)$(OBJCOPY) --localize-hidden $(BUILD)/obj/libpaceline.o
	$(Q)$(AR) rcs $@ $(BUILD)/obj/libpaceline.o

$(BUILD)/bench/%: $(BUILD)/obj/bench/%.o $(support_lib) $(call archives,api)
	@mkdir -p $(@D)
	$(call short,link)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(LIBS)

-include $(all_objs:.o=.d)

# ---- tests --------------------------------------------------------------------------------------
# Programs run from the root of the repository, one after the other, each under a time limit.
# PACELINE_PROGRAM tells the end-to-end tests which program to run.
# Loaded by tests/cli/test_memory.sh to count the bytes a process holds, from outside.
$(BUILD)/tests/interpose/count.so: tests/interpose/count.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) $(CSTD) $(OPT) $(WARN) -shared -fPIC -o $@ $< -ldl

# Libraries that stand for others: tests/interpose/KIND_stub.c as each VERSION that it knows, named KIND_VERSION.so.
stub_names := nccl_21600 nccl_22800 nccl_0 nvml_two nvml_old nvml_less nvml_failing nvml_crash nvrtc_13 nvrtc_old nvrtc_less cuda_13 \
              blas_right blas_wrong blas_unsteady blas_crash blas_wide jansson_old jansson_bare pcre2_bare disk_full
stubs := $(stub_names:%=$(BUILD)/tests/interpose/%.so)
soname_nccl := libnccl.so.2
soname_nvml := libnvidia-ml.so.1
soname_nvrtc := libnvrtc.so.13
soname_cuda := libcuda.so.1
soname_blas := libopenblas.so.0
soname_jansson := libjansson.so.4
soname_pcre2 := libpcre2-8.so.0
soname_disk := libdisk.so
stub_kind = $(firstword $(subst _, ,$(basename $(notdir $1))))
stub_flags = -DSTUB_VERSION=$1 -DSTUB_VERSION_$1=1
.SECONDEXPANSION:
$(stubs): tests/interpose/$$(call stub_kind,$$@)_stub.c tests/interpose/driver_calls.h $(BUILD)/flags
	@mkdir -p $(@D)
	$(call short,stub)
	$(Q)$(CC) $(CSTD) $(OPT) $(WARN) $(call stub_flags,$(lastword $(subst _, ,$(basename $(notdir $@))))) -shared -fPIC \
	  -Wl,-soname,$(soname_$(call stub_kind,$@)) -o $@ $<
$(foreach t,cli/test_doctor cli/test_doctor_machine cli/test_gpu_refusals cli/test_libraries cli/test_warmup dev/test_dev_cuda dev/test_shared_lib dev/test_blas flex/test_flex_cuda_load,$(BUILD)/tests/$t): | $(stubs)

# A CUDA device played by the CPU: its driver, and an NVRTC that asks the host's C++ compiler. Never built with a sanitizer:
# it switches stacks, and looks at each access itself.
emulated := $(BUILD)/tests/emu/libcuda.so.1 $(BUILD)/tests/emu/libnvrtc.so.13
$(BUILD)/tests/emu/libcuda.so.1: $(addprefix tests/emu/emu_,block.c warp.c memory.c driver.c)
$(BUILD)/tests/emu/libnvrtc.so.13: tests/emu/emu_nvrtc.c
$(emulated): tests/emu/emu.h tests/emu/emu_run.h tests/interpose/driver_calls.h $(BUILD)/flags
	@mkdir -p $(@D)
	$(call short,stub)
	$(Q)$(CC) $(CSTD) -O3 $(WARN) -DEMU_FOLDER='"$(abspath tests/emu)"' -shared -fPIC -fvisibility=hidden \
	  -Wl,-soname,$(@F) -o $@ $(filter %.c,$^) -ldl -lpthread

# Tests of GPUs use no matrix library, so they run where the others run with one.
test: $(program) $(library) $(test_bins) $(gpu_bins) $(emulated) $(BUILD)/tests/interpose/count.so $(BUILD)/tests/cli/make_tiny ## all tests; ends with 'N passed, N failed, N skipped'
	@PACELINE_PROGRAM=$(BUILD)/paceline EMULATED=$(abspath $(BUILD)/tests/emu) \
	  tools/runtests.sh $(BUILD) $(test_bins) $(test_scripts) $(if $(filter none,$(PACELINE_BLAS)),,$(gpu_bins))

gpu-test: $(program) $(gpu_bins) ## the tests of tests/gpu on a real GPU; each says "skipped" where there is none
	@PACELINE_PROGRAM=$(BUILD)/paceline tools/runtests.sh $(BUILD) $(gpu_bins)

gpu-check: $(program) $(gpu_bins) ## fewer of them under NVIDIA's compute-sanitizer: memory, races, unwritten reads, barriers
	@tools/gpu_check.sh $(BUILD)

# The compilers' sanitizers expect memory where 28 random bits put it, and end now and then where the kernel takes more.
without_aslr = $(shell [ "$$(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 0)" -gt 28 ] && setarch -R true 2>/dev/null && echo setarch -R)
SUBSET ?=
test-asan: ## all tests under the address and undefined behaviour sanitizers
	@TEST_TIMEOUT=3600 ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
	  $(without_aslr) $(MAKE) --no-print-directory BUILD=$(BUILD)/asan SAN=address,undefined OPT='-O1 -g' test

# Blocks of thread-local memory of opened libraries are left alone: the run time guesses their size from the bytes before them, and a wrong
# guess ends the program.
tsan_names := $(shell sed 's/\#.*//' tests/tsan.list 2>/dev/null)
test-tsan: ## the tests named in tests/tsan.list under the thread sanitizer
	@TEST_TIMEOUT=3600 TSAN_OPTIONS=halt_on_error=1:allocator_may_return_null=1:intercept_tls_get_addr=0 \
	  $(without_aslr) $(MAKE) --no-print-directory BUILD=$(BUILD)/tsan SAN=thread \
	  OPT='-O1 -g' test-subset SUBSET='$(tsan_names)'

.PHONY: test-subset
subset_bins := $(foreach t,$(SUBSET),$(filter $(BUILD)/tests/$t,$(test_bins)))
test-subset: $(subset_bins)
	@tools/runtests.sh $(BUILD) $(subset_bins)

# ---- fuzzing ------------------------------------------------------------------------------------
fuzz: ## a short libFuzzer run of every fuzz/*.c (needs clang)
	@if [ -z '$(fuzz_sources)' ]; then echo 'fuzz: no fuzz targets yet'; else \
	  $(MAKE) --no-print-directory BUILD=$(BUILD)/fuzz CC=clang SAN=fuzzer-no-link,address,undefined \
	    OPT='-O1 -g' fuzz-build && \
	  FUZZ_RUNS=$(FUZZ_RUNS) FUZZ_SECONDS=$(FUZZ_SECONDS) $(without_aslr) tools/runfuzz.sh $(BUILD)/fuzz; fi

fuzz-build: $(fuzz_sources:fuzz/%.c=$(BUILD)/fuzz/%)
$(BUILD)/fuzz/%: $(BUILD)/obj/fuzz/%.o $(call archives,api)
	@mkdir -p $(@D)
	$(call short,link)
	$(Q)$(CC) $(subst fuzzer-no-link,fuzzer,$(LDFLAGS_ALL)) -o $@ $^ $(LIBS)

# ---- everything else ----------------------------------------------------------------------------
setup: ## install what is missing to build and test (Debian; apt)
	@tools/setup.sh

demo-model: ## fetch and check the demo's model
	@demo/fetch_model.sh

demo: ## the whole road on a small model: answers, training, decoding (LONG=1: an hour)
	@$(MAKE) --no-print-directory -j$(shell nproc) all demo-model
	@PACELINE_PROGRAM=$(BUILD)/paceline LONG='$(LONG)' demo/run.sh

lint: lib $(program) ## what a machine can judge of the house rules
	@BUILD=$(BUILD) FOLDERS='$(FOLDERS)' tools/lint.sh

format: ## apply .clang-format to every C file
	@git ls-files -co --exclude-standard -- '*.c' '*.h' '*.cu' | xargs clang-format -i

bench: $(bench_bins) ## build and run bench/*.c
	@if [ -z '$(bench_bins)' ]; then echo 'bench: no benches yet'; fi
	@for b in $(bench_bins); do echo "== $$b"; $$b || exit 1; done

# Linked once more, to look for its libraries in lib/ beside it (and theirs too: hence not RUNPATH).
$(BUILD)/paceline-bundle: $(BUILD)/obj/src/cli/main.o $(call archives,cli)
	$(call short,link)
	$(Q)$(CC) $(LDFLAGS_ALL) $(lazy) -Wl,--disable-new-dtags -Wl,-rpath,'$$ORIGIN/lib' -o $@ $^ $(LIBS)

bundle: $(BUILD)/paceline-bundle ## build/bundle: the program with its libraries, for machines without them
	@tools/bundle.sh $< $(BUILD)/bundle

bundle-check: bundle ## run the bundle where none of its libraries are
	@tools/bundle_check.sh $(BUILD)/bundle

install: all ## program, header, libraries and paceline.pc; PREFIX, LIBDIR and DESTDIR say where
	install -D -m 755 $(BUILD)/paceline $(DESTDIR)$(PREFIX)/bin/paceline
	install -D -m 644 include/paceline/flex.h $(DESTDIR)$(PREFIX)/include/paceline/flex.h
	install -D -m 755 $(BUILD)/lib/libpaceline.so.0 $(DESTDIR)$(LIBDIR)/libpaceline.so.0
	ln -sfn libpaceline.so.0 $(DESTDIR)$(LIBDIR)/libpaceline.so
	install -D -m 644 $(BUILD)/lib/libpaceline.a $(DESTDIR)$(LIBDIR)/libpaceline.a
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig
	sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(version)|' tools/paceline.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/paceline.pc
	install -D -m 644 LICENSE $(DESTDIR)$(PREFIX)/share/doc/paceline/LICENSE
	install -D -m 644 README.md $(DESTDIR)$(PREFIX)/share/doc/paceline/README.md
	install -D -m 644 docs/LANGUAGE.md $(DESTDIR)$(PREFIX)/share/doc/paceline/docs/LANGUAGE.md
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/doc/paceline/examples examples/attend.c examples/mask_map.c

# Kernels that are whole files; those of attention are put together by the program.
whole_kernels := $(filter-out src/flex/kernels/%,$(kernels))
kernels-check: $(call archives,flex) ## compile every device kernel with NVRTC and judge spills, no GPU needed
	@tools/kernels_check.sh '$(CC)' '$(BUILD)' '$(NVRTC_ARCHS)' '$(call archives,flex) $(LIBS)' $(whole_kernels)

compile_commands.json: FORCE ## flags of every file, for editors
	@tools/compile_commands.sh '$(CC) $(CFLAGS_ALL)' $(sources) $(support) $(test_sources) $(bench_sources) > $@
	@echo 'wrote $@'

clean: ## remove the build folder
	rm -rf $(BUILD) compile_commands.json

help: ## this list
	@sed -n 's/^\([a-z_.-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-30s %s\n", $$1, $$2 }'
