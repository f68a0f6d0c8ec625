# What each call reaches under the roofs that were measured beside it. The
# numbers are in $BENCH, or in figures/.
set terminal svg size 640,430 font "Helvetica,12"
set xlabel "operations by bytes that have to be read"
set ylabel "GFLOP/s"
set border 3 lc rgb "#888888"; set tics nomirror
set logscale xy
set xrange [0.3:600]; set yrange [5:1000]
set xtics (0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
set ytics (5, 10, 20, 50, 100, 200, 500, 1000)
set grid lc rgb "#dddddd"
set key bottom right width -4; set samples 1000
file = system("echo ${BENCH:-figures}") . "/21c-bench.json"
limit(of, t) = real(system("awk -v limit=" . of . " -v threads=" . t . " -f figures/21c-rows.awk " . file))
bytes1 = limit("bytes_per_second", 1) / 1e9; bytes2 = limit("bytes_per_second", 2) / 1e9
flops1 = limit("flops_per_second", 1) / 1e9; flops2 = limit("flops_per_second", 2) / 1e9
roof(x, b, f) = x * b < f ? x * b : f
rows(what, weights, t) = "< awk -v like='\"what\": \"" . what . "\", \"weights\": \"" . weights . "\", \"threads\": " . t . "' -f figures/21c-rows.awk " . file
set label sprintf("one thread: %.0f GB/s, %.0f GFLOP/s", bytes1, flops1) at 0.34, 700 tc rgb "#3b6ea5"
set label sprintf("two threads: %.0f GB/s, %.0f GFLOP/s", bytes2, flops2) at 0.34, 530 tc rgb "#c8553d"
plot roof(x, bytes1, flops1) with lines lw 2 lc rgb "#9db7d2" notitle, \
     roof(x, bytes2, flops2) with lines lw 2 lc rgb "#e3aa9e" notitle, \
     rows("decode", "f32", 1) using 3:4 with points pt 7 ps 1 lc rgb "#3b6ea5" title "decode, f32", \
     rows("decode", "f32", 2) using 3:4 with points pt 7 ps 1 lc rgb "#c8553d" notitle, \
     rows("decode", "bf16", 1) using 3:4 with points pt 9 ps 1.1 lc rgb "#3b6ea5" title "decode, bf16", \
     rows("decode", "bf16", 2) using 3:4 with points pt 9 ps 1.1 lc rgb "#c8553d" notitle, \
     rows("decode", "int8", 1) using 3:4 with points pt 11 ps 1.1 lc rgb "#3b6ea5" title "decode, int8", \
     rows("decode", "int8", 2) using 3:4 with points pt 11 ps 1.1 lc rgb "#c8553d" notitle, \
     rows("batch", "f32", 1) using 3:4 with points pt 5 ps 1 lc rgb "#3b6ea5" title "eight slots, f32", \
     rows("batch", "f32", 2) using 3:4 with points pt 5 ps 1 lc rgb "#c8553d" notitle, \
     rows("prefill", "f32", 1) using 3:4 with points pt 13 ps 1.3 lc rgb "#3b6ea5" title "prompts of 64, 512, 1024", \
     rows("prefill", "f32", 2) using 3:4 with points pt 13 ps 1.3 lc rgb "#c8553d" notitle
