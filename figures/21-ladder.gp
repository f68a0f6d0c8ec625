# What each idea gains: medians of "tinygpt kernels --rounds 21 --json", which
# are kept in 21-ladder.json, as parts of limits measured in the same rounds.
set terminal svg size 640,500 font "Helvetica,12"
set border 1 lc rgb "#888888"; set tics nomirror; unset key
set xrange [0:118]; set xtics 0,20,100; set xlabel "percent of the limit"
set yrange [20.6:-1.4]
set grid x lc rgb "#dddddd"
set ytics scale 0 font ",11"
set style fill solid noborder
rungs = "< awk -f figures/21-ladder.awk figures/21-ladder.json"
set label 1 "256 rows, [768,3072]" at 0,-0.85 font ",11" tc rgb "#555555"
set label 2 "one row, [49152,768]" at 0,8.15 font ",11" tc rgb "#555555"
set label 3 "attention, 512 tokens" at 0,17.15 font ",11" tc rgb "#555555"
color(k) = k == 1 ? 0x3b6ea5 : k == 2 ? 0xc8553d : 0x5a9e5a
plot rungs using ($3/2):1:($3/2):(0.38):(color($2)) with boxxyerror lc rgb variable, \
     rungs using ($3 + 1):1:(strcol(4)." ".strcol(5)):ytic(6) with labels left font ",11"
