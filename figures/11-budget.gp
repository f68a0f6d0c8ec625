# What a budget does to the first token of prompts and to the gaps of chats.
set terminal svg size 640,300 font "Helvetica,12"
set border 3 lc rgb "#888888"; set tics nomirror
set logscale x 2; set xrange [7:150]
set xlabel "budget, tokens a step"
set yrange [0:*]; set grid y lc rgb "#cccccc"
set xtics (8,16,32,64,128)
set multiplot layout 1,2
set key top center
set ylabel "milliseconds"
set title "costs as measured"
plot '< tinygpt schedule' using 1:2 skip 1 with linespoints pt 7 ps 0.6 lc rgb "#3b6ea5" title "to the first token, mean", \
     '' using 1:5 skip 1 with linespoints pt 7 ps 0.6 lc rgb "#c8553d" title "longest gap"
unset ylabel
set title "a call as dear as 70 tokens"
plot '< tinygpt schedule --call 3000 --every 100' using 1:2 skip 1 with linespoints pt 7 ps 0.6 lc rgb "#3b6ea5" notitle, \
     '' using 1:5 skip 1 with linespoints pt 7 ps 0.6 lc rgb "#c8553d" notitle
unset multiplot
