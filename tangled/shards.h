#ifndef SHARDS_H
#define SHARDS_H

#include "safetensors.h"

/* The tensors of a directory: of model.safetensors, or of the files that
   model.safetensors.index.json lists. Mapped, all checked. */
struct shards;

/* *shards is unchanged on error. */
enum status shards_open(struct shards **shards, const char *directory,
                        struct error *error);
/* The same for one file, and for bytes of the caller, kept until the close;
   name stands for the path in messages. */
enum status shards_open_file(struct shards **shards, const char *path,
                             struct error *error);
enum status shards_parse(struct shards **shards, const char *name,
                         const void *bytes, size_t length,
                         struct error *error);
void shards_close(struct shards **shards);

/* In the order of their names, which differ; borrowed until the close. */
size_t shards_count(const struct shards *shards);
const struct safetensors_entry *shards_at(const struct shards *shards,
                                          size_t index);
/* The index of that name, or shards_count when there is none. */
size_t shards_find(const struct shards *shards, const char *name);
/* Of all files, headers included. */
size_t shards_bytes(const struct shards *shards);

/* One line of an index: tensors and their files, ordered by file and then
   by tensor. Names are borrowed from *json. */
struct shard_line { const char *file, *tensor; };
/* Checks the text of an index. The caller frees *lines, and *json with
   cJSON_Delete. Nothing is changed on error. */
struct cJSON;
enum status shard_index_parse(struct shard_line **lines, size_t *count,
                              struct cJSON **json, const char *text,
                              size_t length, struct error *error);
#endif
