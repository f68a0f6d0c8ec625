# What book/draft is worth to book/checkpoint: for each K in ARGV a line with the
# acceptance in percent and the tokens a call of the target, at temperatures 0,
# 0.5 and 1. Ten prompts, each continued by 100 tokens; two seeds when sampling.
BEGIN {
    prompts = split("The cache |#include |static enum status |The mask |if (status == STATUS_OK|    for (int b = 0; b < |a row of the |A wrong path |return |struct tensor ", prompt, "|")
    temperatures = split("0 0.5 1", temperature, " ")
    for (a = 1; a < ARGC; a++) {
        line = k = ARGV[a]
        for (t = 1; t <= temperatures; t++) {
            accepted = proposed = rounds = tokens = 0
            for (p = 1; p <= prompts; p++)
                for (seed = 1; seed <= (t == 1 ? 1 : 2); seed++) {
                    command = "tinygpt generate --model book/checkpoint" \
                        " --prompt '" prompt[p] "' --max-new-tokens 100" \
                        " --temperature " temperature[t] " --seed " seed \
                        " --speculative book/draft --draft-tokens " k \
                        " --stats 2>&1 >/dev/null"
                    while ((command | getline word) > 0) {
                        split(word, w, " ")
                        if (w[1] == "speculation:") {
                            accepted += w[2]; proposed += w[4]
                        } else if (w[1] == "calls:") {
                            rounds += w[2] - 1; tokens += 100
                        }
                    }
                    close(command)
                }
            line = line sprintf(" %.1f %.3f", 100 * accepted / proposed, tokens / rounds)
        }
        print line
    }
}
