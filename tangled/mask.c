#include "mask.h"

void causal_mask(int past, int queries, bool *keep)
{
    const int keys = past + queries;
    for (int i = 0; i < queries; i++, keep += keys)
        for (int j = 0; j < keys; j++) {
            keep[j] = j <= past + i;
        }
}
