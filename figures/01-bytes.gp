# Bytes by owner over the prompt's length; $bytes has the columns
# T, parameter, buffer, call, request, all.
set terminal svg size 640,380 dynamic enhanced font 'sans-serif,13' background '#ffffff'
set xlabel 'T, prompt tokens'
set ylabel 'MB'
set key top left
set grid lc '#dddddd'
set border 3
set tics nomirror
set xrange [0:1024]
set xtics 128
plot $bytes using 1:($4/1e6) with linespoints pt 7 ps 0.5 lw 2 lc '#b5452c' title 'call: ids, activations, logits', \
     '' using 1:($2/1e6) with lines lw 2 lc '#3b6ea5' title 'parameters', \
     '' using 1:($5/1e6) with linespoints pt 7 ps 0.5 lw 2 lc '#4a8c5f' title 'request: the cache'
