# Prints what tinygpt bench --json measured with one and two threads, a case in
# a line: the median, the spread, and the parts of the best limit and of each
# round's own, in percent. Then ratios, errors and loads.
function ratio(name, label) {
    if (number(name) == 0) return
    if (!((label) in ratios)) order[++ratio_count] = label
    ratios[label] = ratios[label] sprintf("  %6.2f", number(name))
}
/"machine"/ {
    printf "%s, %d cores; %s; %d lanes\n", text("processor"), number("cores"),
        text("compiler"), number("lanes")
}
/"shape"/ { printf "%s, medians of %d rounds\n", text("shape"), number("rounds") }
/"bytes_rounds"/ {
    printf("%d thread%s: %.1f GB/s, %.1f GFLOP/s\n", number("threads"),
           number("threads") > 1 ? "s" : "", number("bytes_per_second") / 1e9,
           number("flops_per_second") / 1e9)
}
/"what"/ {
    what = text("what")
    name = sprintf("%-8s%-5s", what, text("weights"))
    name = name (what == "prefill" ? sprintf("%5d", number("tokens")) :
                 what == "train" ? sprintf("%dx%d", number("slots"),
                                           number("tokens")) :
                 sprintf("%5d", number("context")))
    if (!(name in cell)) names[++count] = name
    cell[name] = cell[name] sprintf("%10.2f %5.1f%% %5.0f %5.0f",
        1e3 * number("seconds"), 100 * number("spread"),
        100 * number("fraction"), 100 * number("fraction_by_round"))
    ratio("times_one_slot", name " by one slot")
    if (what == "decode") ratio("times_f32", name " by f32")
    if (text("weights") !~ /bf16|int8/)
        ratio("times_one_thread", name " by one thread")
}
/"difference"/ {
    errors = errors sprintf("%s: logits off by %.2f %%\n", text("weights"),
        100 * number("difference") / number("logits"))
}
/"again"/ {
    first = list("open") + list("first")
    other = number("peak_bytes") - number("weight_bytes")
    other -= number("cache_bytes")
    loads = loads sprintf("load, %d thread%s: open and first prompt %.2f ms," \
        " again %.2f: %.2f times\n", number("threads"),
        (number("threads") > 1) ? "s" : "", 1e3 * first, 1e3 * list("again"),
        first / list("again"))
    memory = sprintf("memory beside weights and cache: %.1f MB\n", other / 1e6)
}
END {
    one = "        ms spread limit round"
    printf("\n%-17s%s%s\n", "", one, cell[names[1]] ~ /%.*%/ ? one : "")
    for (k = 1; k <= count; k++) printf "%-17s%s\n", names[k], cell[names[k]]
    if (ratio_count > 0) printf "\n"
    for (k = 1; k <= ratio_count; k++)
        printf "%-34s%s\n", order[k], ratios[order[k]]
    printf("%s%s%s", errors == "" ? "" : "\n" errors, loads, memory)
}
