# Reads what tinygpt phases --json printed. Prints intensity and GFLOP/s of one
# phase (-v phase=decode), or one number of the machine (-v of=build_flops).
function number(line, name) {
    if (!match(line, "\"" name "\": [-+.0-9e]+")) return ""
    return substr(line, RSTART + length(name) + 4, RLENGTH - length(name) - 4)
}
/"machine"/ && of != "" { print number($0, of); exit }
/^ "prefill"/ { here = "prefill" }
/^}, "decode"|^ "decode"/ { here = "decode" }
here == phase && /"intensity"/ {
    print number($0, "intensity"), number($0, "flops_per_second") / 1e9
}
