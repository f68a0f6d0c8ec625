# Bytes of keys and values that one decoded token reads and writes, against
# the context, for GPT-2's smallest shape.
set terminal svg size 640,340 font "Helvetica,12"
set xlabel "context, tokens"
set ylabel "MB a token"
set border 3 lc rgb "#888888"; set tics nomirror
set logscale y; set yrange [0.03:300]; set xrange [0:1088]; set xtics 128
set grid y lc rgb "#cccccc"
set key center right
plot '< tinygpt cache --config figures/01-gpt2-small.json' \
       using 1:($2/1e6) skip 1 with lines lw 6 lc rgb "#d8d8d8" title "read by attention, in both", \
     '' using 1:($3/1e6) skip 1 with linespoints pt 7 ps 0.6 lw 2 lc rgb "#c8553d" title "written by the functional cache", \
     '' using 1:($4/1e6) skip 1 with linespoints pt 7 ps 0.6 lw 2 lc rgb "#3b6ea5" title "written in place"
