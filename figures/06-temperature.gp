# Ten next bytes after "The m", at three temperatures.
set terminal svg size 640,300 font "Helvetica,12"
set style data histogram; set style histogram cluster gap 1
set style fill solid 0.85 noborder
set boxwidth 0.9
set border 3 lc rgb "#888888"; set tics nomirror
set xlabel "next byte"; set ylabel "probability"
set yrange [0:*]; set grid y lc rgb "#cccccc"
set key top right
plot '< tinygpt logits --model book/checkpoint --prompt-ids 84,104,101,32,109 --continuation-ids 97 --json | awk -f figures/06-temperature.awk' \
       using 2:xtic(1) lc rgb "#c8553d" title "temperature 0.3", \
     '' using 3 lc rgb "#3b6ea5" title "1", \
     '' using 4 lc rgb "#8a9a5b" title "2"
