# What the upper-left triangle does to the logits, row by row.
set terminal svg size 640,300 font "Helvetica,12"
set xlabel "position of the token"
set ylabel "largest absolute error of its logits"
set border 3 lc rgb "#888888"; set tics nomirror
set xrange [7.5:23.5]; set yrange [-0.05:*]; set xtics 8,2,23
set grid y lc rgb "#cccccc"
set key top right
plot '< tinygpt mask --past 8 --tokens 16 --errors --wrong' \
       using 1:3 skip 1 with impulses lw 6 lc rgb "#c8553d" title "in one chunk of 16", \
     '' using 1:2 skip 1 with points pt 7 ps 0.7 lc rgb "#3b6ea5" title "token by token"
