# Tokens a step against the spread of lengths, counted, and mean / maximum.
set terminal svg size 640,320 font "Helvetica,12"
set border 3 lc rgb "#888888"; set tics nomirror
set xlabel "spread of the lengths around their mean, percent"
set ylabel "tokens a step, of 8"
set xrange [-3:103]; set yrange [0:8.6]; set grid y lc rgb "#cccccc"
set key bottom left
command = "< tinygpt batching --requests 4096 --spread 0,10,20,30,40,50,60,70,80,90,100 | grep -v geom"
formula(s) = 8 / (1 + s / 100 * 7. / 9)
plot command using 1:6 skip 2 with linespoints pt 7 ps 0.6 lw 2 lc rgb "#3b6ea5" title "handed on at once", \
     '' using 1:3 skip 2 with points pt 7 ps 0.7 lc rgb "#c8553d" title "waits for the longest", \
     formula(x) with lines lc rgb "#c8553d" title "8 / (1 + s 7/9)"
