# The mask of a chunk behind a past, by positions and in the upper-left corner.
# Reads what tinygpt mask prints.
set terminal svg size 640,250 font "Helvetica,12"
unset key; unset colorbox
set palette defined (0 "#e8ebee", 1 "#8fb8de")
set cbrange [0:1]
set xrange [-0.5:6.5]; set yrange [3.5:-0.5]
set xtics 0,1,6 scale 0; set ytics 0,1,3 scale 0
set xlabel "key j"; set ylabel "query i"
set size ratio -1
set border lc rgb "#888888"
set multiplot layout 1,2
set title "j ≤ P + i"
plot '< tinygpt mask --past 3 --tokens 4' matrix with image pixels, \
     '' matrix using 1:2:(sprintf("%d", $3)) with labels tc rgb "#222222"
set title "j ≤ i"
plot '< tinygpt mask --past 3 --tokens 4 --wrong' matrix with image pixels, \
     '' matrix using 1:2:(sprintf("%d", $3)) with labels tc rgb "#222222"
unset multiplot
