# The exact GELU and the error of its tanh approximation; SVG on stdout.
set terminal svg size 640,300 font "Helvetica,12" background "white"
set xrange [-5:5]
set samples 401
set xlabel "x"
set ylabel "gelu(x)"
set y2label "tanh form − exact"
set y2range [-6e-4:6e-4]
set yrange [-5:5]
set y2tics ("−4e−4" -4e-4, "−2e−4" -2e-4, "0" 0, "2e−4" 2e-4, "4e−4" 4e-4)
set ytics nomirror
set grid xtics ytics linecolor rgb "#dddddd"
set key bottom left
exact(x) = x * norm(x)
approximate(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))
plot exact(x) title "exact GELU" linewidth 2 linecolor rgb "#2f6fab", \
     approximate(x) - exact(x) axes x1y2 title "tanh form − exact" \
     linewidth 1.5 linecolor rgb "#c7622b"
