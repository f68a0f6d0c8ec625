# Reads what tinygpt bench --json printed and prints a line for each result
# that has all of the fields of -v like='"what": "decode", "threads": 1':
#
#   seconds  tokens/s  FLOP/byte  GFLOP/s  fraction  fraction by round
#
# or, with -v limit=bytes_per_second -v threads=2, that limit.
function number(name) {
    if (!match($0, "\"" name "\": [-+.0-9e]+")) return 0
    return substr($0, RSTART + length(name) + 4, RLENGTH - length(name) - 4)
}
limit != "" {
    if (/"bytes_rounds"/ && number("threads") == threads) print number(limit)
    next
}
/"what"/ {
    count = split(like, field, ", ")
    for (k = 1; k <= count; k++)
        if (index($0, field[k] ",") == 0) next
    flops = number("linear_flops") + number("attention_flops")
    bytes = number("weight_bytes") + number("cache_bytes")
    print number("seconds"), number("tokens_per_second"), flops / bytes, \
        number("flops_per_second") / 1e9, number("fraction"), \
        number("fraction_by_round")
}
