#!/bin/bash
# tests/bench/build.sh DIRECTORY STAGE... [weave]: from an edit to a verdict.
# Works on a copy of the book, and prints for each chapter
#
#   cold   nothing is there: tangle, compile, link, run the suite
#   warm   nothing has changed
#   edit   a comment was written into one chunk; of that, to tangle, to compile
#          and link, and to run the suite
#
# in seconds, then the tangle of the whole book, and its weave when asked.
set -u -o pipefail
copy=$1; shift
rm -rf "$copy"
mkdir -p "$copy"
git ls-files -z -co --exclude-standard | xargs -0 cp --parents -t "$copy"
cd "$copy" || exit 1
unset MAKEFLAGS MAKELEVEL MFLAGS
TIMEFORMAT=%R

seconds() {  # seconds FILE command...: into FILE; ends the script on failure
    local file=$1; shift
    { time "$@" > log 2>&1 || failed=1; } 2> "$file"
    [ -z "${failed:-}" ] || { echo "failed: $*" >&2; tail -20 log >&2; exit 1; }
    tail -n 1 "$file"
}

edit() {  # edit CHAPTER WORD: a comment into a chunk that a reader would edit
    local file chunk
    file=$(ls book/"$(printf %02d "$1")"-*.nw | head -n 1)
    chunk=$(awk 'NR == FNR {
            if (/^blanks:/) on = 1
            else if (/^[a-z]/) on = 0
            else if (on && sub(/^  - (chunk: )?/, "")) blank["<<" $0 ">>="]
            next
        }
        $0 in blank { found = $0; exit }
        /^<<[^.\/]*>>=$/ && !/<<wrong, / && !/ of later chapters/ { last = $0 }
        END { print found != "" ? found : last }' "$file" "$file")
    awk -v chunk="$chunk" -v word="$2" '{ print }
        $0 == chunk && !done { print "/* " word " */"; done = 1 }' \
        "$file" > new && mv new "$file"
}

printf '%-7s  %6s  %6s  %6s  = %6s + %7s + %6s\n' chapter cold warm edit \
    tangle compile suites
seconds time.log make tools > log.time || exit 1
for n in "$@"; do
    [ "$n" != weave ] || continue
    rm -rf build/"$n"
    cold=$(seconds time.log make chapter-"$n") || exit 1
    warm=$(seconds time.log make chapter-"$n") || exit 1
    edit "$n" first
    all=$(seconds time.log make chapter-"$n") || exit 1
    edit "$n" second
    tangle=$(seconds time.log make N="$n" build/"$n"/files.mk) || exit 1
    compile=$(seconds time.log make N="$n" suites program) || exit 1
    suites=$(seconds time.log make N="$n" verdict) || exit 1
    printf '%-7s  %6.2f  %6.2f  %6.2f  = %6.2f + %7.2f + %6.2f\n' "$n" \
        "$cold" "$warm" "$all" "$tangle" "$compile" "$suites"
done

line() {  # line "what" command...
    local took
    took=$(seconds time.log "${@:2}") || exit 1
    printf '%-44s %6.2f\n' "$1" "$took"
}
rm -rf build/plain build/plain.files
echo
line 'tangle, the whole book' make tangled
[ "${*: -1}" = weave ] || exit 0
if ! command -v pandoc > log || ! command -v xelatex > log; then
    echo "skipped: the weave (no pandoc, or no xelatex)"
    exit 0
fi
make compile > log 2>&1
weave='WEAVE_NEEDS=compile'
for turn in 'from nothing' 'again, after one edit'; do
    [ "$turn" = 'from nothing' ] || edit 5 third
    line "weave, $turn: commands, figures" make build/weave/stamp $weave
    line 'weave, HTML pages' make html $weave
    line 'weave, PDF' make pdf $weave
done
