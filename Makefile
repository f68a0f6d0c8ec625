# Tiny GPT, literately.  `make help` lists the targets.
#
# The book is the source: book/*.nw is tangled into C below build/, once for
# each prefix of chapters that somebody asks for, and checked by tests/.
#
#   build/N/          chapters 1..N: src/ (tangled, with #line), obj/, suites
#   build/VARIANT/N/  the same with other compiler flags
#   build/bin/        the programs: tinygpt, and the book's tools
#   tangled/          the whole book as plain C, checked in

SHELL := /bin/bash -o pipefail
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
# a job for each core, unless make was told how many, or goals go in order
ifeq ($(MAKELEVEL)$(filter clean tangled,$(MAKECMDGOALS)),0)
MAKEFLAGS += -j$(shell nproc)
endif
# Suites run beside each other; a thread that waits for another sleeps.
export OMP_WAIT_POLICY ?= passive
close := )

NW       := $(sort $(wildcard book/*.nw))
CHAPTERS := $(filter book/0% book/1% book/2%,$(NW))
# 7 of book/07-test-block.nw; the preface is chapter 0
numbers  := $(shell printf '%s\n' $(CHAPTERS) | \
    sed 's|book/0*\([0-9]*\).*|\1|' | sort -nu | sed '/^$$/d')
LAST     := $(lastword $(numbers))
STAGES   := $(filter-out 0,$(numbers))

CC       ?= gcc
ifeq ($(origin CC),default)
CC       := gcc
endif
OPTIMIZE ?= -O2 -ftree-vectorize
WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror
CFLAGS   := -std=c11 -D_POSIX_C_SOURCE=200809L -g -fopenmp-simd \
            $(OPTIMIZE) $(WARNINGS) $(EXTRA)
LDLIBS   := -fopenmp -lcjson -lpcre2-8 -lm
# Chapter 21: each instruction set has a file of its own. The compiler may
# fuse a product and a sum there, and nowhere else.
THREADED := matrix layers_backward attention_backward loss adamw limit \
            thread_count
LANED    := $(foreach f,kernels kernel_steps limit_loops,\
            $(f)_avx512 $(f)_avx2 $(f)_base)
KERNEL_O ?= -O2
KERNEL_CFLAGS := -fopenmp -ffp-contract=fast $(KERNEL_O)
ifneq ($(filter x86_64-%,$(shell $(CC) -dumpmachine)),)
AVX512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma
AVX2   := -mavx2 -mfma
endif
$(foreach f,$(filter %_avx512,$(LANED)),$(eval flags_$(f) := $(AVX512)))
$(foreach f,$(filter %_avx2,$(LANED)),$(eval flags_$(f) := $(AVX2)))
$(foreach f,$(LANED),$(eval flags_$(f) += $(KERNEL_CFLAGS)))
$(foreach f,$(THREADED),$(eval flags_$(f) += -fopenmp))
# a root of a float is an instruction, and not a call that may set errno
flags_adamw += -fno-math-errno
# make KERNELS=plain: the library's own choice
KERNELS  ?=
flags_kernels := $(KERNELS:%=-DKERNELS='"%"')
CHECK_CFLAGS := $(shell pkg-config --cflags check 2>/dev/null)
CHECK_LIBS   := $(shell pkg-config --libs check 2>/dev/null || echo -lcheck)
# the suites count allocations and make the n-th fail, and note assertions in
# memory: tests/support
WRAP     := -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=free \
            -Wl,--wrap=mmap,--wrap=munmap,--wrap=_mark_point

VARIANT  ?=
BUILD    := build$(VARIANT:%=/%)$(KERNELS:%=/kernels-%)
TANGLE   := build/bin/tangle
RUN      ?=
LINES    ?= --lines
# what the suites' made-up inputs depend on, for a verdict of its own
SEED     ?=
TRY      := $(SEED:%=-%)
# a number that every drawn choice follows from; without it, each run's own
DRAW     ?=

.PHONY: all
all: tangled check book  ## tangle, compile, check and weave everything

# ---------------------------------------------------------------- one prefix
ifdef N

B       := $(BUILD)/$(N)
NW_N    := $(shell printf '%s\n' $(CHAPTERS) | awk -F'[/-]' '$$2 + 0 <= $(N)')
SUITES  := $(patsubst tests/%.c,$(B)/%,$(if $(ALL),\
    $(wildcard tests/suite_*.c),$(wildcard tests/suite_$(N).c \
    tests/suite_$(N)[a-z].c)))
# SHARE=n: one suite in n, from a first one that is drawn
share   = $(if $1,$(shell printf '%s\n' $2 | awk -v n=$1 \
    -v drawn=$(or $(DRAW),$(shell date +%s)) 'NR % n == drawn % n'),$2)
SHARE   ?=
SUITES  := $(call share,$(SHARE),$(SUITES))
SUPPORT := $(patsubst tests/%.c,$(B)/%.o,$(wildcard tests/support/*.c))

# names the files that the chapters give; make starts over when it changes
include $(B)/files.mk
$(B)/files.mk: $(NW_N) $(TANGLE)
	@mkdir -p $(B)/src
	@$(TANGLE) $(LINES) --out $(B)/src $(NW_N) > $(B)/.files
	@{ echo "FILES := $$(grep -v / $(B)/.files | tr '\n' ' ')"; \
	   echo "WRONG := $$($(TANGLE) --list-wrong $(NW_N) | \
	       grep -E '^$(N)[a-z]?-' | tr '\n' ' ')"; } > $@

# WRONG_SHARE=n: one wrong path in n
WRONG_SHARE ?=
WRONG   := $(call share,$(WRONG_SHARE),$(WRONG))
SOURCES := $(filter-out tinygpt.c,$(filter %.c,$(FILES)))
OBJECTS := $(SOURCES:%.c=$(B)/obj/%.o)

$(B)/obj/%.o: $(B)/src/%.c
	@mkdir -p $(@D)
	@$(CC) $(CFLAGS) $(flags_$*) -MMD -I$(B)/src -c $< -o $@
$(B)/support/%.o: tests/support/%.c
	@mkdir -p $(@D)
	@$(CC) $(CFLAGS) $(CHECK_CFLAGS) -MMD -c $< -o $@
$(B)/%.o: tests/%.c
	@mkdir -p $(@D)
	@$(CC) $(CFLAGS) $(CHECK_CFLAGS) -MMD -Itests -I$(B)/src \
	    -c $< -o $@
$(B)/libtinygpt.a: $(OBJECTS)
	@rm -f $@; ar rcs $@ $^
$(B)/tinygpt: $(B)/obj/tinygpt.o $(B)/libtinygpt.a
	@$(CC) $(CFLAGS) $^ $(LDLIBS) -o $@
$(SUITES): %: %.o $(SUPPORT) $(B)/libtinygpt.a | $(B)/tinygpt
	@$(CC) $(CFLAGS) $(WRAP) $^ $(CHECK_LIBS) $(LDLIBS) -o $@
-include $(wildcard $(B)/obj/*.d $(B)/support/*.d $(B)/*.d)

# one program for each way in that is not ours to trust
FUZZERS := $(patsubst tests/fuzz/%.c,$(B)/fuzz-%,$(wildcard tests/fuzz/*.c))
$(FUZZERS): $(B)/fuzz-%: tests/fuzz/%.c $(wildcard tests/fuzz/*.h) \
    $(B)/libtinygpt.a
	@$(CC) $(CFLAGS) -fsanitize=fuzzer -I$(B)/src $< $(B)/libtinygpt.a \
	    $(LDLIBS) -o $@
FUZZED := $(FUZZERS:$(B)/fuzz-%=fuzzed-%)
.PHONY: fuzzed $(FUZZED)
fuzzed: $(FUZZED)
$(FUZZED): fuzzed-%: $(B)/fuzz-%
	@corpus=$(BUILD)/corpus/$*; mkdir -p $$corpus; \
	$< -runs=$(RUNS) $(DRAW:%=-seed=%) -max_len=4096 -timeout=10 \
	    -print_final_stats=1 -artifact_prefix=$(BUILD)/$*- $$corpus \
	    $$(ls tests/fuzz/$*.dict 2>/dev/null | sed 's/^/-dict=/') \
	    $$(ls -d tests/fuzz/seeds/$* 2>/dev/null) > $$corpus.log 2>&1 \
	    || { tail -40 $$corpus.log; exit 1; }; \
	echo "$*: $$(sed -n 's/^stat::number_of_executed_units: *//p' \
	    $$corpus.log) inputs without a finding"

.PHONY: verdict program suites wrong-paths tier some-seeds
program: $(B)/tinygpt ; @:
suites: $(SUITES) ; @:
# an unchanged suite that passed is not run again
verdict: $(SUITES:%=%.passed$(TRY))
	@cat $^
	@$(if $^,true,echo "no suite for chapter $(N) yet")
%.passed$(TRY): % $(B)/tinygpt $(wildcard tests/golden/* tests/golden/*/*)
	@$(RUN) $< --chunks $(B)/src/.places $(SEED:%=--seed %) > $@.log \
	    || { cat $@.log; rm -f $@; exit 1; }
	@mv $@.log $@
tier: $(SUITES)
	@failed=0; for s in $^; do $$s --tier $(TIER) $(SEED:%=--seed %) \
	    --chunks $(B)/src/.places || failed=1; done; exit $$failed
some-seeds: $(SUITES)
	@for k in $$(seq $(SEEDS)); do \
	    seed=$$({ [ -z "$(DRAW)" ] && head -c 8 /dev/urandom \
	        || echo "$(DRAW) $$k" | sha256sum; } \
	        | od -An -N8 -tu8 | tr -d ' '); \
	    for s in $^; do $$s --seed $$seed --chunks $(B)/src/.places \
	        > $(B)/seeds.log 2>&1 || { cat $(B)/seeds.log; \
	        echo "again: $$s --seed $$seed"; exit 1; }; done; done; \
	 echo "$(words $(SUITES)) suites pass with $(SEEDS) random seeds each"

# one wrong path: tangle with the swap, compile what that changes, link it
# in front of the chapter's library, and expect the suite to name the owner.
# A verdict of failure is printed with the others, and not kept.
VERDICTS := $(WRONG:%=$(B)/wrong/%/verdict$(TRY))
wrong-paths: $(VERDICTS)
	@cat /dev/null $^; caught=$$(cat /dev/null $^ | grep -c ': caught by '); \
	 grep -L ': caught by ' $^ /dev/null | grep -v /dev/null | xargs -r rm; \
	 echo "chapter $(N): $$caught of $(words $(VERDICTS)) wrong paths caught"; \
	 [ $$caught -eq $(words $(VERDICTS)) ]
.SECONDARY: $(WRONG:%=$(B)/wrong/%/suite)
$(B)/wrong/%/suite: $(B)/files.mk $(SUITES) Makefile
	@mkdir -p $(@D)/src
	@$(TANGLE) --lines --wrong $* --out $(@D)/src $(NW_N) > /dev/null
	@rm -f $(@D)/*.o; cd $(@D)/src; for f in *.c; do \
	    cmp -s $$f $(CURDIR)/$(B)/src/$$f || echo $$f; done > ../.changed
	@for f in $$(cat $(@D)/.changed); do \
	    flags=; case $$f in $(foreach f,kernels $(LANED) $(THREADED),\
	        $(f).c$(close) flags='$(flags_$(f))' ;;) esac; \
	    $(CC) $(CFLAGS) $$flags -I$(@D)/src \
	    -c $(@D)/src/$$f -o $(@D)/$${f%.c}.o || exit 1; done
	@key=$*; $(CC) $(CFLAGS) $(WRAP) $(B)/suite_$${key%%-*}.o $(@D)/*.o \
	    $(SUPPORT) $(B)/libtinygpt.a $(CHECK_LIBS) $(LDLIBS) -o $@
$(B)/wrong/%/verdict$(TRY): $(B)/wrong/%/suite $(B)/tinygpt
	@{ printf '%s: ' '$*'; $< --expect-owner "$$(cat $(@D)/src/.owner)" \
	    --program $(B)/tinygpt $(SEED:%=--seed %) 2> $(@D)/stderr; \
	   true; } > $@
else

# ------------------------------------------------------------------- targets
ONE := $(MAKE) --no-print-directory N
SEEDS ?= 20
RUNS  ?= 100000
IS_STAGE = [ -n "$(filter $*,$(STAGES))" ] || \
    { echo "no chapter $*: the book has $(STAGES)" >&2; exit 1; }

.PHONY: compile check check-every check-checkpoint seeds wrong tangled check-tangled tools \
    asan tsan valgrind coverage clang fuzz lint clean help
chapter-%: $(TANGLE)  ## chapter-N: tangle chapters 1..N, compile, run suite N
	@$(IS_STAGE)
	+@$(ONE)=$* verdict
# Goals that share a directory wait for each other, also under make -j.
ifneq ($(MAKECMDGOALS),chapter-$(LAST))
chapter-$(LAST): compile
endif
compile: tools  ## compile the program and every suite
	+@$(ONE)=$(LAST) ALL=1 program suites
	@mkdir -p build/bin; cp -u build/$(LAST)/tinygpt build/bin/tinygpt
check: chapter-$(LAST)  ## run every suite against the whole book
	+@$(ONE)=$(LAST) ALL=1 verdict
check-every: $(STAGES:%=chapter-%)  ## chapter-1, chapter-2, ... each alone
seeds: compile  ## every suite with SEEDS=20 random seeds (DRAW=n: again)
	+@$(ONE)=$(LAST) ALL=1 SEEDS=$(SEEDS) some-seeds
tier-%: compile  ## tier-0 .. tier-3: the tests of one tier of the lab
	+@$(ONE)=$(LAST) ALL=1 TIER=$* tier
wrong: $(STAGES:%=wrong-%)  ## every wrong path must be caught and routed
wrong-%: chapter-%  ## wrong-N: the wrong paths of chapter N (WRONG_SHARE=n)
	+@$(ONE)=$* wrong-paths

asan: $(TANGLE)  ## every suite under AddressSanitizer and UBSan
	+@ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 CK_FORK=no \
	 $(ONE)=$(LAST) ALL=1 VARIANT=asan OPTIMIZE=-O1 \
	 EXTRA='-fsanitize=address,undefined -fno-sanitize-recover=all' \
	 program verdict
# clang's runtime tells the sanitizer what a region waits for (Archer); gcc's
# does not, and each barrier would be a finding
tsan: $(TANGLE)  ## the suites of the kernels under ThreadSanitizer
	+@TSAN_OPTIONS=ignore_noninstrumented_modules=1 CK_FORK=no \
	 $(ONE)=21 VARIANT=tsan CC=clang OPTIMIZE=-O1 \
	 EXTRA='-fsanitize=thread' program verdict
valgrind: $(TANGLE)  ## every suite under valgrind (SHARE=n: one in n)
	+@CK_FORK=no $(ONE)=$(LAST) ALL=1 VARIANT=valgrind OPTIMIZE=-O1 \
	 RUN='valgrind -q --leak-check=full --show-leak-kinds=definite \
	 --errors-for-leak-kinds=definite --error-exitcode=9' program verdict
# Made anew each time: only the other make knows whether the library changed.
build/bin/check_checkpoint: tests/tool/check_checkpoint.c compile
	@$(CC) $(CFLAGS) -Ibuild/$(LAST)/src $< build/$(LAST)/libtinygpt.a \
	    $(LDLIBS) -o $@
check-checkpoint: build/bin/check_checkpoint  ## a model of yours, DIR=…, against what is beside it
	@[ -n "$(DIR)" ] || { echo "make check-checkpoint DIR=…" >&2; exit 2; }
	@$< "$(DIR)"
fuzz: $(TANGLE)  ## what reads files, with RUNS=100000 made-up inputs each
	+@$(ONE)=$(LAST) VARIANT=fuzz CC=clang RUNS=$(RUNS) \
	 OPTIMIZE='-O1 -Wno-pass-failed' \
	 EXTRA='-fsanitize=fuzzer-no-link,address,undefined \
	 -fno-sanitize-recover=all' fuzzed
clang: $(TANGLE)  ## every suite compiled with clang
	+@$(ONE)=$(LAST) ALL=1 VARIANT=clang CC=clang program verdict
coverage: $(TANGLE)  ## lines of the tangled C that the suites reach
	@find build/coverage -name '*.gcda' -delete 2>/dev/null; true
	@rm -f build/coverage/$(LAST)/*.passed
	+@$(ONE)=$(LAST) ALL=1 VARIANT=coverage OPTIMIZE=-O0 KERNEL_O=-O0 LINES= \
	 EXTRA='--coverage' program verdict
	@gcovr --root . --object-directory build/coverage/$(LAST)/obj \
	    --filter 'build/coverage/$(LAST)/src/' --print-summary \
	    --fail-under-line 95 \
	    | tee build/coverage/report.txt

# What is timed is no part of make check. The book's figures are drawn from
# what this wrote into figures/ on an idle machine: make bench BENCH=figures.
# BENCH_RUN='chrt -f 20' goes before each command. Threads wait as they do
# without make.
BENCH     ?= build/bench
BENCH_RUN ?=
ALONE     := env -u OMP_WAIT_POLICY
BENCH_ALL := --what decode,prefill,batch,train,load --threads 1,2
.PHONY: bench bench-peers bench-build
bench: compile  ## kernels and a model beside the machine's limits
	@mkdir -p $(BENCH)
	@run() { echo "tinygpt $${*:2}"; \
	    $(ALONE) $(BENCH_RUN) build/bin/tinygpt "$${@:2}" \
	    --json > $(BENCH)/$$1.json.new && \
	    mv $(BENCH)/$$1.json.new $(BENCH)/$$1.json; }; \
	run 21-ladder kernels --rounds 21 && \
	run 21c-bench bench $(BENCH_ALL) --weights f32,bf16,int8 && \
	run 21c-llama bench $(BENCH_ALL) --shape llama-110m \
	    --weights f32,int8 && \
	run 21c-ladder bench --what decode,prefill --weights rows \
	    --threads 1 --kernels all --prompt 512 --repeats 3
	@mkdir -p build/bench; for f in roofline ladder; do \
	    BENCH=$(BENCH) gnuplot figures/21c-$$f.gp > build/bench/$$f.svg && \
	    echo "build/bench/$$f.svg" || exit 1; done

PEER_ROUNDS ?= 3
bench-peers: compile  ## PyTorch, OpenBLAS and oneDNN on the same shapes
	@CC='$(CC)' LAST=$(LAST) LIBS='$(LDLIBS)' BENCH_RUN='$(BENCH_RUN)' \
	    $(ALONE) tests/bench/peers.sh build/bench $(PEER_ROUNDS)
	@mkdir -p $(BENCH); cp build/bench/peers.txt $(BENCH)/21c-peers.txt.new && \
	    mv $(BENCH)/21c-peers.txt.new $(BENCH)/21c-peers.txt

bench-build: tools  ## from an edit to a verdict, for every chapter
	@mkdir -p build/bench
	@tests/bench/build.sh build/bench/book $(STAGES) weave | \
	    tee build/bench/build.txt

# the book's own tools are tangled by noweb alone, since they do the rest
TOOL_CFLAGS := -std=c11 -D_POSIX_C_SOURCE=200809L -O1 -g $(WARNINGS)
build/tool/tangle/%: book/A-tangling.nw
	@mkdir -p $(@D)
	@notangle -Rtangle/$* $< > $@.new && mv $@.new $@
TANGLE_C := $(addprefix build/tool/tangle/,tangle.c stream.c front_matter.c)
TANGLE_H := $(addprefix build/tool/tangle/,stream.h front_matter.h)
$(TANGLE): $(TANGLE_C) $(TANGLE_H)
	@mkdir -p $(@D)
	@$(CC) $(TOOL_CFLAGS) $(TANGLE_C) -lyaml -o $@.new && mv $@.new $@
LINT_C := $(addprefix build/tool/tangle/,lint.c front_matter.c)
build/bin/lint: $(LINT_C) $(TANGLE_H)
	@mkdir -p $(@D)
	@$(CC) $(TOOL_CFLAGS) $(LINT_C) -lyaml -o $@.new && mv $@.new $@
lint: build/bin/lint  ## the book's form: prose before each chunk, no orphan…
	@/usr/lib/noweb/markup $(NW) | build/bin/lint $(NW)
	@echo "lint: nothing to say"
tools: $(TANGLE)

# ------------------------------------------------------------- the re-solve
# Words with spaces come from the environment, where make puts them.
STAGE = $(firstword $(subst ., ,$*))
BUILT = $(ONE)=$(STAGE) suites program
.PHONY: progress next
blank-%: build/bin/resolve  ## blank-N: start an attempt (LEVEL=, ONLY=)
	@$< blank $* $${LEVEL:+--level "$$LEVEL"} $${ONLY:+--only "$$ONLY"} \
	    $${RESTART:+--restart}
grade-%: build/bin/resolve  ## grade-N: test the attempt (SRC=, SEED=)
	+@[ -z "$(filter $(STAGE),$(STAGES))" ] || $(BUILT)
	@$< grade $* $${SRC:+--src "$$SRC"} $${SEED:+--seed "$$SEED"}
watch-%: build/bin/resolve  ## watch-N: test it on every save
	+@[ -z "$(filter $(STAGE),$(STAGES))" ] || $(BUILT)
	@$< watch $*
reveal-%: build/bin/resolve  ## reveal-N: end it, show the book's (WRONG=)
	@$< reveal $* $${WRONG:+--wrong "$$WRONG"}
pause-% resume-% abandon-% history-%: build/bin/resolve
	@$< $(firstword $(subst -, ,$@)) $*
progress: build/bin/resolve  ## what is learned, and what is due (HTML=1)
	@$< progress $${HTML:+--html}
next: build/bin/resolve  ## start the stage that is due
	@$< next

# what grades the chapters is graded itself
HARNESS := tests/support/harness.c tests/support/harness.h Makefile
build/harness/sample build/harness/sample-early: tests/tool/sample.c $(HARNESS)
	@mkdir -p $(@D)
	@$(CC) $(CFLAGS) $(CHECK_CFLAGS) $(if $(findstring early,$@),-DEARLY) \
	    -Wl,--wrap=_mark_point -Itests $(filter %.c,$^) $(CHECK_LIBS) -o $@
build/harness/suite_harness: tests/tool/suite_harness.c $(HARNESS)
	@mkdir -p $(@D)
	@$(CC) $(CFLAGS) $(CHECK_CFLAGS) -Itests $(filter %.c,$^) $(CHECK_LIBS) \
	    -o $@
.PHONY: harness-check
harness-check: build/harness/suite_harness build/harness/sample \
    build/harness/sample-early  ## the harness of the suites, graded itself
	@$< --program build/harness/sample

# The re-solve tool is tangled by the tangler. It is told how attempts are
# compiled and linked; a file that a tangle leaves as it was is not compiled
# again.
RESOLVE_NW := $(wildcard book/[CDE]-*.nw)
build/tool/resolve.files: $(RESOLVE_NW) $(TANGLE)
	@mkdir -p $(@D)
	@$(TANGLE) --lines --out build/tool $(RESOLVE_NW) > $@
RESOLVE := build/bin/resolve
ATTEMPT_CFLAGS := -std=c11 -D_POSIX_C_SOURCE=200809L -g -O1 -fopenmp-simd \
    -Wall -Wextra -Wno-unused -Wno-unused-parameter \
    $(if $(findstring clang,$(CC)),,-Wno-maybe-uninitialized \
    -fmax-errors=20) \
    -Werror=implicit-function-declaration -Werror=implicit-int \
    -Werror=incompatible-pointer-types -Werror=int-conversion \
    -Werror=return-type
RESOLVE_CFLAGS := $(TOOL_CFLAGS) $(CHECK_CFLAGS) -Ibuild/tool -Ibuild/plain \
    -DRESOLVE_CC='"$(CC)"' -DRESOLVE_CFLAGS='"$(ATTEMPT_CFLAGS)"' \
    -DRESOLVE_WRAP='"$(WRAP)"' -DRESOLVE_CHECK_LIBS='"$(CHECK_LIBS)"' \
    -DRESOLVE_LIBS='"$(LDLIBS)"'
OWN_O := $(addprefix build/tool/resolve/,$(addsuffix .o,workshop process \
    stages pieces contract bench attempt fence grade verdict command_grade \
    reveal clock log calendar score summary progress page frame screen saves \
    grader watch resolve))
BLANK_O := $(addprefix build/tool/resolve/,blank_suite.o blank_program.o)
RESOLVE_O := $(OWN_O) build/tool/resolve/front_matter.o \
    build/tool/resolve/routing.o
build/tool/resolve/%.c: build/tool/resolve.files ;
build/plain/%.c build/plain/%.h: build/plain.files ;
.PRECIOUS: build/tool/resolve/%.c build/plain/%.c
$(OWN_O) $(BLANK_O): %.o: %.c Makefile | build/plain.files
	@$(CC) $(RESOLVE_CFLAGS) -MMD -c $< -o $@
build/tool/resolve/front_matter.o: build/tool/tangle/front_matter.c \
    | build/tool/resolve.files
	@$(CC) $(RESOLVE_CFLAGS) -MMD -c $< -o $@
build/tool/resolve/routing.o: build/plain/routing.c | build/tool/resolve.files
	@$(CC) $(RESOLVE_CFLAGS) -MMD -c $< -o $@
$(RESOLVE): $(RESOLVE_O) $(BLANK_O)
	@mkdir -p $(@D)
	@$(CC) $(TOOL_CFLAGS) $(RESOLVE_O) -lcjson -lyaml -o $@.new && \
	    mv $@.new $@
-include $(wildcard build/tool/resolve/*.d)

# Its suites link the modules that they test; what those complain of, they
# collect.
SCORE_O := $(addprefix build/tool/resolve/,$(addsuffix .o,workshop clock log \
    calendar score summary progress page))
TOOL_SUITES := build/tool/suite_score build/tool/suite_progress
$(TOOL_SUITES): build/tool/%: tests/tool/%.c tests/tool/scripted.c \
    tests/tool/scripted.h tests/support/harness.c $(SCORE_O)
	@$(CC) $(RESOLVE_CFLAGS) -Itests -Ibuild/tool/resolve \
	    -Wl,--wrap=complain $(filter %.c %.o,$^) $(CHECK_LIBS) $(LDLIBS) -o $@
# the watching screen: its picture, and the program on a terminal
WATCH_SUITES := build/tool/suite_frame build/tool/suite_watch
$(WATCH_SUITES): build/tool/%: tests/tool/%.c tests/tool/scripted.c \
    tests/tool/scripted.h tests/support/harness.c $(RESOLVE_O)
	@$(CC) $(RESOLVE_CFLAGS) -Itests -Ibuild/tool/resolve \
	    -Wl,--wrap=complain $(filter-out %/resolve.o,$(filter %.c %.o,$^)) \
	    $(CHECK_LIBS) $(LDLIBS) -lyaml -o $@
build/tool/deaf.so: tests/tool/deaf.c
	@mkdir -p $(@D)
	@$(CC) $(TOOL_CFLAGS) -shared -fPIC $< -o $@
# the checker of checkpoints, on models and records that are right and wrong
CHECKER := $(addprefix tests/support/,$(addsuffix .c,harness program compare \
    golden))
build/tool/suite_checkpoint: tests/tool/suite_checkpoint.c $(CHECKER) compile
	@mkdir -p $(@D)
	@$(CC) $(CFLAGS) $(CHECK_CFLAGS) -Itests -Ibuild/$(LAST)/src \
	    $(filter %.c,$^) build/$(LAST)/libtinygpt.a $(CHECK_LIBS) $(LDLIBS) \
	    -o $@
.PHONY: tool-check
tool-check: $(TOOL_SUITES) $(WATCH_SUITES) $(RESOLVE) build/tool/deaf.so \
    build/tool/suite_checkpoint build/bin/check_checkpoint  ## the suites of the tools
	+@$(ONE)=5 suites program
	@for s in $(TOOL_SUITES) $(WATCH_SUITES); do \
	    $$s --program $(RESOLVE) --chunks build/tool/.places || exit 1; done
	@build/tool/suite_checkpoint --program build/bin/check_checkpoint

# From end to end: the tool as a process, on the book and the suites as they
# are. Under make -j several of these suites run at once.
ENDS := wrong blank hostile loop kill
ENDS_O := $(addprefix build/tool/resolve/,$(addsuffix .o,workshop process \
    stages clock log calendar score front_matter))
build/tool/ends_%: tests/tool/suite_ends_%.c tests/tool/ends.c \
    tests/tool/ends.h $(HARNESS) $(RESOLVE)
	@$(CC) $(TOOL_CFLAGS) $(CHECK_CFLAGS) -Itests -Ibuild/tool \
	    -Ibuild/tool/resolve $(filter %.c,$^) $(ENDS_O) $(CHECK_LIBS) \
	    -lyaml $(LDLIBS) -o $@
.PHONY: ends-suites ends-check
ends-suites: $(RESOLVE)
	+@for n in $(STAGES); do $(ONE)=$$n suites program || exit 1; done
build/tool/ends_%.passed: build/tool/ends_% ends-suites
	@$< --program $(RESOLVE) --timeout 1800 > $@.log || \
	    { cat $@.log; rm -f $@; exit 1; }
	@mv $@.log $@
ends-check: $(ENDS:%=build/tool/ends_%.passed)  ## the re-solve tool, used
	@cat $^

build/plain.files: $(NW) $(TANGLE)
	@$(TANGLE) --out build/plain $(NW) > $@
tangled: build/plain.files  ## write the whole book as plain C into tangled/
	@mkdir -p tangled; cd tangled && find . -type f | sed 's|^\./||' | \
	    { grep -vxF -f ../build/plain.files || true; } | xargs -r rm -f
	@while read -r f; do cmp -s build/plain/$$f tangled/$$f || \
	    install -D -m 644 build/plain/$$f tangled/$$f; \
	    done < build/plain.files
check-tangled: build/plain.files  ## fail when tangled/ is not what the book says
	@while read -r f; do cmp build/plain/$$f tangled/$$f || exit 1; \
	    done < build/plain.files
	@cd tangled && extra=$$(find . -type f | sed 's|^\./||' | \
	    grep -vxF -f ../build/plain.files); \
	    [ -z "$$extra" ] || { echo "not of the book: $$extra"; exit 1; }
	@echo "tangled/ is what the book says"

-include book/weave.mk

clean:  ## remove build/
	rm -rf build
help:  ## this list
	@sed -n 's/^\([a-z%-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | \
	    expand -t 18
endif
