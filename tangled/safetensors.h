#ifndef SAFETENSORS_H
#define SAFETENSORS_H
#include <stddef.h>
#include <stdint.h>
#include "error.h"
#include "file.h"

enum dtype {
    DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I32, DTYPE_I64,
    DTYPE_F64, DTYPE_U8, DTYPE_I8, DTYPE_U16, DTYPE_I16, DTYPE_U32,
    DTYPE_U64, DTYPE_BOOL
};
const char *dtype_name(enum dtype dtype);   /* "F32" */
size_t dtype_size(enum dtype dtype);        /* bytes of an element */

enum { SAFETENSORS_RANK_MAX = 8 };

struct safetensors_entry {
    const char *name;
    enum dtype dtype;
    int rank;                               /* 0: one element, no index */
    int64_t shape[SAFETENSORS_RANK_MAX];    /* sizes may be 0 */
    const void *data;                       /* little-endian, unaligned */
    size_t bytes;
};

struct safetensors;     /* owns the contents of a file */

/* Reads the whole file and checks all of it: header, every entry, and that
   the entries cover the data without a gap or an overlap. STATUS_FORMAT with
   the path, the tensor and the reason when something is off. The caller owns
   *file: safetensors_close, which nulls it. *file is unchanged on error. */
enum status safetensors_open(struct safetensors **file, const char *path,
                             struct error *error);
void safetensors_close(struct safetensors **file);

/* Entries in the order of their names, borrowed, alive until the close. */
size_t safetensors_count(const struct safetensors *file);
const struct safetensors_entry *safetensors_at(
    const struct safetensors *file, size_t index);
/* NULL when there is none of that name, or no such key. */
const struct safetensors_entry *safetensors_find(
    const struct safetensors *file, const char *name);
const char *safetensors_metadata(const struct safetensors *file,
                                 const char *key);

/* The same checks on bytes of the caller, who keeps them alive until the
   close. name stands for the path in messages. */
enum status safetensors_parse(struct safetensors **file, const char *name,
                              const void *bytes, size_t length,
                              struct error *error);

struct safetensors_pair { const char *key, *value; };

/* Replaces the file at path, atomically, by these tensors, sorted by name,
   and this metadata, in the order given. Equal input, equal bytes. Refuses
   an entry whose bytes are not what dtype and shape say, and names or keys
   that repeat. */
enum status safetensors_write(const char *path,
                              const struct safetensors_entry *entries,
                              size_t count,
                              const struct safetensors_pair *metadata,
                              size_t metadata_count, struct error *error);
/* The same, as a draft that the caller publishes or discards. */
enum status safetensors_draft(struct file_draft *draft, const char *path,
                              const struct safetensors_entry *entries,
                              size_t count,
                              const struct safetensors_pair *metadata,
                              size_t metadata_count, struct error *error);

#endif
