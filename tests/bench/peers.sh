#!/bin/bash
# tests/bench/peers.sh DIRECTORY ROUNDS: measures this program and what else
# can compute the same, in turns, and prints medians side by side. What is not
# installed is skipped, and said so. BENCH_RUN goes before each command.
set -u -o pipefail
here=$(dirname "$0") out=$1 rounds=$2
program=build/bin/tinygpt
mkdir -p "$out"
: > "$out/peers.lines"
export GLIBC_TUNABLES=glibc.malloc.hugetlb=1    # 2 MiB pages for all of them

compile() {  # compile NAME FLAGS... : a program of the products
    local name=$1; shift
    ${CC:-gcc} -std=c11 -O2 "$here/products.c" -o "$out/$name" "$@" \
        > "$out/$name.log" 2>&1
}
products=
compile kernels -Ibuild/"$LAST"/src build/"$LAST"/libtinygpt.a $LIBS &&
    products="kernels"
for one in openblas:-DOPENBLAS:-lopenblas onednn:-DONEDNN:-ldnnl; do
    IFS=: read -r name flag library <<< "$one"
    if compile "$name" "$flag" "$library"; then products="$products $name"
    else echo "skipped: $name (no $library to link with)"; fi
done
torch=
for python in ${PYTHON:-/usr/bin/python3 python3}; do
    [ -n "$torch" ] || ! "$python" -c 'import torch' 2> /dev/null ||
        torch=$python
done
[ -n "$torch" ] || echo "skipped: PyTorch (no python3 that imports torch)"
what=${WHAT:-decode,prefill,batch,train}

ours() {  # ours THREADS: the program's own JSON as lines
    ${BENCH_RUN:-} "$program" bench --threads "$1" --repeats 1 --json \
        --what "$what" | awk '
        function number(name) {
            if (!match($0, "\"" name "\": [-+.0-9e]+")) return 0
            return substr($0, RSTART + length(name) + 4,
                          RLENGTH - length(name) - 4)
        }
        /"bytes_rounds"/ {
            print "limit bytes", number("threads"), number("bytes_per_second")
            print "limit flops", number("threads"), number("flops_per_second")
        }
        match($0, /"what": "[a-z]+"/) {
            print "tinygpt", substr($0, RSTART + 9, RLENGTH - 10),
                number("threads"), number("slots"), number("tokens"),
                number("context"), number("seconds")
        }'
}

for round in $(seq "$rounds"); do
    for threads in 1 2; do
        [ ! -t 2 ] || printf '\r\033[Kround %d of %d, %d threads' "$round" \
            "$rounds" "$threads" >&2
        ours "$threads"
        for name in $products; do
            OMP_NUM_THREADS=$threads OPENBLAS_NUM_THREADS=$threads \
                ${BENCH_RUN:-} "$out/$name" "$threads" 1 64 512 1024
        done
        # its two pools of threads spin against each other unless they sleep
        [ -z "$torch" ] || OMP_NUM_THREADS=$threads OMP_WAIT_POLICY=passive \
            OPENBLAS_NUM_THREADS=$threads ${BENCH_RUN:-} "$torch" \
            "$here/torch_peer.py" "$threads" ${what//,/ }
    done >> "$out/peers.lines"
done
[ ! -t 2 ] || printf '\r\033[K' >&2
awk -f "$here/peers.awk" "$out/peers.lines" | tee "$out/peers.txt"
