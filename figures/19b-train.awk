# Trains the tokenizer in figures/19b-words/ (chapter 19, text and ids): reads
# a text and writes vocab.json and merges.txt into the directory `out`.
#     LC_ALL=C awk -v lines=400 -v out=figures/19b-words \
#         -f figures/19b-train.awk book/0[1-9]*.nw
# Words are letters with the space before them; nothing else is trained on.
# The most frequent pair of neighbours becomes one token, the first in
# alphabetical order among equals, again and again.

function symbol(byte) {          # GPT-2's character for a byte, in UTF-8
    if (byte > 32 && byte < 127) return sprintf("%c", byte)
    if (byte < 33) byte += 256
    else if (byte < 161) byte += 256 + 33 - 127
    else if (byte == 173) byte = 323
    return sprintf("%c%c", 192 + int(byte / 64), 128 + byte % 64)
}

function quoted(text) {
    gsub(/["\\]/, "\\\\&", text)
    return "\"" text "\""
}

BEGIN { for (b = 0; b < 256; b++) code[sprintf("%c", b)] = b }

{
    line = $0
    while (match(line, / ?[A-Za-z]+/)) {
        count[substr(line, RSTART, RLENGTH)]++
        line = substr(line, RSTART + RLENGTH)
    }
}

END {
    for (word in count) {        # a word is its tokens, with spaces between
        spelled = ""
        for (k = 1; k <= length(word); k++)
            spelled = spelled (k > 1 ? " " : "") symbol(code[substr(word, k, 1)])
        tokens[word] = spelled
    }
    print "#version: 0.2" > (out "/merges.txt")
    for (made = 0; made < lines; made++) {
        split("", pairs)
        for (word in tokens) {
            n = split(tokens[word], t, " ")
            for (k = 1; k < n; k++) pairs[t[k] " " t[k + 1]] += count[word]
        }
        best = ""
        for (pair in pairs)
            if (best == "" || pairs[pair] > pairs[best] ||
                (pairs[pair] == pairs[best] && pair < best)) best = pair
        print best > (out "/merges.txt")
        split(best, side, " ")
        learned[made] = side[1] side[2]
        for (word in tokens) {
            n = split(tokens[word], t, " ")
            spelled = ""
            for (k = 1; k <= n; k++) {
                if (k < n && t[k] == side[1] && t[k + 1] == side[2])
                    t[++k] = learned[made]
                spelled = spelled (spelled == "" ? "" : " ") t[k]
            }
            tokens[word] = spelled
        }
    }
    printf "{" > (out "/vocab.json")
    id = 0
    for (b = 0; b < 256; b++)    # visible bytes first, as GPT-2 has them
        if (b > 32 && b < 127 || b > 160 && b != 173)
            printf "%s: %d, ", quoted(symbol(b)), id++ > (out "/vocab.json")
    for (b = 0; b < 256; b++)
        if (!(b > 32 && b < 127 || b > 160 && b != 173))
            printf "%s: %d, ", quoted(symbol(b)), id++ > (out "/vocab.json")
    for (k = 0; k < made; k++)
        printf "%s: %d, ", quoted(learned[k]), id++ > (out "/vocab.json")
    printf "\"<|endoftext|>\": %d}\n", id > (out "/vocab.json")
}
