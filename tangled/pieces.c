#define PCRE2_CODE_UNIT_WIDTH 8
#include "pieces.h"
#include <pcre2.h>
#include <stdlib.h>
#include "utf8.h"

#define SPACE "\\x{09}-\\x{0d}\\x{20}\\x{85}\\x{a0}\\x{1680}" \
    "\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

static const char pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d"
    "| ?\\p{L}+"
    "| ?\\p{N}+"
    "| ?[^" SPACE "\\p{L}\\p{N}]+"
    "|[" SPACE "]+(?![^" SPACE "])"
    "|[" SPACE "]+"
    ;

struct pieces {
    pcre2_general_context *memory;
    pcre2_code *code;
};

struct piece_cutter {
    const struct pieces *pieces;
    pcre2_match_data *match;
    const unsigned char *text;
    size_t length, at;
    size_t valid;                /* the text is UTF-8 from at to here */
};

static void *get_memory(size_t size, void *context)
{
    (void)context;
    return malloc(size);
}

static void give_memory(void *memory, void *context)
{
    (void)context;
    free(memory);
}

enum status pieces_new(struct pieces **pieces, struct error *error)
{
    int problem = 0;
    PCRE2_SIZE offset = 0;
    struct pieces *made = calloc(1, sizeof *made);
    if (made != NULL)
        made->memory = pcre2_general_context_create(get_memory, give_memory,
                                                    NULL);
    pcre2_compile_context *context = made != NULL && made->memory != NULL
        ? pcre2_compile_context_create(made->memory) : NULL;
    if (context != NULL)
        made->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED,
                                   &problem, &offset, context);
    pcre2_compile_context_free(context);
    if (made == NULL || made->code == NULL) {
        pieces_free(&made);
        return error_set(error, STATUS_NO_MEMORY,
                         "no memory for the pattern (%d)", problem);
    }
    *pieces = made;
    return STATUS_OK;
}

void pieces_free(struct pieces **pieces)
{
    if (pieces == NULL || *pieces == NULL)
        return;
    pcre2_code_free((*pieces)->code);
    pcre2_general_context_free((*pieces)->memory);
    free(*pieces);
    *pieces = NULL;
}

enum status piece_cutter_new(struct piece_cutter **cutter,
                             const struct pieces *pieces,
                             const unsigned char *text, size_t length,
                             struct error *error)
{
    struct piece_cutter *made = calloc(1, sizeof *made);
    if (made != NULL)
        made->match = pcre2_match_data_create(1, pieces->memory);
    if (made == NULL || made->match == NULL) {
        piece_cutter_free(&made);
        return error_set(error, STATUS_NO_MEMORY,
                         "no memory to cut a text");
    }
    made->pieces = pieces;
    made->text = text;
    made->length = length;
    *cutter = made;
    return STATUS_OK;
}

void piece_cutter_free(struct piece_cutter **cutter)
{
    if (cutter == NULL || *cutter == NULL)
        return;
    pcre2_match_data_free((*cutter)->match);
    free(*cutter);
    *cutter = NULL;
}

static enum status match_here(struct piece_cutter *cutter, size_t *length,
                              struct error *error)
{
    const int found = pcre2_match(cutter->pieces->code,
                                  cutter->text + cutter->at,
                                  cutter->valid - cutter->at, 0,
                                  PCRE2_NO_UTF_CHECK, cutter->match, NULL);
    if (found < 0)
        return error_set(error, found == PCRE2_ERROR_NOMEMORY
                         ? STATUS_NO_MEMORY : STATUS_INVALID,
                         "cannot cut the text at byte %zu (%d)", cutter->at,
                         found);
    *length = pcre2_get_ovector_pointer(cutter->match)[1];
    return STATUS_OK;
}

enum status piece_cutter_next(struct piece_cutter *cutter, size_t *length,
                              struct error *error)
{
    enum status status = STATUS_OK;
    *length = 0;
    if (cutter->at == cutter->length)
        return STATUS_OK;
    if (cutter->valid < cutter->at)
        cutter->valid = cutter->at;
    if (cutter->valid == cutter->at) {
        int size;
        while ((size = utf8_next(cutter->text + cutter->valid,
                                 cutter->length - cutter->valid)) > 0)
            cutter->valid += (size_t)size;
    }
    if (cutter->valid == cutter->at) {
        *length = 1;
    } else {
        status = match_here(cutter, length, error);
    }
    cutter->at += *length;
    return status;
}
