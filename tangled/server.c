#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "line_reader.h"
#include "serve_line.h"
#include "server.h"
#include "text_stream.h"
#include "utf8.h"

struct client {
    struct server *server;
    char *id;                    /* as JSON; NULL: nobody */
    bool nameless;               /* the id is the number of a line */
    int64_t ticket;
    int tokens;                  /* said */
    struct text_stream text;
    char stop[STOP_BYTES_MAX], last[STOP_BYTES_MAX];   /* bytes */
    size_t stop_length, seen;    /* seen: bytes of text so far */
    bool stopped;
    struct text_ends ends;
    bool over;                   /* one of them was said */
};

struct server {
    const struct speaker *speaker;
    const struct slots_limits *limits;
    FILE *output;
    struct slots *slots;
    struct line_reader *lines;
    struct client *clients;      /* [R+Q] */
    struct served served;
};

static int places_of(const struct server *server)
{
    return server->limits->slots + server->limits->waiting;
}

/* NULL is the id of one that is nobody's; nobody calls for the nameless. */
static struct client *client_of(const struct server *server, const char *id)
{
    for (int k = 0; k < places_of(server); k++) {
        struct client *client = &server->clients[k];
        if (client->id == NULL ? id == NULL
            : id != NULL && !client->nameless && strcmp(client->id, id) == 0)
            return client;
    }
    return NULL;
}

static void put_text(FILE *output, const char *bytes, size_t length)
{
    for (size_t k = 0; k < length; k++) {
        const unsigned char byte = (unsigned char)bytes[k];
        if (byte < 0x20)
            fprintf(output, "\\u%04x", byte);
        else if (byte == '"' || byte == '\\')
            fprintf(output, "\\%c", byte);
        else
            fputc(byte, output);
    }
}

static void put_message(FILE *output, const struct error *error)
{
    const char *text = error->message;
    size_t length = strlen(text);
    fprintf(output, "\"error\": \"");
    while (length > 0) {
        const int size = utf8_next((const unsigned char *)text, length);
        const size_t step = size > 0 ? (size_t)size : 1;
        if (size > 0)
            put_text(output, text, step);
        else
            fprintf(output, "\\ufffd");
        text += step;
        length -= step;
    }
    fputc('"', output);
}

static void put_name(const struct client *client)
{
    fprintf(client->server->output, "{\"%s\": %s, ",
            client->nameless ? "line" : "id", client->id);
}

static void put_error(const struct server *server, const char *id,
                      const struct error *error)
{
    if (id != NULL)
        fprintf(server->output, "{\"id\": %s, ", id);
    else
        fprintf(server->output, "{\"line\": %ld, ", server->served.lines);
    put_message(server->output, error);
    fprintf(server->output, "}\n");
}

static void look_for_stop(struct client *client, const char *bytes,
                          size_t count)
{
    const size_t length = client->stop_length;
    for (size_t k = 0; length > 0 && k < count; k++) {
        memmove(client->last, client->last + 1, length - 1);
        client->last[length - 1] = bytes[k];
        client->seen++;
        if (client->seen >= length
            && memcmp(client->last, client->stop, length) == 0)
            client->stopped = true;
    }
}

static bool put_character(void *context, const char *bytes, size_t length,
                          bool whole)
{
    struct client *client = context;
    if (whole) {
        put_text(client->server->output, bytes, length);
        look_for_stop(client, bytes, length);
    } else {
        fprintf(client->server->output, "\\ufffd");
        look_for_stop(client, "\xef\xbf\xbd", 3);
    }
    return true;
}

static bool on_token(void *context, int32_t id)
{
    struct client *client = context;
    FILE *output = client->server->output;
    client->tokens++;
    put_name(client);
    fprintf(output, "\"token\": %d", (int)id);
    if (client->text.tokenizer != NULL) {
        fprintf(output, ", \"text\": \"");
        text_stream_add(&client->text, id);
        fputc('"', output);
    }
    fprintf(output, "}\n");
    client->over = text_ends_with(&client->ends, id);
    return !client->stopped && !client->over;
}

static void on_end(void *context, enum slot_end end,
                   const struct error *error)
{
    struct client *client = context;
    FILE *output = client->server->output;
    put_name(client);
    if (end == ENDED_STOP && client->over)
        end = ENDED_EOS;
    fprintf(output, "\"end\": \"%s\", \"tokens\": %d", slot_end_name(end),
            client->tokens);
    if (client->text.tokenizer != NULL) {
        fprintf(output, ", \"text\": \"");
        text_stream_end(&client->text);
        fputc('"', output);
    }
    if (error != NULL) {
        fprintf(output, ", ");
        put_message(output, error);
    }
    fprintf(output, "}\n");
    free(client->id);
    client->id = NULL;
}

static enum status let_in(struct server *server, struct serve_line *line,
                          struct error *error)
{
    enum { NUMBER = 32 };            /* characters */
    const bool nameless = line->id == NULL;
    if (nameless) {
        line->id = malloc(NUMBER);
        if (line->id == NULL)
            return error_set(error, STATUS_NO_MEMORY, "no memory for an id");
        snprintf(line->id, NUMBER, "%ld", server->served.lines);
    }
    if (!nameless && client_of(server, line->id) != NULL)
        return error_set(error, STATUS_INVALID, "id: the one that has it is in,"
                         " and this is another");
    struct client *client = client_of(server, NULL);
    *client = (struct client){
        .server = server, .id = line->id, .nameless = nameless,
        .ends = line->ends, .stop_length = line->stop_length,
        .text = {.tokenizer = server->speaker->tokenizer, .previous = -1,
                 .show = put_character, .context = client}
    };
    memcpy(client->stop, line->stop, sizeof client->stop);
    if (line->request.tokens > 0)
        client->text.previous = line->request.ids[line->request.tokens - 1];
    line->request.on_token = on_token;
    line->request.on_end = on_end;
    line->request.context = client;
    line->id = NULL;             /* the client's now */
    enum status status = slots_submit(server->slots, &line->request,
                                      &client->ticket, error);
    if (status == STATUS_OK) {
        server->served.requests++;
    } else {
        line->id = client->id;
        client->id = NULL;
    }
    if (status != STATUS_OK && nameless) {
        free(line->id);
        line->id = NULL;
    }
    return status;
}

static bool is_blank(const char *text, size_t length)
{
    size_t k = 0;
    while (k < length && (text[k] == ' ' || text[k] == '\t'
                          || text[k] == '\r'))
        k++;
    return k == length;
}

static enum status take_line(struct server *server, const char *text,
                             size_t length, struct serve_line *line,
                             struct error *error)
{
    enum status status = serve_line_parse(line, text, length,
                                          server->speaker,
                                          server->limits->capacity, error);
    if (status != STATUS_OK)
        return status;
    if (line->cancel == NULL)
        return let_in(server, line, error);
    const struct client *client = client_of(server, line->cancel);
    if (client == NULL)
        return error_set(error, STATUS_INVALID, "cancel: it is not in");
    return slots_cancel(server->slots, client->ticket, error);
}

static void take(struct server *server, enum line_kind kind,
                 const char *text, size_t length)
{
    struct serve_line line = {.id = NULL};
    struct error error;
    enum status status = STATUS_OK;
    server->served.lines++;
    if (kind == LINE_TOO_LONG)
        status = error_set(&error, STATUS_INVALID, "expected a line of at"
                           " most %d bytes", LINE_BYTES_MAX);
    else if (!is_blank(text, length))
        status = take_line(server, text, length, &line, &error);
    if (status != STATUS_OK) {
        put_error(server, line.id, &error);
        server->served.refused++;
    }
    serve_line_free(&line);
}

static int in(const struct server *server)
{
    const struct slots_counts counts = slots_counts(server->slots);
    return counts.waiting + counts.seated;
}

static enum status take_lines(struct server *server, bool *over,
                              struct error *error)
{
    const int places = places_of(server);
    const char *text = NULL;
    size_t length = 0;
    enum line_kind kind = LINE_GIVEN;
    while ((kind == LINE_GIVEN || kind == LINE_TOO_LONG)
           && in(server) < places) {
        kind = line_reader_next(server->lines, in(server) == 0, &text, &length);
        if (kind == LINE_GIVEN || kind == LINE_TOO_LONG) {
            take(server, kind, text, length);
            fflush(server->output);
        }
    }
    if (kind == LINE_FAILED)
        return error_set(error, STATUS_IO, "cannot read: %s",
                         strerror(errno));
    *over = kind == LINE_OVER;
    return STATUS_OK;
}

static enum status serve(struct server *server, struct error *error)
{
    bool over = false, more = true;
    enum status status = STATUS_OK;
    while (status == STATUS_OK && (more || !over)) {
        status = take_lines(server, &over, error);
        if (status == STATUS_OK)
            status = slots_step(server->slots, &more, error);
        if (status == STATUS_OK
            && (fflush(server->output) != 0 || ferror(server->output)))
            status = error_set(error, STATUS_IO, "cannot write: %s",
                               strerror(errno));
    }
    return status;
}

static void server_close(struct server *server)
{
    slots_free(&server->slots);
    for (int k = 0; server->clients != NULL && k < places_of(server); k++)
        free(server->clients[k].id);
    free(server->clients);
    line_reader_free(&server->lines);
}

enum status serve_lines(const struct speaker *speaker,
                        const struct slots_limits *limits, int input,
                        FILE *output, struct served *served,
                        struct error *error)
{
    struct server server = {.speaker = speaker, .limits = limits,
                            .output = output};
    enum status status = slots_new(&server.slots, &speaker->lm, limits,
                                   error);
    if (status == STATUS_OK)
        status = line_reader_new(&server.lines, input, LINE_BYTES_MAX, error);
    if (status == STATUS_OK) {
        server.clients = calloc((size_t)places_of(&server),
                                sizeof *server.clients);
        status = server.clients != NULL ? serve(&server, error)
            : error_set(error, STATUS_NO_MEMORY, "no memory for %d clients",
                        places_of(&server));
    }
    if (status == STATUS_OK) {
        *served = server.served;
        served->counts = slots_counts(server.slots);
    }
    server_close(&server);
    return status;
}
