# From the plain loops to the limit: tokens a second of a decode and of a
# prompt, one rung for each improvement. The numbers are in $BENCH, or in
# figures/.
set terminal svg size 640,430 font "Helvetica,12"
set border 3 lc rgb "#888888"; set tics nomirror
set ylabel "tokens/s"; set logscale y; set yrange [10:6000]
set xrange [-0.6:8.6]; set grid y lc rgb "#dddddd"
set xtics ("plain" 0, "4 lanes" 1, "8 lanes" 2, "16 lanes" 3, "panels" 4, "2 threads" 5, "16 bits" 6, "8 bits" 7, "8 slots" 8)
set key top left
dir = system("echo ${BENCH:-figures}")
json(name) = dir . "/21c-" . name . ".json"
like(what, weights, kernels, size, t) = "\"what\": \"" . what . "\", \"weights\": \"" . weights . "\", " . kernels . size . ", \"threads\": " . t
row(file, text) = system("awk -v like='" . text . "' -f figures/21c-rows.awk " . json(file))
number(text) = strlen(text) > 0 ? real(text) : NaN
of(file, what, weights, kernels, size, t) = number(word(row(file, like(what, weights, kernels, size, t)), 2))
on(name) = "\"kernels\": \"" . name . "\", "
ladder(what, size, k) = \
    k == 0 ? of("ladder", what, "rows", on("plain"), size, 1) : \
    k == 1 ? of("ladder", what, "rows", on("base"), size, 1) : \
    k == 2 ? of("ladder", what, "rows", on("avx2"), size, 1) : \
    k == 3 ? of("ladder", what, "rows", on("avx512"), size, 1) : \
    k == 4 ? of("bench", what, "f32", "", size, 1) : \
    k == 5 ? of("bench", what, "f32", "", size, 2) : \
    k == 6 ? of("bench", what, "bf16", "", size, 2) : \
    k == 7 ? of("bench", what, "int8", "", size, 2) : \
    of("bench", "batch", "f32", "", "\"context\": 64", 2)
decode(k) = ladder("decode", "\"context\": 64", k)
prompt(k) = ladder("prefill", "\"tokens\": 512", k)
set print $steps
do for [k=0:8] { print sprintf("%d %g", k, decode(k)) }
set print $prompts
do for [k=0:7] { print sprintf("%d %g", k, prompt(k)) }
unset print
set boxwidth 0.36; set style fill solid 0.85 noborder
plot $prompts using ($1 - 0.19):2 with boxes lc rgb "#3b6ea5" title "a prompt of 512", \
     $steps using ($1 + 0.19):2 with boxes lc rgb "#c8553d" title "decoding behind 64", \
     $prompts using ($1 - 0.19):($2 * 1.13):(sprintf("%.0f", $2)) with labels font ",9" notitle, \
     $steps using ($1 + 0.19):($2 * 1.13):(sprintf("%.0f", $2)) with labels font ",9" notitle
