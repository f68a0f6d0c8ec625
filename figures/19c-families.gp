# The loss of a training batch by step, for three families of equal sizes.
set terminal svg size 640,320 font "Helvetica,12"
set xlabel "step"
set ylabel "loss of the batch, nats a byte"
set border 3 lc rgb "#888888"; set tics nomirror
set xrange [0:300]; set yrange [1.5:5.6]
set grid y lc rgb "#cccccc"
set key top right
# the mean of the last twenty, and the three trainings side by side
dir = system("export OMP_NUM_THREADS=1; dir=$(mktemp -d); for f in gpt llama mixtral; do ".\
    "tinygpt train --text README.md --family $f --context 32 --d-model 32 ".\
    "--layers 2 --steps 300 --json --out $dir/$f 2> /dev/null | ".\
    "awk -F'[:,]' '/learning_rate/ { s += $4; n++; ".\
    "if (n > 20) s -= old[n - 20]; old[n] = $4; ".\
    "print $2, s / (n < 20 ? n : 20) }' > $dir/$f.loss & done; ".\
    "wait; echo $dir")
plot dir."/gpt.loss" with lines lw 2 lc rgb "#888888" title "gpt", \
     dir."/llama.loss" with lines lw 2 lc rgb "#3b6ea5" title "llama", \
     dir."/mixtral.loss" with lines lw 2 lc rgb "#c8553d" title "mixtral"
unused = system("rm -r ".dir)
