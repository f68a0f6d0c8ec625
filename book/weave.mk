# Weaving: the chapters become build/html/ and build/pdf/. Included by the
# Makefile at the top, which gives NW, CC, WARNINGS.
#
#   markup | weave  ->  build/weave/md/*.md     once for the whole book
#   pandoc          ->  build/html/*.html       once for each page that changed
#   pandoc          ->  build/weave/tex/*.tex   likewise
#   xelatex         ->  build/pdf/…             until the page numbers stand

BOOK_TITLE  ?= Tiny GPT, literately
BOOK_PDF    := build/pdf/tiny-gpt-literately.pdf
# what must be up to date before commands in the pages run; may be empty
WEAVE_NEEDS ?= check
WEAVE_FLAGS ?=
MARKUP      ?= /usr/lib/noweb/markup
PANDOC      ?= pandoc
XELATEX     ?= xelatex

weave_pages := $(patsubst book/%.nw,%,$(NW)) chunks identifiers
weave_html  := $(addprefix build/html/,$(addsuffix .html,index $(weave_pages)))
weave_tex   := $(addprefix build/weave/tex/,$(addsuffix .tex,$(weave_pages)))
weave_style := build/html/book.css build/html/book.js
weave_nw    := $(shell grep -l '^<<weave/' $(NW) /dev/null)
weave_lua   := build/tool/weave/weave.lua

.PHONY: html pdf book check-links weave-force
book: pdf html  ## weave the HTML pages and the PDF
html: $(weave_html) $(weave_style)  ## weave the HTML pages: build/html/
	@for f in build/html/*.html; do case " $(weave_html) " in \
	    *" $$f "*) ;; *) rm -f "$$f" ;; esac; done
pdf: $(BOOK_PDF)  ## weave the PDF: build/pdf/

# the weaver itself: notangle touches a file only when its text has changed
build/tool/weave/%: $(weave_nw)
	@mkdir -p $(@D)
	@notangle -Rweave/$* $(weave_nw) > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi
build/bin/weave build/bin/checklinks: build/bin/%: build/tool/weave/%.c
	@mkdir -p $(@D)
	@$(CC) -std=c11 -D_POSIX_C_SOURCE=200809L -O1 -g $(WARNINGS) $< \
	    $(if $(filter weave,$*),-lyaml) -o $@.new && mv $@.new $@
.PRECIOUS: build/tool/weave/%

# The weaver runs at every weave: it takes a fraction of a second, and knows
# by content which pages and which command outputs are still good.
build/weave/stamp: weave-force build/bin/weave $(NW) | $(WEAVE_NEEDS)
	@mkdir -p $(@D)
	@$(MARKUP) $(NW) > build/weave/stream.new
	@mv build/weave/stream.new build/weave/stream
	@build/bin/weave $(WEAVE_FLAGS) -o build -t '$(BOOK_TITLE)' \
	    < build/weave/stream
	@touch $@
weave-force: ;
build/weave/md/%.md: build/weave/stamp ; @test -f $@
build/weave/book.tex: build/weave/stamp ; @test -f $@
.PRECIOUS: build/weave/md/%.md build/weave/tex/%.tex

weave_markdown := markdown-auto_identifiers-implicit_figures-tex_math_single_backslash
weave_pandoc = $(PANDOC) -f $(weave_markdown) --no-highlight \
    --fail-if-warnings --lua-filter=$(weave_lua)

build/html/%.html: build/weave/md/%.md book/style/page.html $(weave_lua)
	@$(weave_pandoc) -t html5 --mathml --toc --toc-depth=3 \
	    --template=book/style/page.html $< -o $@.new && mv $@.new $@
$(weave_style): build/html/%: book/style/%
	@mkdir -p $(@D)
	@cp $< $@
# XeLaTeX takes longest: where both are woven, what it reads comes first
ifneq ($(filter all book,$(or $(MAKECMDGOALS),all)),)
$(weave_html): | $(weave_tex)
endif
build/weave/tex/%.tex: build/weave/md/%.md $(weave_lua)
	@$(weave_pandoc) -t latex --top-level-division=chapter $< -o $@.new \
	    && mv $@.new $@

# XeLaTeX runs until its cross references stand still. A glyph that no font
# has, a line of code cut at the margin, a blank form that is no page and a dead
# reference are failures.
weave_log := build/weave/pdf/book.log
$(BOOK_PDF): $(weave_tex) build/weave/book.tex book/style/book.tex
	@mkdir -p build/pdf build/weave/pdf build/weave/fig
	@for p in $$(cat $(weave_tex) | \
	    sed -n 's/.*\\nwfigure{[^}]*}{\(build.weave.fig.[^}%]*\)}.*/\1/p'); do \
	    f=build/html/fig/$$(basename $$p .pdf).svg; \
	    if [ ! $$p -nt $$f ]; then \
	        rsvg-convert -f pdf -o $$p $$f || exit 1; fi; done
	@seen() { cat build/weave/pdf/book.aux build/weave/pdf/book.toc \
	        2>/dev/null | cksum; }; \
	for pass in 1 2 3 4 5; do \
	    before=$$(seen); \
	    max_print_line=999 $(XELATEX) -no-pdf -halt-on-error \
	        -interaction=nonstopmode -file-line-error \
	        -output-directory=build/weave/pdf build/weave/book.tex \
	        > build/weave/pdf/out.txt < /dev/null || { \
	        grep -A6 -E '^(!|[^ ]+:[0-9]+: )' $(weave_log) | head -20; \
	        rm -f build/weave/pdf/book.aux; exit 1; }; \
	    [ "$$before" = "$$(seen)" ] && break; done; true
	@! grep -hE 'Missing character|code line too wide|blank form too long|Reference .* undefined|multiply.defined|Rerun to get' \
	    $(weave_log) >&2
	@xdvipdfmx -q -o $@.new build/weave/pdf/book.xdv && mv $@.new $@

check-links: html build/bin/checklinks  ## every link resolves; valid HTML
	@build/bin/checklinks $(weave_html)
	@failed=0; for f in $(weave_html); do \
	    tidy -q -e --drop-empty-elements no $$f 2>&1 | \
	    grep -v 'proprietary attribute "aria-current"' | \
	    sed "s|^|$$f: |" | grep . >&2 && failed=1; done; \
	    exit $$failed

# The pages are driven in a browser and the forms are counted: tests/pages/.
# A small book of its own stands in for a chapter in parts.
CHROMIUM   ?= $(firstword $(notdir $(wildcard $(addprefix /usr/bin/,chromium \
    chromium-browser google-chrome))) chromium)
pages_nw   := $(wildcard tests/pages/*.nw)
pages_all  := $(patsubst tests/pages/%.nw,%,$(pages_nw)) chunks identifiers
.PHONY: check-pages
build/pages/stamp: $(pages_nw) build/bin/weave $(weave_lua) \
        $(wildcard book/style/*)
	@mkdir -p build/pages/pdf
	@$(MARKUP) $(pages_nw) | build/bin/weave -n -o build/pages -t 'Parts'
	@cd build/pages && for p in index $(pages_all); do \
	    m=weave/md/$$p.md; lua=--lua-filter=$(CURDIR)/$(weave_lua); \
	    $(PANDOC) -f $(weave_markdown) --no-highlight $$lua -t html5 \
	        --mathml --template=$(CURDIR)/book/style/page.html $$m \
	        -o html/$$p.html && \
	    $(PANDOC) -f $(weave_markdown) --no-highlight $$lua -t latex \
	        --top-level-division=chapter $$m -o weave/tex/$$p.tex || exit 1; \
	    done; cp $(CURDIR)/book/style/book.css $(CURDIR)/book/style/book.js html
	@for pass in 1 2; do $(XELATEX) -halt-on-error -interaction=nonstopmode \
	    -output-directory=build/pages/pdf build/pages/weave/book.tex \
	    > build/pages/pdf/out.txt < /dev/null || \
	    { tail -n 20 build/pages/pdf/out.txt; exit 1; }; done
	@mv build/pages/pdf/book.pdf build/pages/parts.pdf
	@touch $@
check-pages: html pdf build/pages/stamp  ## the pages in a browser, the forms
	@CHROMIUM='$(CHROMIUM)' tests/pages/check.sh $(BOOK_PDF)
