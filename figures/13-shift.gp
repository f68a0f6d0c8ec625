# The change of a dot product when both positions move by an offset.
set terminal svg size 640,320 font "Helvetica,12"
set xlabel "offset of both positions"
set ylabel "largest change of q·k by |q||k|"
set border 3 lc rgb "#888888"; set tics nomirror
set logscale xy
set xrange [0.8:1.3e6]; set yrange [3e-9:1]
set format x "10^{%L}"; set format y "10^{%L}"
set grid y lc rgb "#cccccc"
set key top left
plot '< tinygpt rope --shift' \
       using 1:4 skip 1 with lines lw 6 lc rgb "#d8d8d8" title "bound for angles in float", \
     '' using 1:3 skip 1 with linespoints pt 7 ps 0.7 lw 2 lc rgb "#c8553d" title "angles in float", \
     '' using 1:2 skip 1 with linespoints pt 7 ps 0.7 lw 2 lc rgb "#3b6ea5" title "angles in double"
