# The masks of the golden's mixed batch, one a row of it. Reads what
# tinygpt slots prints, with -1 for the dot of a slot that holds nothing.
set terminal svg size 640,270 font "Helvetica,12"
unset key; unset colorbox
set palette defined (-1 "#ffffff", 0 "#e8ebee", 1 "#8fb8de")
set cbrange [-1:1]
set xrange [-0.5:6.5]; set yrange [2.5:-0.5]
set xtics 0,1,6 scale 0 offset 0,0.3
set ytics ("5" 0, "6" 1, "7" 2) scale 0
set xlabel "slot j" offset 0,0.5; set ylabel "position of query t"
set x2label "position of slot" offset 0,-0.6
set size ratio -1
set border lc rgb "#888888"
slots = '< tinygpt slots --starts 1,3 --lengths 4,2 --tokens 3 | sed "s/[.]/-1/g"'
set multiplot layout 1,2
set title "row 0: start 1, length 4" offset 0,0.6
set x2range [-0.5:6.5]
set x2tics ("1" 0, "2" 1, "3" 2, "4" 3, "5" 4, "6" 5, "7" 6) scale 0 \
    offset 0,-0.3
plot slots index 0 matrix with image pixels, \
     '' index 0 matrix using 1:2:($3 < 0 ? "·" : sprintf("%d", $3)) with labels \
     tc rgb "#222222"
set title "row 1: start 3, length 2"
set x2tics ("3" 0, "4" 1, "5" 2, "6" 3, "7" 4, "–" 5, "–" 6) scale 0 \
    offset 0,-0.3
plot slots index 1 matrix with image pixels, \
     '' index 1 matrix using 1:2:($3 < 0 ? "·" : sprintf("%d", $3)) with labels \
     tc rgb "#222222"
unset multiplot
