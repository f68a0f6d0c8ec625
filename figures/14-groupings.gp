# Bytes of the cache of one request of 8192 tokens, by the number of key heads.
set terminal svg size 640,320 font "Helvetica,12"
set xlabel "key heads, of 32"
set ylabel "GB"
set border 3 lc rgb "#888888"; set tics nomirror
set logscale y 2; set yrange [0.0625:128]
set xtics scale 0; set ytics (0.125, 0.25, 0.5, 1, 2, 4, 8, 16)
set xrange [-0.7:5.7]; set grid y lc rgb "#dddddd"
set key top right
shape = "128256,4096,32,32,8,128,14336"
sweep(bytes) = "< tinygpt phases --sweep --prompt 8192 --llama " . shape . " --element-bytes " . bytes
mark(name, kv) = kv == 32 || kv == 1 ? sprintf("%s %d", name, kv) : sprintf("%d", kv)
set boxwidth 0.36; set style fill solid 0.35 border
plot sweep(4) using ($0-0.2):($4/1e9):xticlabels(mark(stringcolumn(1), $2)) skip 1 with boxes lc rgb "#3b6ea5" title "floats", \
     sweep(2) using ($0+0.2):($4/1e9) skip 1 with boxes lc rgb "#c8553d" title "16 bits", \
     sweep(2) using ($2 == 8 ? $0+0.2 : NaN):($4/1e9) skip 1 with boxes fs solid 1 lc rgb "#c8553d" notitle, \
     8.030261248*2 with lines dt 2 lw 2 lc rgb "#888888" title "weights of the model, 16 bits"
