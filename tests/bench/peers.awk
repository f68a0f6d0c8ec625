# Lines of "name what threads slots tokens context seconds", several of each,
# and limits as "limit what threads value". Prints medians side by side, and
# how many times as fast this program is as the best of the others.
function median(key,    n, a, k, j, x) {
    n = split(values[key], a, " ")
    for (k = 2; k <= n; k++) {
        x = a[k] + 0
        for (j = k - 1; j > 0 && a[j] + 0 > x; j--) a[j + 1] = a[j]
        a[j + 1] = x
    }
    return n == 0 ? 0 : (a[int((n + 1) / 2)] + a[int(n / 2) + 1]) / 2
}
function cell(seconds) {
    return seconds > 0 ? sprintf("%12.2f", 1e3 * seconds) : sprintf("%12s", "-")
}
$1 == "limit" {
    if ($4 > limit[$2, $3]) limit[$2, $3] = $4
    if (!($3 in threads_seen)) { threads_seen[$3]; order_t[++count_t] = $3 }
    next
}
NF == 7 {
    row = $2 " " $3 " " $4 " " $5 " " $6
    if (!(row in seen)) { seen[row]; rows[++count] = row }
    if (!($1 in named)) { named[$1]; names[++people] = $1 }
    values[row, $1] = values[row, $1] " " $7
}
END {
    for (t = 1; t <= count_t; t++)
        printf "limits, %d threads: %.1f GB/s, %.1f GFLOP/s\n", order_t[t], \
            limit["bytes", order_t[t]] / 1e9, limit["flops", order_t[t]] / 1e9
    printf "\n%-8s %7s %5s %6s %7s", "ms", "threads", "slots", "tokens", \
        "context"
    for (k = 1; k <= people; k++) printf "%12s", names[k]
    printf "  times the best other\n"
    for (r = 1; r <= count; r++) {
        split(rows[r], part, " ")
        printf "%-8s %7d %5d %6d %7d", part[1], part[2], part[3], part[4], \
            part[5]
        own = best = 0
        for (k = 1; k <= people; k++) {
            m = median(rows[r] SUBSEP names[k])
            printf "%s", cell(m)
            if (names[k] == "tinygpt" || names[k] == "kernels") {
                if (m > 0) own = m
            } else if (m > 0 && (best == 0 || m < best)) best = m
        }
        if (own > 0 && best > 0) printf "  %.2f", best / own
        printf "\n"
    }
}
