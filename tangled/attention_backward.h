#ifndef ATTENTION_BACKWARD_H
#define ATTENTION_BACKWARD_H

/* d_scores [count] += the gradient of the scores that gave probs [count]. */
void softmax_backward(const float *probs, const float *d_probs, int count,
                      float *d_scores);

/* For each of heads = B*H slices. query, d_query, d_context [T, D];
   key, value, d_key, d_value [S, D]; probs, d_probs, d_scores [T, S].
   dropout [T, S] is the mask that multiplied probs, NULL for none.
   Adds to every d_ after d_context. */
void attention_backward(const float *query, const float *key,
                        const float *value, const float *probs,
                        const float *dropout, const float *d_context,
                        int heads, int queries, int keys, int head_dim,
                        float *d_probs, float *d_scores,
                        float *d_query, float *d_key, float *d_value);

#endif
