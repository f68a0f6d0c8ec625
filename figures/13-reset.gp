# What a position reset at each decoding step does to the logits, by step.
set terminal svg size 640,300 font "Helvetica,12"
set xlabel "position of the token"
set ylabel "largest absolute error of its logits"
set border 3 lc rgb "#888888"; set tics nomirror
set xrange [7:40]; set yrange [-0.15:6]; set xtics 8,4,40
set grid y lc rgb "#cccccc"
set key top left
plot '< tinygpt rope --prompt 8 --steps 32' \
       using 2:4 skip 2 with impulses lw 6 lc rgb "#c8553d" title "position 0 at each step", \
     '' using 2:3 skip 2 with points pt 7 ps 0.7 lc rgb "#3b6ea5" title "positions counted"
