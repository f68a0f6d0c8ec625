# How far each slip takes a generation from recomputation, step by step.
set terminal svg size 640,620 font "Helvetica,12"
set border 3 lc rgb "#888888"; set tics nomirror
set logscale y
set format y "10^{%L}"
set xrange [-1:64]; set xtics 8; set yrange [5e-4:60]
set grid y lc rgb "#cccccc"
set ylabel "largest difference of a logit"
set key at graph 0.99,0.41 maxrows 4 samplen 2 spacing 0.8
set ytics add ("0" 5e-4)
ids = "84,104,101,32,109,97,115,107,32"
slip(name) = "< tinygpt steps --model book/checkpoint --prompt-ids " . ids . \
    " --greedy 64 --all --slip " . name
# equal rows are drawn at the lower edge, where a logarithm has no zero
shown(x) = x > 5e-4 ? x : 5e-4
set multiplot layout 2,1
set title "counters and order" offset 0,-0.5
plot slip("late") using 1:(shown($3)) every ::1::64 with lines lw 2 lc rgb "#222222" title "recorded late", \
     slip("counter-0") using 1:(shown($3)) every ::1::64 with lines lw 2 lc rgb "#c8553d" title "position 0", \
     slip("counter-p") using 1:(shown($3)) every ::1::64 with linespoints pt 7 ps 0.4 lw 1 lc rgb "#5a9e5a" title "position P", \
     slip("counter-k") using 1:(shown($3)) every ::1::64 with linespoints pt 7 ps 0.4 lw 1 lc rgb "#3b6ea5" title "position k", \
     1e-3 with lines dt 2 lc rgb "#888888" notitle
set title "rows in the cache"
set xlabel "step"
plot slip("handoff-long") using 1:(shown($3)) every ::1::64 with lines lw 2 lc rgb "#c8553d" title "P + 1 rows", \
     slip("handoff-short") using 1:(shown($3)) every ::1::64 with linespoints pt 7 ps 0.4 lw 1 lc rgb "#3b6ea5" title "P - 1 rows", \
     slip("window") using 1:(shown($3)) every ::1::64 with linespoints pt 7 ps 0.4 lw 1 lc rgb "#5a9e5a" title "oldest row lost", \
     slip("none") using 1:(shown($3)) every ::1::64 with points pt 7 ps 0.5 lc rgb "#222222" title "no slip", \
     1e-3 with lines dt 2 lc rgb "#888888" notitle
unset multiplot
