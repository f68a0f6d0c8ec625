# From the ledger's table to the module tree of block 0, as a graph.
BEGIN {
    print "digraph tree { rankdir=LR; nodesep=0.08; ranksep=0.35;"
    print "node [shape=plaintext, fontname=\"sans-serif\", fontsize=12,"
    print "      margin=\"0.05,0.02\", height=0.22];"
    print "edge [arrowhead=none, color=\"#888888\"]; \"\" [label=\"model\"];"
}
$NF != "parameter" || $1 == "total" || $1 ~ /^blocks\.[1-9]/ { next }
{
    shape = ""
    for (i = 2; $i !~ /^\[/; i++) shape = shape " " $i
    n = split($1, word, ".")
    path = ""
    for (i = 1; i <= n; i++) {
        above = path
        path = path (i > 1 ? "." : "") word[i]
        if (seen[path]++) continue
        label = word[i]
        if (path ~ /^blocks\.0$/) label = "0 ... L - 1"
        if (i == n) label = label "   [" substr(shape, 2) "]"
        printf "\"%s\" [label=\"%s\"%s];\n", path, label,
            i == n ? ", fontname=\"monospace\", fontsize=11" : ""
        printf "\"%s\" -> \"%s\";\n", above, path
    }
}
END {
    print "\"lm_head.weight\" -> \"token_embedding.weight\" [style=dashed,"
    print "    constraint=false, color=\"#b5452c\"]; }"
}
