# Assignments by expert of a layer, for an even router and a skewed one.
set terminal svg size 640,320 font "Helvetica,12"
set border 3 lc rgb "#888888"; set tics nomirror
set xlabel "expert"
set ylabel "assignments of 4096"
set xrange [-0.6:7.6]; set yrange [0:2048]; set xtics 1; set ytics 512
set grid y lc rgb "#cccccc"
set key top right
set style fill solid; set boxwidth 0.36
plot 512 with lines lw 2 lc rgb "#888888" title "even share", \
     '< tinygpt experts --tokens 2048' \
       using ($2 - 0.19):($1 == 0 ? $3 : NaN) skip 2 with boxes lc rgb "#3b6ea5" title "blind to what tokens share", \
     '< tinygpt experts --tokens 2048 --skew 2' \
       using ($2 + 0.19):($1 == 0 ? $3 : NaN) skip 2 with boxes lc rgb "#c8553d" title "sees it, with 2"
