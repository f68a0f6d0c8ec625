# Reads {"rows":[[...],...]} of tinygpt logits, takes its one row of logits, and
# prints the ten likeliest bytes with their probabilities at three temperatures.
BEGIN { FS = "[][,{}:\"]+"; temperatures = split("0.3 1 2", at, " ") }
{
    count = 0
    for (i = 1; i <= NF; i++)
        if ($i ~ /^-?[0-9]/) { logit[count] = $i + 0; id[count] = count; count++ }
    for (i = 0; i < 10; i++)
        for (j = i + 1; j < count; j++)
            if (logit[id[j]] > logit[id[i]]) { t = id[i]; id[i] = id[j]; id[j] = t }
    for (k = 1; k <= temperatures; k++) {
        sum[k] = 0
        for (j = 0; j < count; j++)
            sum[k] += exp((logit[j] - logit[id[0]]) / at[k])
    }
    for (i = 0; i < 10; i++) {
        printf "%s", id[i] == 32 ? "space" : id[i] == 10 ? "newline" : sprintf("%c", id[i])
        for (k = 1; k <= temperatures; k++)
            printf " %.6f", exp((logit[id[i]] - logit[id[0]]) / at[k]) / sum[k]
        print ""
    }
}
