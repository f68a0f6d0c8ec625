#ifndef TOKENIZER_FILES_H
#define TOKENIZER_FILES_H

#include "error.h"

/* Copies a tokenizer's files into a directory, each whole or not at all.
   Both paths are as for tokenizer_open: those that lie in tokenizer_path
   when it is a directory; it alone when it is a file (with merges.txt beside
   a vocab.json); with NULL those beside the model; nothing for "bytes". What
   other tools keep with a tokenizer is copied too. Files that are missing
   are nobody's fault. */
enum status tokenizer_files_copy(const char *model_path,
                                 const char *tokenizer_path, int vocab_size,
                                 const char *directory, struct error *error);
/* The same arguments, and nothing is written: refuses a directory that has a
   file of a tokenizer which would not be such a copy. One that is missing is
   fine. */
enum status tokenizer_files_check(const char *model_path,
                                  const char *tokenizer_path, int vocab_size,
                                  const char *directory, struct error *error);

#endif
