#!/bin/sh
# Sets up and builds the book: ./build.sh, or ./build.sh help.
set -u
cd "$(dirname "$0")" || exit 1

TOOLS="gcc libc6-dev make noweb check pkg-config libcjson-dev libpcre2-dev
 libyaml-dev"
WEAVING="pandoc texlive-xetex texlive-latex-recommended texlive-latex-extra
 texlive-plain-generic texlive-fonts-recommended fonts-dejavu fonts-texgyre
 fonts-texgyre-math lmodern librsvg2-bin
 graphviz gnuplot-nox"
GRADING="clang valgrind gcovr tidy libclang-rt-14-dev libomp-14-dev chromium poppler-utils"

usage() {
    cat <<'TEXT'
./build.sh            install what is missing, then tangle, compile, test and weave
./build.sh check      install what the tests need, then run every suite
./build.sh install    only install (add "all" for what only the checks need)
./build.sh help       this text

NO_INSTALL=1 ./build.sh …   never install; say what is missing and stop

When it is set up, make does the rest: make help lists its targets.
TEXT
}

step() {  # step "what it does" command...
    what=$1; shift
    log=build/log/$(printf '%s' "$what" | tr -cs 'A-Za-z0-9' '-').log
    mkdir -p build/log
    printf '%-52s' "$what"
    began=$(date +%s)
    if "$@" > "$log" 2>&1; then
        printf ' done, %s s\n' $(($(date +%s) - began))
    else
        status=$?
        printf ' FAILED (status %s)\n\n' "$status"
        tail -n 60 "$log"
        printf '\nThe step "%s" failed. Its whole output is in %s.\n' \
            "$what" "$log" >&2
        exit 1
    fi
}

missing() {  # prints those of the packages that are not installed
    for package in "$@"; do
        dpkg-query -W -f='${Status}' "$package" 2>/dev/null |
            grep -q 'install ok installed' || printf '%s ' "$package"
    done
}

explain_other_systems() {
    cat >&2 <<'TEXT'
This system has no apt. Install these, then run NO_INSTALL=1 ./build.sh:

  Fedora   dnf install gcc make noweb check-devel pkgconf cjson-devel pcre2-devel \
             libyaml-devel pandoc texlive-xetex texlive-collection-latexextra \
             dejavu-sans-mono-fonts texlive-tex-gyre librsvg2-tools graphviz gnuplot
  Arch     pacman -S gcc make check pkgconf cjson pcre2 libyaml pandoc-cli \
             texlive-xetex texlive-latexextra ttf-dejavu librsvg graphviz gnuplot
             and noweb from the AUR
  openSUSE zypper install gcc make noweb check-devel pkg-config cJSON-devel pcre2-devel \
             libyaml-devel pandoc texlive-xetex texlive-latexextra \
             dejavu-fonts rsvg-convert graphviz gnuplot
  macOS    brew install noweb check pkg-config cjson pcre2 libyaml pandoc librsvg \
             graphviz gnuplot make && brew install --cask mactex font-dejavu
TEXT
    exit 1
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo > /dev/null; then
        sudo "$@"
    else
        echo "installing needs root or sudo: $*" >&2
        return 1
    fi
}

apt_install() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q &&
        as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -q --no-install-recommends "$@"
}

install_packages() {
    if ! command -v apt-get > /dev/null; then
        [ -n "${NO_INSTALL:-}" ] && return   # the build will say what it misses
        explain_other_systems
    fi
    # shellcheck disable=SC2046,SC2086
    set -- $(missing $1)
    if [ $# -eq 0 ]; then
        return
    elif [ -n "${NO_INSTALL:-}" ]; then
        echo "missing packages, and NO_INSTALL is set: $*" >&2
        exit 1
    fi
    echo "packages to install: $*"
    step "install $# packages" apt_install "$@"
}

JOBS=-j$(nproc 2>/dev/null || echo 2)

case ${1:-all} in
all)
    install_packages "$TOOLS $WEAVING"
    step "tangle the book into tangled/" make tangled
    step "compile the program and its suites" make "$JOBS" compile
    step "run every suite" make "$JOBS" check
    step "weave the book (HTML and PDF)" make "$JOBS" book
    grep passed build/log/run-every-suite.log | sort -u
    cat <<'TEXT'

The book:   build/html/index.html
            build/pdf/tiny-gpt-literately.pdf
Next:       make chapter-1
TEXT
    ;;
check)
    install_packages "$TOOLS"
    step "tangle and compile the book" make "$JOBS" compile
    step "run every suite" make "$JOBS" check
    grep passed build/log/run-every-suite.log | sort -u
    ;;
install)
    case ${2:-} in
    all) install_packages "$TOOLS $WEAVING $GRADING" ;;
    '')  install_packages "$TOOLS $WEAVING" ;;
    *)   usage >&2; exit 2 ;;
    esac
    ;;
help|-h|--help) usage ;;
*)
    echo "./build.sh: unknown command $1" >&2
    usage >&2
    exit 2 ;;
esac
