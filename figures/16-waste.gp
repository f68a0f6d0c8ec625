# Slots held and not used against the block size: counted, and the formula
# Q (G - 1) / 2 with the tokens that there are.
set terminal svg size 640,320 font "Helvetica,12"
set border 3 lc rgb "#888888"; set tics nomirror
set logscale x 2; set xrange [0.9:1200]
set xlabel "block size, tokens"
set ylabel "waste, percent of what is held"
set yrange [0:60]; set grid y lc rgb "#cccccc"
set key top left
# tokens in all: the waste is 0 at block size 1, where blocks are tokens
tokens = real(system("tinygpt pages | awk 'NR == 2 { print $2 }'"))
plot '< tinygpt pages' using 1:(100 * $4 / ($4 + tokens)) skip 1 with lines lw 2 lc rgb "#c8553d" title "formula", \
     '' using 1:5 skip 1 with points pt 7 ps 0.7 lc rgb "#3b6ea5" title "counted"
