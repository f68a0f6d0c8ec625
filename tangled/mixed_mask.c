#include "mixed_mask.h"

void mixed_mask(struct row_prefix prefix, const int32_t *positions,
                int tokens, int slots, bool *keep)
{
    for (int t = 0; t < tokens; t++, keep += slots)
        for (int j = 0; j < slots; j++) {
            const bool valid = j < prefix.length + tokens;
            const bool causal = prefix.start + j <= positions[t];
            keep[j] = valid && causal;
        }
}
