# What a cache of codes does to the logits, position by position.
set terminal svg size 640,340 font "Helvetica,12"
set xlabel "position of the token"
set ylabel "difference of a logit"
set border 3 lc rgb "#888888"; set tics nomirror
set xrange [-1:128]; set xtics 16; set yrange [0:*]
set grid y lc rgb "#cccccc"
set key top left
dir = system("dir=$(mktemp -d); run() { OMP_NUM_THREADS=1 tinygpt int8 --every 1 ".\
    "--model book/checkpoint --text book/05-mask.nw --windows 32 $@; }; ".\
    "run > $dir/codes & run --start 96 --tokens 32 > $dir/later & ".\
    "run --spare > $dir/spared & wait; echo $dir")
plot dir.'/codes' using 1:3 skip 2 with impulses lw 3 lc rgb "#c8d6e5" title "largest of 32 texts", \
     '' using 1:4 skip 2 with linespoints pt 7 ps 0.5 lc rgb "#3b6ea5" title "root mean square", \
     '' using 1:2 skip 2 with lines lw 2 lc rgb "#c8553d" title "largest with a cache of floats", \
     dir.'/later' using 1:4 skip 2 with points pt 7 ps 0.6 lc rgb "#222222" title "root mean square, texts that begin at 96", \
     dir.'/spared' using 1:4 skip 2 with lines lw 2 lc rgb "#5a9e5a" title "root mean square, first keys as floats"
unused = system("rm -r ".dir)
