# Who sits in which slot, step by step, by both rules. A column after the
# other: rule, slot, request, and the steps where the prompt begins, the
# answer begins, the waiting begins, and all ends.
set terminal svg size 640,380 font "Helvetica,12"
set border 3 lc rgb "#888888"; set tics nomirror
run = "tinygpt batching --requests 16 --slots 4 --budget 16 --prompt 24 --mean 16 --seed 6 --timeline"
last = real(system(run . " | awk '$7 > end { end = $7 } END { print end }'"))
set xrange [0:last + 1]; set yrange [3.5:-0.5]; set ytics 1
set ylabel "slot"; set style fill solid border lc rgb "#ffffff"
unset key
set multiplot layout 2,1
do for [r = 0:1] {
    set title (r == 0 ? "waits for the longest of four" : "handed on at once")
    if (r == 1) { set xlabel "step" }
    rows = sprintf("< %s | grep '^%d'", run, r)
    plot rows using 6:2:6:7:($2-0.36):($2+0.36) with boxxyerror lc rgb "#cccccc", \
         rows using 5:2:5:6:($2-0.36):($2+0.36) with boxxyerror lc rgb "#8fb3d6", \
         rows using 4:2:4:5:($2-0.36):($2+0.36) with boxxyerror lc rgb "#3b6ea5", \
         rows using (($5+$6)/2):($6-$5 > 2 ? $2 : NaN):3 with labels font ",10"
}
unset multiplot
