# What was to be reached, and what tinygpt bench --json measured, with one
# thread and with two; < is short of it. Parts are of each round's own limit.
function goal(label, least, unit) {
    if (!(label in wanted)) order[++count] = label
    wanted[label] = least
    units[label] = unit
}
function reached(label, value, format,    mark) {
    mark = value < wanted[label] ? " <" : "  "
    if (units[label] == "x most") mark = value > wanted[label] ? " <" : "  "
    cells[label] = cells[label] sprintf("%8s%s", sprintf(format, value), mark)
}
function part(label, least) {
    goal(label, least, "%")
    reached(label, 100 * number("fraction_by_round"), "%.1f")
}
function times(label, least, name) {
    goal(label, least, "x")
    if (number(name) == 0) { cells[label] = sprintf("%8s  ", ""); return }
    reached(label, number(name), "%.2f")
}
/"what"/ {
    what = text("what") "/" text("weights")
    context = number("context")
    tokens = number("tokens")
    if (what == "decode/f32") {
        part("decode, context " context, 90)
        if (context == 64) times("decode, one to two threads", 1.8,
                                 "times_one_thread")
    }
    if (what == "prefill/f32") {
        part("prefill of " tokens, tokens == 64 ? 65 : 80)
        if (tokens == 512) times("prefill of 512, one to two threads", 1.85,
                                 "times_one_thread")
    }
    if (what == "batch/f32") times("8 slots, by one", 6, "times_one_slot")
    if (what == "decode/bf16" && context == 64)
        times("decode BF16, by F32", 1.8, "times_f32")
    if (what == "decode/int8" && context == 64)
        times("decode INT8, by F32", 3, "times_f32")
}
/"again"/ {
    goal("open and first prompt, by the prompt", 1.2, "x most")
    reached("open and first prompt, by the prompt",
            (list("open") + list("first")) / list("again"), "%.2f")
}
END {
    printf "%-38s%8s%10s%10s\n", "", "goal", "1 thread", "2 threads"
    for (k = 1; k <= count; k++)
        printf "%-38s%8s%s\n", order[k], wanted[order[k]] " " \
            substr(units[order[k]], 1, 1), cells[order[k]]
}
