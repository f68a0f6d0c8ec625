#!/bin/bash
# What the woven pages and the printed forms promise. Runs at the top of the
# book, after `make html pdf`; `make check-pages` does all of it. Ends with one
# line: N passed, N failed.
cd "$(dirname "$0")/../.." || exit 1
BROWSER=${CHROMIUM:-chromium}
BOOK=${1:-build/pdf/tiny-gpt-literately.pdf}
passed=0 failed=0
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT

for tool in "$BROWSER" pdftotext pdfinfo; do
    command -v "$tool" > /dev/null || {
        echo "check-pages needs $tool: ./build.sh install all" >&2; exit 1; }
done

check() {  # check "what" command...
    local what=$1; shift
    if "$@"; then passed=$((passed + 1)); else
        failed=$((failed + 1)); echo "FAILED: $what"; fi
}

# A profile of its own, so that no run sees what another has stored. A browser
# that runs as root has no sandbox.
browser() {
    local root=
    [ "$(id -u)" -eq 0 ] && root=--no-sandbox
    timeout 300 "$BROWSER" --headless=new $root --disable-gpu --no-first-run \
        --user-data-dir="$scratch/profile" --allow-file-access-from-files \
        "$@" 2> "$scratch/browser.log"
}

# ------------------------------------------------------------- in a browser
pages() {
    local verdict
    browser --dump-dom --virtual-time-budget=900000 \
        "file://$PWD/tests/pages/pages.html" > "$scratch/dump.html"
    sed -n '/<pre id="results">/,/<\/pre>/p' "$scratch/dump.html" |
        sed 's/<[^>]*>//g; s/&lt;/</g; s/&gt;/>/g; s/&amp;/\&/g' \
        > "$scratch/results"
    grep '^FAILED' "$scratch/results"
    verdict=$(grep '^pages: ' "$scratch/results")
    if [[ $verdict =~ ^pages:\ ([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
        passed=$((passed + BASH_REMATCH[1]))
        failed=$((failed + BASH_REMATCH[2]))
    else
        failed=$((failed + 1))
        echo "FAILED: no verdict from $BROWSER"
        tail -n 5 "$scratch/browser.log"
    fi
}

# ------------------------------------------------------------------- printed
# A copy of the page that stores something first, and says in its title how
# many chunks were folded when it was printed.
print_page() {  # print_page PAGE.html STORED OUT.pdf
    local page=$1 base
    base="file://$(cd "$(dirname "$page")" && pwd)/"
    {
        printf '<!DOCTYPE html><html lang="en"><head><base href="%s"><script>' \
            "$base"
        printf 'localStorage.clear();%s' "$2"
        printf 'addEventListener("beforeprint", function () { '
        printf 'document.title = "folded " + '
        printf 'document.querySelectorAll(".folded").length; });</script>'
        sed '1,/<head>/d' "$page"
    } > "$scratch/print.html"
    browser --no-pdf-header-footer --print-to-pdf="$3" \
        --virtual-time-budget=5000 "file://$scratch/print.html" > /dev/null
}

prints_everything() {  # prints_everything PAGE.html STAGE...
    local page=$1 stored= stage; shift
    for stage in "$@"; do
        stored+="localStorage.setItem(\"book-stage-$stage\", '{\"view\":true}');"
    done
    print_page "$page" "" "$scratch/plain.pdf"
    print_page "$page" "$stored" "$scratch/blank.pdf"
    pdfinfo "$scratch/plain.pdf" | grep -q '^Title: *folded 0$' || return
    pdfinfo "$scratch/blank.pdf" | grep -q '^Title: *folded [1-9]' || return
    pdftotext "$scratch/plain.pdf" "$scratch/plain.txt"
    pdftotext "$scratch/blank.pdf" "$scratch/blank.txt"
    ! grep -q 'show this one' "$scratch/blank.txt" || return
    cmp "$scratch/plain.txt" "$scratch/blank.txt"
}

holds() {  # holds WORD: the page printed last has it
    grep -qF -- "$1" "$scratch/blank.txt"
}

# --------------------------------------------------------------------- forms
# The page of a chapter's form, as text: the pages of the PDF that have the
# heading and the chapter's title; \f stands between two pages.
form_pages() {  # form_pages BOOK.txt "Chapter 5"
    awk -v RS='\f' -v chapter="$2" 'toupper($0) ~ /BLANK FORM/ &&
        index($0, chapter " ") { gsub(/\n/, " "); print }' "$1"
}

form_is_a_page() {  # form_is_a_page BOOK.txt CHAPTER.md: one for each stage
    local chapter want page pages stages
    chapter=$(sed -n 's/^\\nwchapter{\(.*\)}{\(.*\)}$/\1 \2/p' "$2")
    want=$(grep -c '^`\\nwformblank' "$2")
    form_pages "$1" "$chapter" > "$scratch/form"
    pages=$(wc -l < "$scratch/form")
    stages=$(grep -c '^\\nwformtitle' "$2")
    [ "$pages" -eq "$stages" ] ||
        { echo "$chapter: $pages forms for $stages stages"; return 1; }
    [ "$(grep -c 'Date.*First wrong' "$scratch/form")" -eq "$stages" ] ||
        { echo "$chapter: the last line is not on the page"; return 1; }
    page=$(grep -o '⟨' "$scratch/form" | wc -l)
    [ "$page" -eq "$want" ] ||
        { echo "$chapter: $page of $want blanks on the page"; return 1; }
}

forms() {  # forms BOOK.pdf DIRECTORY-OF-MARKDOWN
    local md count=0 all
    pdftotext "$1" "$scratch/book.txt"
    for md in "$2"/*.md; do
        grep -q '^\\nwformtitle' "$md" || continue
        count=$((count + $(grep -c '^\\nwformtitle' "$md")))
        check "the form of $md" form_is_a_page "$scratch/book.txt" "$md"
    done
    all=$(awk -v RS='\f' 'toupper($0) ~ /BLANK FORM/ && /First wrong/' \
        ORS='\f' "$scratch/book.txt" | tr -cd '\f' | wc -c)
    check "$1: a form for each stage with blanks, and no other" \
        [ "$all" -eq "$count" ]
}

pages
check "chapter 5 prints everything" prints_everything build/html/05-mask.html 5
check "chapter 5 prints its rule" holds 'j <= past + i'
check "chapter 6 prints everything" \
    prints_everything build/html/06-generation.html 6
check "a chapter in parts prints everything" \
    prints_everything build/pages/html/10-parts.html 10.1 10.2 10.3 10.4
check "a chapter in parts prints its blanks" holds FIXTURE_DROP_THE_OLDEST
forms "$BOOK" build/weave/md
forms build/pages/parts.pdf build/pages/weave/md

echo "check-pages: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
