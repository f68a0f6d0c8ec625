# Acceptance and tokens a call against K; see 12-acceptance.awk.
set terminal svg size 680,320 font "Helvetica,12"
set print $measured
print system("seq 8 | OMP_NUM_THREADS=1 xargs -n 1 -P $(nproc) ".\
             "awk -f figures/12-acceptance.awk | sort -n")
unset print
set border 3 lc rgb "#888888"; set tics nomirror
set xlabel "K, proposals a round"; set xrange [0.7:8.3]; set xtics 1
set grid y lc rgb "#cccccc"
set multiplot layout 1,2
set ylabel "proposals accepted, %"; set yrange [0:100]
set key bottom left
plot $measured using 1:2 with linespoints pt 7 ps 0.6 lw 2 lc rgb "#3b6ea5" title "temperature 0", \
     '' using 1:4 with linespoints pt 7 ps 0.6 lw 2 lc rgb "#8a9a5b" title "0.5", \
     '' using 1:6 with linespoints pt 7 ps 0.6 lw 2 lc rgb "#c8553d" title "1"
set ylabel "tokens a call of the target"; set yrange [0:6]
unset key
plot $measured using 1:3 with linespoints pt 7 ps 0.6 lw 2 lc rgb "#3b6ea5", \
     '' using 1:5 with linespoints pt 7 ps 0.6 lw 2 lc rgb "#8a9a5b", \
     '' using 1:7 with linespoints pt 7 ps 0.6 lw 2 lc rgb "#c8553d"
unset multiplot
