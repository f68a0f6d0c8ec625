# What both phases reach, against what the machine could do at most.
set terminal svg size 640,380 font "Helvetica,12"
set xlabel "operations by bytes that have to move"
set ylabel "GFLOP/s"
set border 3 lc rgb "#888888"; set tics nomirror
set logscale xy
set xrange [0.1:200]; set yrange [2:500]
set xtics (0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128)
set ytics (2, 5, 10, 20, 50, 100, 200, 500)
set grid lc rgb "#dddddd"
set key bottom right; set samples 1000
machine(of) = real(system("awk -v of=" . of . " -f figures/14-roofline.awk figures/14-checkpoint.json"))
bandwidth = machine("bytes_per_second") / 1e9
build = machine("build_flops") / 1e9
peak = machine("peak_flops") / 1e9
roof(x, most) = x * bandwidth < most ? x * bandwidth : most
set label sprintf("%.0f GB/s", bandwidth) at 0.16, 0.16 * bandwidth * 1.5 rotate by 33 tc rgb "#555555"
set label sprintf("%.0f as compiled", build) at 14, build * 1.15 tc rgb "#555555"
set label sprintf("%.0f with AVX-512", peak) at 14, peak * 1.15 tc rgb "#555555"
at(phase, file) = "< awk -v phase=" . phase . " -f figures/14-roofline.awk figures/14-" . file . ".json"
plot roof(x, peak) with lines lw 2 lc rgb "#bbbbbb" notitle, \
     roof(x, build) with lines lw 3 lc rgb "#666666" notitle, \
     at("decode", "checkpoint") with points pt 7 ps 1 lc rgb "#3b6ea5" title "checkpoint, decode", \
     at("prefill", "checkpoint") with points pt 9 ps 1.3 lc rgb "#3b6ea5" title "checkpoint, prompt of 64", \
     at("decode", "llama") with points pt 7 ps 1 lc rgb "#c8553d" title "llama, decode", \
     at("prefill", "llama") with points pt 8 ps 1.6 lw 2 lc rgb "#c8553d" title "llama, prompt of 64", \
     at("decode", "llama-8") with points pt 5 ps 1 lc rgb "#c8553d" title "llama, decode, eight rows"
