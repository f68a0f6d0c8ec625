# From tinygpt tokenize --json --steps (ASCII text) to the trees of its tokens.
# A token has the line of merges.txt that made it: ids 256, 257, … are lines.
function spell(text) { gsub(/ /, "\\&#9251;", text); return text }
function node(name, text, line,   made) {
    if (line > 0)
        made = "<br/><font point-size=\"9\" color=\"#777777\">line " line "</font>"
    printf "\"%s\" [label=<<b>%s</b>%s>];\n", name, spell(text), made
}
{
    match($0, /"steps":\[[^]]*\]/)
    steps = substr($0, RSTART + 9, RLENGTH - 10)
    match($0, /"pieces":.*/)
    pieces = substr($0, RSTART, RLENGTH)
    print "digraph merges { rankdir=BT; nodesep=0.12; ranksep=0.3;"
    print "bgcolor=transparent; node [shape=plaintext, margin=\"0.05,0.02\","
    print "    height=0.25, width=0.2, fontname=\"Helvetica\", fontsize=12];"
    print "edge [arrowhead=none, color=\"#888888\"];"
    while (match(pieces, /"text":"[^"]*"/)) {
        text = text substr(pieces, RSTART + 8, RLENGTH - 9)
        pieces = substr(pieces, RSTART + RLENGTH)
    }
    same = "{ rank=same;"
    for (k = 0; k < length(text); k++) {
        at[k] = "b" k; says[k] = substr(text, k + 1, 1)
        node(at[k], says[k], 0)
        same = same " \"" at[k] "\";"
        if (k > 0) order = order sprintf("\"b%d\" -> \"b%d\" [style=invis];\n", k - 1, k)
    }
    print same " }"
    printf "{ rank=same; %s }\n", order
    n = split(steps, step, /},?/)
    for (k = 1; k < n; k++) {
        gsub(/[^0-9,]/, "", step[k])
        split(step[k], s, ",")
        says[s[1]] = says[s[1]] says[s[2]]
        node("m" k, says[s[1]], s[3] - 255)
        printf "\"%s\" -> \"m%d\"; \"%s\" -> \"m%d\";\n", at[s[1]], k, at[s[2]], k
        at[s[1]] = "m" k
    }
    print "}"
}
