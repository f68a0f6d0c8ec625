#include "tensor.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool size_multiply(size_t a, size_t b, size_t *product)
{
    if (a != 0 && b > SIZE_MAX / a)
        return false;
    *product = a * b;
    return true;
}

bool size_add(size_t a, size_t b, size_t *sum)
{
    if (b > SIZE_MAX - a)
        return false;
    *sum = a + b;
    return true;
}

bool shape_size(int rank, const int *shape, size_t *size)
{
    size_t elements = 1, bytes;
    if (rank < 1 || rank > TENSOR_RANK_MAX)
        return false;
    for (int axis = 0; axis < rank; axis++) {
        if (shape[axis] <= 0
            || !size_multiply(elements, (size_t)shape[axis], &elements))
            return false;
    }
    if (!size_multiply(elements, sizeof (float), &bytes))
        return false;
    *size = elements;
    return true;
}

enum status tensor_new(struct tensor *tensor, int rank, const int *shape,
                       struct error *error)
{
    size_t size;
    struct tensor made = { .rank = rank };
    if (rank < 1 || rank > TENSOR_RANK_MAX)
        return error_set(error, STATUS_INVALID,
                         "rank: expected 1 to %d, got %d",
                         (int)TENSOR_RANK_MAX, rank);
    if (!shape_size(rank, shape, &size)) {
        char text[TENSOR_SHAPE_TEXT_MAX];
        return error_set(error, STATUS_INVALID,
                         "shape: expected positive sizes whose bytes fit"
                         " a size_t, got %s", shape_text(rank, shape, text));
    }
    made.data = calloc(size, sizeof *made.data);
    if (made.data == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "tensor: no memory for %zu floats", size);
    memcpy(made.shape, shape, (size_t)rank * sizeof *shape);
    *tensor = made;
    return STATUS_OK;
}

void tensor_free(struct tensor *tensor)
{
    if (tensor == NULL)
        return;
    free(tensor->data);
    *tensor = (struct tensor){ 0 };
}

size_t tensor_size(const struct tensor *tensor)
{
    size_t size = 0;
    return shape_size(tensor->rank, tensor->shape, &size) ? size : 0;
}

bool tensor_same_shape(const struct tensor *a, const struct tensor *b)
{
    return a->rank == b->rank
        && memcmp(a->shape, b->shape, sizeof a->shape) == 0;
}

char *shape_text(int rank, const int *shape, char *text)
{
    int at = snprintf(text, TENSOR_SHAPE_TEXT_MAX, "[");
    for (int axis = 0; axis < rank && axis < TENSOR_RANK_MAX; axis++)
        at += snprintf(text + at, (size_t)(TENSOR_SHAPE_TEXT_MAX - at),
                       "%s%d", axis == 0 ? "" : ", ", shape[axis]);
    snprintf(text + at, (size_t)(TENSOR_SHAPE_TEXT_MAX - at), "]");
    return text;
}
