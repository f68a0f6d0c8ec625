# Reads a line of what tinygpt bench --json printed: a number, a text, the
# median of a list.
function number(name) {
    if (!match($0, "\"" name "\": [-+.0-9e]+")) return 0
    return substr($0, RSTART + length(name) + 4, RLENGTH - length(name) - 4)
}
function text(name) {
    if (!match($0, "\"" name "\": \"[^\"]*\"")) return ""
    return substr($0, RSTART + length(name) + 5, RLENGTH - length(name) - 6)
}
function list(name,    n, a, k, j, x) {      # its median
    if (!match($0, "\"" name "\": \\[[^]]*\\]")) return 0
    n = split(substr($0, RSTART + length(name) + 5,
                     RLENGTH - length(name) - 6), a, ", ")
    for (k = 2; k <= n; k++) {
        x = a[k] + 0
        for (j = k - 1; j > 0 && a[j] + 0 > x; j--) a[j + 1] = a[j]
        a[j + 1] = x
    }
    return (a[int((n + 1) / 2)] + a[int(n / 2) + 1]) / 2
}
