# Bytes that two prefix caches hold for branching prompts, as counted and by
# formula. Reads what tinygpt prefix prints.
set terminal svg size 640,320 font "Helvetica,12"
set xlabel "prompts that share a prefix"
set ylabel "keys and values held, MiB"
set border 3 lc rgb "#888888"; set tics nomirror
set xrange [0.5:16.5]; set yrange [0:*]; set xtics 1,1,16
set grid y lc rgb "#cccccc"
set key top left
command = '< tinygpt prefix --model book/checkpoint --block-size 16 --shared 64 --tail 32 --branches 16'
mib = 1048576.0
plot command using 1:($3/mib) skip 1 with lines lw 2 lc rgb "#c8553d" notitle, \
     command using 1:($2/mib) skip 1 with points pt 7 ps 0.8 lc rgb "#c8553d" title "snapshots", \
     command using 1:($5/mib) skip 1 with lines lw 2 lc rgb "#3b6ea5" notitle, \
     command using 1:($4/mib) skip 1 with points pt 5 ps 0.8 lc rgb "#3b6ea5" title "blocks"
