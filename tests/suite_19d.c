/* Chapter 19, its page on a server: lines out of pipes, fields by name, then
   whole conversations, whose answers are read by another parser than wrote
   them. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "generate.h"
#include "line_reader.h"
#include "serve_line.h"
#include "server.h"
#include "support/allocator.h"
#include "support/compare.h"
#include "support/llamas.h"
#include "support/models.h"
#include "support/program.h"

static struct error error;

/* ------------------------------------------------------------------ lines */

/* A pipe with this in it, open for more when `more`. */
struct pipe_of { int out, in; };

static struct pipe_of pipe_of(const char *bytes, size_t length, bool more)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_le((int)length, 60000);
    ck_assert_int_eq((int)write(ends[1], bytes, length), (int)length);
    if (!more)
        close(ends[1]);
    return (struct pipe_of){ends[0], more ? ends[1] : -1};
}

static void pipe_close(struct pipe_of *source)
{
    close(source->out);
    if (source->in >= 0)
        close(source->in);
}

static struct line_reader *reader_of(int descriptor, size_t longest)
{
    struct line_reader *reader = NULL;
    expect_ok(line_reader_new(&reader, descriptor, longest, &error), &error);
    return reader;
}

static void expect_line(struct line_reader *reader, const char *wanted)
{
    const char *line = NULL;
    size_t length = 0;
    ck_assert_int_eq(line_reader_next(reader, true, &line, &length),
                     LINE_GIVEN);
    ck_assert_msg(length == strlen(wanted)
                  && memcmp(line, wanted, length) == 0,
                  "the line is \"%.*s\", expected \"%s\"", (int)length, line,
                  wanted);
}

static void expect_kind(struct line_reader *reader, bool wait,
                        enum line_kind kind)
{
    const char *line = NULL;
    size_t length = 0;
    ck_assert_int_eq(line_reader_next(reader, wait, &line, &length), kind);
}

START_TEST(lines_come_out_as_they_went_in)
{
    static const char *const texts[] = {"one\n\n three\nlast",
                                        "one\n\n three\nlast\n"};
    for (size_t longest = 6; longest < 30; longest++)
        for (int k = 0; k < 2; k++) {
            struct pipe_of source = pipe_of(texts[k], strlen(texts[k]),
                                            false);
            struct line_reader *reader = reader_of(source.out, longest);
            expect_line(reader, "one");
            expect_line(reader, "");
            expect_line(reader, " three");
            expect_line(reader, "last");
            expect_kind(reader, true, LINE_OVER);
            expect_kind(reader, false, LINE_OVER);
            line_reader_free(&reader);
            ck_assert_ptr_null(reader);
            pipe_close(&source);
        }
    struct pipe_of source = pipe_of("", 0, false);
    struct line_reader *reader = reader_of(source.out, 6);
    expect_kind(reader, true, LINE_OVER);
    line_reader_free(&reader);
    line_reader_free(&reader);
    pipe_close(&source);
}
END_TEST

START_TEST(a_line_that_is_too_long_is_passed_over_whole)
{
    for (int length = 4; length < 40; length++)
        for (int newline = 0; newline < 2; newline++) {
            char text[64];
            const int count = snprintf(text, sizeof text, "abcd\n%.*s%s",
                                       length, "0123456789012345678901234567"
                                       "890123456789", newline ? "\nz" : "");
            struct pipe_of source = pipe_of(text, (size_t)count, false);
            struct line_reader *reader = reader_of(source.out, 7);
            expect_line(reader, "abcd");
            expect_kind(reader, true, length > 7 ? LINE_TOO_LONG
                                                 : LINE_GIVEN);
            if (newline)
                expect_line(reader, "z");
            expect_kind(reader, true, LINE_OVER);
            line_reader_free(&reader);
            pipe_close(&source);
        }
}
END_TEST

/* A reader that waits here would wait for ever: the alarm ends it. */
START_TEST(an_empty_pipe_has_no_line_yet)
{
    struct pipe_of source = pipe_of("one\ntw", 6, true);
    struct line_reader *reader = reader_of(source.out, 20);
    alarm(5);
    expect_line(reader, "one");
    expect_kind(reader, false, LINE_NONE);
    expect_kind(reader, false, LINE_NONE);
    ck_assert_int_eq((int)write(source.in, "o\nthree", 7), 7);
    expect_line(reader, "two");
    expect_kind(reader, false, LINE_NONE);
    close(source.in);
    source.in = -1;
    expect_line(reader, "three");
    expect_kind(reader, false, LINE_OVER);
    alarm(0);
    line_reader_free(&reader);
    pipe_close(&source);
}
END_TEST

START_TEST(what_cannot_be_read_is_no_end)
{
    struct pipe_of source = pipe_of("", 0, false);
    struct line_reader *reader = reader_of(source.out, 20);
    close(source.out);
    expect_kind(reader, true, LINE_FAILED);
    line_reader_free(&reader);
    for (long n = 1; n < 3; n++) {
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = line_reader_new(&reader, 0, 20, &error);
        bool failed = allocator_stop();
        live = allocator_live() - live;
        ck_assert(failed && status == STATUS_NO_MEMORY && live == 0);
        ck_assert_ptr_null(reader);
    }
}
END_TEST

/* ----------------------------------------------------------------- fields */

enum { N = 24, V = 256 };

/* A model of noise that speaks bytes. */
struct voice {
    struct tiny_gpt *model;
    struct speaker speaker;
};

static struct voice voice_new(unsigned stream)
{
    const struct gpt_config config = {
        .vocab_size = V, .context_length = N, .d_model = 12, .n_layers = 2,
        .n_heads = 3, .d_ff = 7, .layer_norm_eps = 1e-5
    };
    struct voice voice = {.model = noisy_model(&config, stream)};
    voice.speaker.lm = tiny_gpt_causal_lm(voice.model);
    expect_ok(tokenizer_of_bytes(&voice.speaker.tokenizer, &error), &error);
    return voice;
}

static void voice_free(struct voice *voice)
{
    tokenizer_close(&voice->speaker.tokenizer);
    tiny_gpt_free(&voice->model);
}

static enum status parse(struct serve_line *line, const char *text,
                         const struct speaker *speaker, int capacity)
{
    *line = (struct serve_line){.id = NULL};
    return serve_line_parse(line, text, strlen(text), speaker, capacity,
                            &error);
}

START_TEST(every_field_is_refused_by_its_name)
{
    struct voice voice = voice_new(1900);
    struct speaker mute = voice.speaker;
    static const struct { const char *text, *says; bool named; } wrong[] = {
        {"", "object", false}, {"{", "object", false},
        {"[1]", "object", false}, {"3", "object", false},
        {"{\"id\": 1} {}", "object", false},
        {"{\"id\": 1, \"id\": 2, \"prompt\": \"a\"}", "twice", false},
        {"{\"id\": 1, \"prompt\": \"\\u0000\"}", "zero", false},
        {"{\"id\": \"\xff\", \"prompt\": \"a\"}", "UTF-8", false},
        {"{\"id\": \"\xc3\", \"prompt\": \"a\"}", "UTF-8", false},
        {"{\"id\": null, \"prompt\": \"a\"}", "id", false},
        {"{\"id\": [1], \"prompt\": \"a\"}", "id", false},
        {"{\"prompt\": 1, \"id\": 1}", "prompt", true},
        {"{\"id\": 1}", "prompt", true},
        {"{\"id\": 1, \"prompt\": \"a\", \"prompt_ids\": [1]}", "prompt",
         true},
        {"{\"id\": 1, \"prompt_ids\": [1], \"prompt\": \"a\"}", "prompt",
         true},
        {"{\"id\": 1, \"prompt_ids\": 1}", "prompt_ids", true},
        {"{\"id\": 1, \"prompt_ids\": [1, -1]}", "prompt_ids[1]", true},
        {"{\"id\": 1, \"prompt_ids\": [1.5]}", "prompt_ids[0]", true},
        {"{\"id\": 1, \"prompt_ids\": [\"a\"]}", "prompt_ids[0]", true},
        {"{\"id\": 1, \"prompt\": \"a\", \"max_new_tokens\": -1}",
         "max_new_tokens", true},
        {"{\"id\": 1, \"prompt\": \"a\", \"max_new_tokens\": 1.5}",
         "max_new_tokens", true},
        {"{\"id\": 1, \"prompt\": \"a\", \"max_new_tokens\": 1e300}",
         "max_new_tokens", true},
        {"{\"id\": 1, \"prompt\": \"a\", \"temperature\": \"hot\"}",
         "temperature", true},
        {"{\"id\": 1, \"prompt\": \"a\", \"seed\": -1}", "seed", true},
        {"{\"id\": 1, \"prompt\": \"a\", \"seed\": 1e17}", "seed", true},
        {"{\"id\": 1, \"prompt\": \"a\", \"eos\": -2}", "eos", true},
        {"{\"id\": 1, \"prompt\": \"a\", \"stop\": \"\"}", "stop", true},
        {"{\"id\": 1, \"prompt\": \"a\", \"stop\": 3}", "stop", true},
        {"{\"id\": 1, \"prompt\": \"a\", \"stop\": \"01234567890123456789012"
         "345678901234567890123456789012345678901234\"}", "stop", true},
        {"{\"id\": 1, \"prompt\": \"a\", \"stop_ids\": {}}", "stop_ids",
         true},
        {"{\"id\": 1, \"cancel\": 2}", "cancel", true},
        {"{\"cancel\": null}", "cancel", false},
        {"{\"id\": 1, \"promt\": \"a\"}", "promt", true},
        {"{\"id\": 1, \"prompt\": \"a\", \"max_tokens\": 3}", "max_tokens",
         true}};
    struct serve_line line;
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        ck_assert_msg(parse(&line, wrong[k].text, &voice.speaker, N)
                      != STATUS_OK, "not refused: %s", wrong[k].text);
        expect_named(&error, wrong[k].says);
        ck_assert_msg((line.id != NULL) == wrong[k].named,
                      "%s: the id is %s", wrong[k].text,
                      line.id != NULL ? line.id : "not known");
        serve_line_free(&line);
    }
    mute.tokenizer = NULL;
    ck_assert_int_eq(parse(&line, "{\"prompt\": \"a\"}", &mute, N),
                     STATUS_INVALID);
    expect_named(&error, "prompt_ids");
    serve_line_free(&line);
    ck_assert_int_eq(parse(&line, "{\"prompt_ids\": [1], \"stop\": \"a\"}",
                           &mute, N), STATUS_INVALID);
    serve_line_free(&line);
    expect_ok(parse(&line, "{\"prompt_ids\": [1]}", &mute, N), &error);
    ck_assert_int_eq(line.request.eos_token_id, NO_EOS);
    serve_line_free(&line);
    voice_free(&voice);
}
END_TEST

START_TEST(a_line_says_what_its_fields_say)
{
    struct voice voice = voice_new(1900);
    struct serve_line line;
    struct generator seeded;
    expect_ok(parse(&line, " {\"temperature\": 0.5, \"seed\": 7, \"id\": \""
                    "a\\\"\", \"prompt\": \"\\u00e9!\", \"stop\": \"end\","
                    " \"max_new_tokens\": 3, \"eos\": 9, \"stop_ids\":"
                    " [4, 5]} \r", &voice.speaker, N), &error);
    static const int32_t prompt[] = {0xc3, 0xa9, '!'}, stop[] = {4, 5};
    ck_assert_str_eq(line.id, "\"a\\\"\"");
    ck_assert_ptr_null(line.cancel);
    ck_assert_int_eq(line.request.tokens, 3);
    expect_same_bits("prompt", line.request.ids, prompt, sizeof prompt);
    ck_assert_int_eq(line.request.max_new_tokens, 3);
    ck_assert_int_eq(line.request.eos_token_id, 9);
    ck_assert_int_eq(line.request.stop_tokens, 2);
    expect_same_bits("stop_ids", line.request.stop, stop, sizeof stop);
    ck_assert_double_eq(line.request.temperature, 0.5);
    generator_seed(&seeded, 7, 6);     /* that of tinygpt generate */
    expect_same_bits("generator", &line.request.generator, &seeded,
                     sizeof seeded);
    ck_assert_int_eq((int)line.stop_length, 3);
    expect_same_bits("stop", line.stop, "end", 3);
    serve_line_free(&line);
    expect_ok(parse(&line, "{\"cancel\": 12}", &voice.speaker, N), &error);
    ck_assert_str_eq(line.cancel, "12");
    ck_assert_ptr_null(line.id);
    serve_line_free(&line);
    voice_free(&voice);
}
END_TEST

/* A double has every whole number below 2^53, and few above. */
START_TEST(a_number_is_a_name_when_it_can_be_written_back)
{
    struct voice voice = voice_new(1900);
    struct serve_line line;
    static const struct { const char *number, *written; } rows[] = {
        {"0", "0"}, {"-0", "0"}, {"5", "5"}, {"-17", "-17"}, {"1e3", "1000"},
        {"1234567890123456", "1234567890123456"}, {"12345678e-2", NULL},
        {"9007199254740991", "9007199254740991"},
        {"-9007199254740991", "-9007199254740991"},
        {"9007199254740992", NULL}, {"9007199254740993", NULL},
        {"-9007199254740992", NULL}, {"0.5", NULL}, {"1e300", NULL},
        {"1e999", NULL}};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        for (int cancels = 0; cancels < 2; cancels++) {
            char text[100];
            snprintf(text, sizeof text, cancels ? "{\"cancel\": %s}"
                     : "{\"id\": %s, \"prompt\": \"a\"}", rows[k].number);
            const enum status status = parse(&line, text, &voice.speaker, N);
            ck_assert_msg(status == (rows[k].written ? STATUS_OK
                                     : STATUS_INVALID), "%s", text);
            if (rows[k].written != NULL)
                ck_assert_str_eq(cancels ? line.cancel : line.id,
                                 rows[k].written);
            else
                ck_assert_str_eq(error.message, cancels
                    ? "cancel: expected a string or a whole number below 2^53"
                    : "id: expected a string or a whole number below 2^53");
            serve_line_free(&line);
        }
    voice_free(&voice);
}
END_TEST

START_TEST(an_answer_without_a_length_gets_the_room_that_there_is)
{
    struct voice voice = voice_new(1900);
    struct serve_line line;
    for (int capacity = 1; capacity <= N; capacity++)
        for (int tokens = 1; tokens <= N + 2; tokens++) {
            char text[200] = "{\"prompt\": \"";
            const int most = capacity < N ? capacity + 1 : N;
            memset(text + strlen(text), 'x', (size_t)tokens);
            strcat(text, "\"}");
            if (parse(&line, text, &voice.speaker, capacity) != STATUS_OK
                || line.request.tokens != tokens
                || line.request.max_new_tokens
                   != (tokens < most ? most - tokens : 0))
                ck_abort_msg("%d tokens in a slot of %d: %d new ones", tokens,
                             capacity, line.request.max_new_tokens);
            serve_line_free(&line);
        }
    voice_free(&voice);
}
END_TEST

/* ----------------------------------------------------------- conversations */

struct answers {
    char *text;
    size_t length;
    cJSON *lines;                /* an array of objects */
    struct served served;
};

static enum status serve_text(const struct speaker *speaker, int slots,
                              int capacity, int waiting, const char *text,
                              size_t length, struct answers *answers)
{
    struct pipe_of source = pipe_of(text, length, false);
    const struct slots_limits limits = {slots, capacity, slots + 4, waiting};
    *answers = (struct answers){.text = NULL};
    FILE *output = open_memstream(&answers->text, &answers->length);
    ck_assert_ptr_nonnull(output);
    enum status status = serve_lines(speaker, &limits, source.out, output,
                                     &answers->served, &error);
    fclose(output);
    pipe_close(&source);
    return status;
}

/* Each line by a parser. */
static void read_answers(struct answers *answers)
{
    char *at = answers->text;
    answers->lines = cJSON_CreateArray();
    while (*at != '\0') {
        char *end = strchr(at, '\n');
        ck_assert_msg(end != NULL, "a last line without its end: %s", at);
        *end = '\0';
        cJSON *object = cJSON_ParseWithOpts(at, NULL, true);
        ck_assert_msg(cJSON_IsObject(object), "no line of JSON: %s", at);
        cJSON_AddItemToArray(answers->lines, object);
        at = end + 1;
    }
}

static struct answers converse(const struct speaker *speaker, int slots,
                               int capacity, int waiting, const char *text)
{
    struct answers answers;
    expect_ok(serve_text(speaker, slots, capacity, waiting, text,
                         strlen(text), &answers), &error);
    read_answers(&answers);
    return answers;
}

static void answers_free(struct answers *answers)
{
    cJSON_Delete(answers->lines);
    free(answers->text);
}

static bool is_about(const cJSON *object, const char *id)
{
    const cJSON *own = cJSON_GetObjectItemCaseSensitive(object, "id");
    return cJSON_IsString(own) && strcmp(own->valuestring, id) == 0;
}

/* The tokens of a request, and its text; returns how it ended. */
static const char *answer_of(const struct answers *answers, const char *id,
                             int32_t *tokens, int *count, char *text)
{
    const char *end = NULL;
    const cJSON *object;
    *count = 0;
    text[0] = '\0';
    cJSON_ArrayForEach(object, answers->lines) {
        const cJSON *token = cJSON_GetObjectItem(object, "token");
        const cJSON *piece = cJSON_GetObjectItem(object, "text");
        const cJSON *last = cJSON_GetObjectItem(object, "end");
        if (!is_about(object, id) || (token == NULL && last == NULL))
            continue;
        ck_assert_msg(end == NULL, "%s goes on behind its end", id);
        if (token != NULL)
            tokens[(*count)++] = token->valueint;
        if (piece != NULL)
            strcat(text, piece->valuestring);
        if (last != NULL) {
            end = last->valuestring;
            ck_assert_int_eq(cJSON_GetObjectItem(object, "tokens")->valueint,
                             *count);
        }
    }
    ck_assert_msg(end != NULL, "%s has no end", id);
    return end;
}

static void expect_generated(const struct voice *voice,
                             const struct answers *answers, const char *id,
                             const char *prompt, int wanted,
                             double temperature, uint64_t seed)
{
    int32_t tokens[200], ids[N];
    char text[800];
    int count = 0;
    struct generator generator;
    struct generate_output output = {0};
    for (size_t k = 0; k < strlen(prompt); k++)
        ids[k] = (unsigned char)prompt[k];
    generator_seed(&generator, seed, 6);
    const struct generate_input input = {
        .ids = ids, .batch = 1, .tokens = (int)strlen(prompt),
        .max_new_tokens = wanted, .temperature = temperature,
        .eos_token_id = NO_EOS, .generator = &generator
    };
    expect_ok(tiny_gpt_generate(voice->model, &input, &output, &error),
              &error);
    ck_assert_str_eq(answer_of(answers, id, tokens, &count, text), "length");
    ck_assert_int_eq(count, wanted);
    expect_same_bits("tokens", tokens, output.ids + input.tokens,
                     (size_t)wanted * sizeof *tokens);
    generate_output_free(&output);
}

/* The errors that name this line, or this id. */
static int errors_about(const struct answers *answers, const char *id,
                        int line)
{
    int count = 0;
    const cJSON *object;
    cJSON_ArrayForEach(object, answers->lines) {
        const cJSON *number = cJSON_GetObjectItem(object, "line");
        if (cJSON_GetObjectItem(object, "error") != NULL
            && (id != NULL ? is_about(object, id)
                : number != NULL && number->valueint == line))
            count++;
    }
    return count;
}

START_TEST(what_is_written_back_is_spelled)
{
    struct voice voice = voice_new(1901);
    struct answers answers = converse(&voice.speaker, 1, N, 0,
        "{\"id\": \"q\\\"\\\\\\n\\u00e9\", \"prompt\": \"a\","
        " \"max_new_tokens\": 0}\n"
        "{\"a\\\"\\\\\\u0001\\u00e9\": 1}\n");
    const char *id = "q\"\\\n\xc3\xa9";
    ck_assert(is_about(cJSON_GetArrayItem(answers.lines, 0), id));
    const cJSON *why = cJSON_GetObjectItem(
        cJSON_GetArrayItem(answers.lines, 1), "error");
    ck_assert_ptr_nonnull(why);
    ck_assert_ptr_nonnull(strstr(why->valuestring, "a\"\\?\xc3\xa9"));
    answers_free(&answers);
    /* a name that is cut in the middle of a character */
    char text[400] = "{\"x";
    for (int k = 0; k < 80; k++)
        strcat(text, "\xc3\xa9");
    strcat(text, "\": 1}\n");
    answers = converse(&voice.speaker, 1, N, 0, text);
    why = cJSON_GetObjectItem(cJSON_GetArrayItem(answers.lines, 0), "error");
    ck_assert_ptr_nonnull(strstr(why->valuestring, "\xc3\xa9\xef\xbf\xbd"));
    answers_free(&answers);
    voice_free(&voice);
}
END_TEST

START_TEST(two_who_are_in_have_two_names)
{
    struct voice voice = voice_new(1902);
    struct answers answers = converse(&voice.speaker, 2, N, 4,
        "{\"id\": \"1\", \"prompt\": \"ab\", \"max_new_tokens\": 9}\n"
        "{\"id\": 1, \"prompt\": \"cd\", \"max_new_tokens\": 9}\n"
        "{\"id\": \"1\", \"prompt\": \"ef\", \"max_new_tokens\": 9}\n"
        "{\"prompt\": \"gh\", \"max_new_tokens\": 1}\n");
    ck_assert_int_eq(errors_about(&answers, "1", 0), 1);
    ck_assert_int_eq(answers.served.refused, 1);
    ck_assert_int_eq(answers.served.requests, 3);
    expect_generated(&voice, &answers, "1", "ab", 9, 0, 0);
    char *all = cJSON_PrintUnformatted(answers.lines);
    ck_assert_ptr_nonnull(strstr(all, "{\"line\":4,\"end\":\"length\""));
    cJSON_free(all);
    answers_free(&answers);
    voice_free(&voice);
}
END_TEST

START_TEST(a_stop_is_found_wherever_its_bytes_come)
{
    struct voice voice = voice_new(1903);
    int32_t tokens[200];
    char text[800], line[200];
    int count = 0, tried = 0;
    for (uint64_t seed = 1; seed < 60 && tried < 6; seed++) {
        snprintf(line, sizeof line, "{\"id\": \"a\", \"prompt\": \"abc\","
                 " \"seed\": %d, \"temperature\": 3}\n", (int)seed);
        struct answers whole = converse(&voice.speaker, 1, N, 0, line);
        answer_of(&whole, "a", tokens, &count, text);
        answers_free(&whole);
        int at = 2;              /* two letters, not at the beginning */
        while (at + 1 < count && !(tokens[at] > ' ' && tokens[at] < 127
                                   && strchr("\"\\", tokens[at]) == NULL
                                   && tokens[at + 1] > ' '
                                   && tokens[at + 1] < 127
                                   && strchr("\"\\", tokens[at + 1]) == NULL))
            at++;
        if (at + 1 >= count)
            continue;
        tried++;
        snprintf(line, sizeof line, "{\"id\": \"a\", \"prompt\": \"abc\","
                 " \"seed\": %d, \"temperature\": 3, \"stop\": \"%c%c\"}\n",
                 (int)seed, (int)tokens[at], (int)tokens[at + 1]);
        struct answers cut = converse(&voice.speaker, 1, N, 0, line);
        ck_assert_str_eq(answer_of(&cut, "a", tokens, &count, text), "stop");
        ck_assert_int_eq(count, at + 2);
        answers_free(&cut);
    }
    ck_assert_int_ge(tried, 3);
    voice_free(&voice);
}
END_TEST

/* Each way to end has an answer that is cut behind its id; a line's own eos is
   the only one. */
START_TEST(each_end_of_a_model_ends_an_answer)
{
    struct voice voice = voice_new(1906);
    const char *const line = "{\"id\": \"a\", \"prompt\": \"abc\"}\n";
    int32_t tokens[200], cut[200];
    char text[800];
    int count = 0, shorter = 0;
    int32_t unsaid = 0;
    struct answers whole = converse(&voice.speaker, 1, N, 0, line);
    ck_assert_str_eq(answer_of(&whole, "a", tokens, &count, text), "length");
    answers_free(&whole);
    for (int k = 0; k < count; k++)
        if (tokens[k] == unsaid) {
            unsaid++;
            k = -1;
        }
    for (int at = 0; at < count; at++) {
        int first = 0;
        while (tokens[first] != tokens[at])
            first++;
        for (int place = 0; place < 3; place++) {
            voice.speaker.ends = (struct text_ends){
                3, {unsaid, unsaid, unsaid}};
            voice.speaker.ends.ids[place] = tokens[at];
            struct answers answers = converse(&voice.speaker, 1, N, 0, line);
            ck_assert_str_eq(answer_of(&answers, "a", cut, &shorter, text),
                             "eos");
            ck_assert_int_eq(shorter, first + 1);
            expect_same_bits("tokens", cut, tokens,
                             (size_t)shorter * sizeof *cut);
            answers_free(&answers);
        }
    }
    whole = converse(&voice.speaker, 1, N, 0, "{\"id\": \"a\", \"eos\": -1,"
                     " \"prompt\": \"abc\"}\n");
    ck_assert_str_eq(answer_of(&whole, "a", cut, &shorter, text), "length");
    ck_assert_int_eq(shorter, count);
    answers_free(&whole);
    voice_free(&voice);
}
END_TEST

/* Lines 1 to 3 have no name; others are called 1, 2 and 3. */
START_TEST(a_nameless_request_is_in_nobodys_way)
{
    struct voice voice = voice_new(1911);
    struct answers answers = converse(&voice.speaker, 2, N, 6,
        "{\"prompt\": \"ab\", \"max_new_tokens\": 9}\n"
        "{\"prompt\": \"ab\", \"max_new_tokens\": 9}\n"
        "{\"prompt\": \"ab\", \"temperature\": -1}\n"
        "{\"id\": 1, \"prompt\": \"cd\", \"max_new_tokens\": 8}\n"
        "{\"id\": 2, \"prompt\": \"ef\", \"max_new_tokens\": 7}\n"
        "{\"id\": \"1\", \"prompt\": \"gh\", \"max_new_tokens\": 6}\n"
        "{\"cancel\": 2}\n"
        "{\"cancel\": 3}\n");
    static const struct { const char *end; int count; } rows[] = {
        {"{\"line\":1,\"end\":\"length\",\"tokens\":9", 1},
        {"{\"line\":2,\"end\":\"length\",\"tokens\":9", 1},
        {"{\"line\":3,\"error\"", 1}, {"{\"line\":3,\"end\"", 0},
        {"{\"id\":1,\"end\":\"length\",\"tokens\":8", 1},
        {"{\"id\":2,\"end\":\"cancelled\",\"tokens\":0", 1},
        {"{\"id\":\"1\",\"end\":\"length\",\"tokens\":6", 1},
        {"{\"line\":1,\"token\"", 9}, {"{\"line\":2,\"token\"", 9},
        {"{\"id\":1,\"token\"", 8}, {"{\"id\":\"1\",\"token\"", 6},
        {"{\"line\":8,\"error\"", 1},
    };
    char *all = cJSON_PrintUnformatted(answers.lines);
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        int count = 0;
        for (const char *at = all; (at = strstr(at, rows[k].end)) != NULL;
             at++)
            count++;
        ck_assert_msg(count == rows[k].count, "%d times %s in %s", count,
                      rows[k].end, all);
    }
    ck_assert_int_eq(answers.served.refused, 2);
    cJSON_free(all);
    answers_free(&answers);
    voice_free(&voice);
}
END_TEST

static bool is_plain(int32_t byte)
{
    return byte > ' ' && byte < 127 && strchr("\"\\", byte) == NULL;
}

/* X, a byte that is no character, Y: the stop XY is not there, and one that
   begins with what was shown in between is. */
START_TEST(a_stop_is_sought_in_what_is_shown)
{
    struct voice voice = voice_new(1910);
    int32_t tokens[200];
    char text[800], line[200], stop[8];
    int count = 0, tried = 0;
    for (uint64_t seed = 1; seed < 200 && tried < 6; seed++) {
        snprintf(line, sizeof line, "{\"id\": \"a\", \"prompt\": \"abc\","
                 " \"seed\": %d, \"temperature\": 3}\n", (int)seed);
        struct answers whole = converse(&voice.speaker, 1, N, 0, line);
        answer_of(&whole, "a", tokens, &count, text);
        answers_free(&whole);
        int at = 0;
        while (at + 2 < count && !(is_plain(tokens[at])
                                   && tokens[at + 1] >= 0x80
                                   && tokens[at + 1] < 0xc0
                                   && is_plain(tokens[at + 2])))
            at++;
        if (at + 2 >= count)
            continue;
        snprintf(stop, sizeof stop, "%c%c", (int)tokens[at],
                 (int)tokens[at + 2]);
        if (strstr(text, stop) != NULL)
            continue;
        tried++;
        for (int shown = 0; shown < 2; shown++) {
            if (shown)
                snprintf(stop, sizeof stop, "\xef\xbf\xbd%c",
                         (int)tokens[at + 2]);
            snprintf(line, sizeof line, "{\"id\": \"a\", \"prompt\": \"abc\""
                     ", \"seed\": %d, \"temperature\": 3, \"stop\": \"%s\"}"
                     "\n", (int)seed, stop);
            int32_t others[200];
            int other_count = 0;
            struct answers cut = converse(&voice.speaker, 1, N, 0, line);
            ck_assert_str_eq(answer_of(&cut, "a", others, &other_count, text),
                             shown ? "stop" : "length");
            if (shown)
                ck_assert_str_eq(strstr(text, stop), stop);
            else
                ck_assert_int_eq(other_count, count);
            answers_free(&cut);
        }
    }
    ck_assert_int_ge(tried, 3);
    voice_free(&voice);
}
END_TEST

/* A hundred through three places: the others wait in the pipe. */
START_TEST(the_pipe_waits_while_no_place_is_free)
{
    struct voice voice = voice_new(1904);
    char *text = calloc(100, 100), line[100], id[16];
    for (int k = 0; k < 100; k++) {
        snprintf(line, sizeof line, "{\"id\": \"r%d\", \"prompt\": \"a%d\","
                 " \"max_new_tokens\": %d}\n", k, k, 1 + k % 7);
        strcat(text, line);
    }
    struct answers answers = converse(&voice.speaker, 2, N, 1, text);
    ck_assert_int_eq(answers.served.requests, 100);
    ck_assert_int_eq(answers.served.refused, 0);
    for (int k = 0; k < 100; k++) {
        char prompt[16];
        snprintf(id, sizeof id, "r%d", k);
        snprintf(prompt, sizeof prompt, "a%d", k);
        expect_generated(&voice, &answers, id, prompt, 1 + k % 7, 0, 0);
    }
    free(text);
    answers_free(&answers);
    voice_free(&voice);
}
END_TEST

START_TEST(a_conversation_is_answered_line_by_line)
{
    struct voice voice = voice_new(1905);
    struct answers answers = converse(&voice.speaker, 2, N, 4,
        "{\"id\": \"a\", \"prompt\": \"abcd\", \"max_new_tokens\": 12}\n"
        "{\"id\": \"b\", \"prompt\": \"xyz\", \"temperature\": 2, \"seed\":"
        " 5, \"max_new_tokens\": 8}\n"
        "\n  \r\n"
        "{\"id\": \"c\", \"prompt\": \"abcdefghijklmnopqrstuvwxyz\"}\n"
        "{\"id\": \"d\", \"prompt\": \"\"}\n"
        "{\"id\": \"e\", \"prompt_ids\": [300]}\n"
        "{\"id\": \"f\", \"prompt\": \"q\", \"temperature\": -1}\n"
        "{\"id\": \"g\", \"prompt\": \"pq\", \"temperature\": 1, \"seed\":"
        " 9007199254740992, \"max_new_tokens\": 22}\n"
        "{\"id\": \"h\", \"prompt\": \"q\", \"max_new_tokens\": 0}");
    expect_generated(&voice, &answers, "a", "abcd", 12, 0, 0);
    expect_generated(&voice, &answers, "b", "xyz", 8, 2, 5);
    expect_generated(&voice, &answers, "g", "pq", 22, 1, 9007199254740992u);
    expect_generated(&voice, &answers, "h", "q", 0, 0, 0);
    for (char id = 'c'; id <= 'f'; id++)
        ck_assert_int_eq(errors_about(&answers, (char[]){id, '\0'}, 0), 1);
    ck_assert_int_eq(answers.served.lines, 10);
    ck_assert_int_eq(answers.served.requests, 4);
    ck_assert_int_eq(answers.served.refused, 4);
    ck_assert_int_eq(answers.served.counts.emitted, 12 + 8 + 22);
    answers_free(&answers);
    voice_free(&voice);
}
END_TEST

START_TEST(noise_between_lines_changes_no_answer)
{
    struct voice voice = voice_new(1906);
    uint64_t state = noise_start(1906);
    for (int run = 0; run < 8; run++) {
        char text[9000];
        size_t length = 0;
        int bad = 0;
        for (int k = 0; k < 6; k++) {
            for (int n = 0; n < 3; n++) {
                const int count = 1 + noise_below(&state, 200);
                for (int b = 0; b < count; b++) {
                    const int byte = noise_below(&state, 256);
                    text[length++] = (char)(byte == '\n' || byte == '{'
                                            ? '}' : byte);
                }
                text[length - 1] = '!';      /* not blank */
                text[length++] = '\n';
                bad++;
            }
            length += (size_t)snprintf(text + length, sizeof text - length,
                "{\"id\": \"%c\", \"prompt\": \"p%d\", \"max_new_tokens\":"
                " %d, \"temperature\": %d, \"seed\": %d}\n", 'a' + k, k,
                3 * k, k % 3, k);
        }
        struct answers answers;
        expect_ok(serve_text(&voice.speaker, 2, N, 1, text, length,
                             &answers), &error);
        read_answers(&answers);
        ck_assert_int_eq(answers.served.refused, bad);
        for (int k = 0; k < 6; k++) {
            char id[2] = {(char)('a' + k), '\0'}, prompt[16];
            snprintf(prompt, sizeof prompt, "p%d", k);
            expect_generated(&voice, &answers, id, prompt, 3 * k, k % 3,
                             (uint64_t)k);
        }
        answers_free(&answers);
    }
    voice_free(&voice);
}
END_TEST

START_TEST(a_cancelled_request_ends_and_its_name_is_free)
{
    struct voice voice = voice_new(1907);
    struct answers answers = converse(&voice.speaker, 1, N, 6,
        "{\"id\": \"a\", \"prompt\": \"ab\", \"max_new_tokens\": 20}\n"
        "{\"id\": \"b\", \"prompt\": \"cd\", \"max_new_tokens\": 20}\n"
        "{\"cancel\": \"b\"}\n"
        "{\"cancel\": \"b\"}\n"
        "{\"cancel\": \"nobody\"}\n"
        "{\"id\": \"c\", \"prompt\": \"ef\", \"max_new_tokens\": 5}\n");
    int32_t tokens[200];
    char text[800];
    int count = 0;
    ck_assert_str_eq(answer_of(&answers, "b", tokens, &count, text),
                     "cancelled");
    ck_assert_int_eq(count, 0);
    expect_generated(&voice, &answers, "a", "ab", 20, 0, 0);
    expect_generated(&voice, &answers, "c", "ef", 5, 0, 0);
    ck_assert_int_eq(errors_about(&answers, NULL, 4), 1);
    ck_assert_int_eq(errors_about(&answers, NULL, 5), 1);
    answers_free(&answers);
    voice_free(&voice);
}
END_TEST

START_TEST(a_line_of_a_megabyte_is_refused_and_the_next_is_read)
{
    char *path = malloc(4200);
    snprintf(path, 4200, "%s/long.jsonl", harness_scratch());
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file, "{\"id\": \"a\", \"prompt\": \"");
    for (int k = 0; k < LINE_BYTES_MAX; k++)
        fputc('x', file);
    fprintf(file, "\"}\n{\"id\": \"b\", \"prompt\": \"q\","
            " \"max_new_tokens\": 2}\n");
    fclose(file);
    file = fopen(path, "r");
    struct voice voice = voice_new(1908);
    struct answers answers = {.text = NULL};
    FILE *output = open_memstream(&answers.text, &answers.length);
    const struct slots_limits limits = {2, N, 8, 2};
    expect_ok(serve_lines(&voice.speaker, &limits, fileno(file), output,
                          &answers.served, &error), &error);
    fclose(output);
    fclose(file);
    remove(path);
    free(path);
    read_answers(&answers);
    ck_assert_int_eq(errors_about(&answers, NULL, 1), 1);
    expect_generated(&voice, &answers, "b", "q", 2, 0, 0);
    answers_free(&answers);
    voice_free(&voice);
}
END_TEST

START_TEST(a_server_that_cannot_read_or_write_says_so)
{
    struct voice voice = voice_new(1909);
    struct served served = {.lines = -3};
    const struct slots_limits limits = {2, N, 8, 2}, none = {0, N, 8, 2};
    const char *text = "{\"prompt\": \"q\", \"max_new_tokens\": 9}\n";
    FILE *full = fopen("/dev/full", "w");
    ck_assert_ptr_nonnull(full);
    struct pipe_of source = pipe_of(text, strlen(text), false);
    ck_assert_int_eq(serve_lines(&voice.speaker, &limits, source.out, full,
                                 &served, &error), STATUS_IO);
    expect_named(&error, "write");
    ck_assert_int_eq(serve_lines(&voice.speaker, &none, source.out, full,
                                 &served, &error), STATUS_INVALID);
    pipe_close(&source);
    ck_assert_int_eq(serve_lines(&voice.speaker, &limits, source.out, full,
                                 &served, &error), STATUS_IO);
    expect_named(&error, "read");
    fclose(full);
    ck_assert_int_eq(served.lines, -3);
    voice_free(&voice);
}
END_TEST

/* The parser's own memory is not of this suite; all other is. */
START_TEST(a_server_survives_each_failed_allocation)
{
    struct voice voice = voice_new(1910);
    const struct slots_limits limits = {2, N, 8, 2};
    const char *text = "{\"prompt_ids\": [1, 2], \"max_new_tokens\": 2,"
                       " \"stop_ids\": [3]}\n"
                       "{\"id\": \"a\", \"prompt\": \"q\","
                       " \"max_new_tokens\": 2}\n";
    char buffer[4000];
    for (long n = 1; ; n++) {
        struct pipe_of source = pipe_of(text, strlen(text), false);
        struct served served = {.lines = 0};
        FILE *output = fmemopen(buffer, sizeof buffer, "w");
        setvbuf(output, NULL, _IONBF, 0);
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = serve_lines(&voice.speaker, &limits, source.out,
                                         output, &served, &error);
        bool failed = allocator_stop();
        live = allocator_live() - live;
        fclose(output);
        pipe_close(&source);
        ck_assert_int_eq(live, 0);
        if (status == STATUS_OK)
            ck_assert_int_eq(served.requests + served.refused, 2);
        else
            ck_assert_int_eq(status, STATUS_NO_MEMORY);
        if (!failed) {
            ck_assert_int_eq(served.requests, 2);
            ck_assert_int_gt(n, 20);
            break;
        }
    }
    voice_free(&voice);
}
END_TEST

/* ---------------------------------------------------------------- programs */

START_TEST(the_serve_command_says_what_generate_says)
{
    char alone[400], line[6000];
    snprintf(alone, sizeof alone, "%s", run_program(
        "generate --model book/checkpoint --prompt 'The mask '"
        " --max-new-tokens 20 --temperature 0.7 --seed 3 --json", 0));
    snprintf(line, sizeof line, "serve --model book/checkpoint --slots 2"
             " --stats < /dev/null");
    ck_assert_ptr_nonnull(strstr(run_program(line, 0),
                                 "requests: 0 of 0 lines"));
    const char *said = run_program(
        "serve --model book/checkpoint << 'END'\n"
        "{\"id\": \"a\", \"prompt\": \"The mask \", \"max_new_tokens\": 20,"
        " \"temperature\": 0.7, \"seed\": 3}\nEND\n", 0);
    const char *at = strchr(alone, '[');
    ck_assert_ptr_nonnull(at);
    int count = 0;
    while (*at != ']') {
        char *end;
        const long id = strtol(at + 1, &end, 10);
        char wanted[40];
        snprintf(wanted, sizeof wanted, "\"token\": %ld,", id);
        said = strstr(said, wanted);
        ck_assert_msg(said != NULL, "token %d is not %ld", count, id);
        said += strlen(wanted);
        at = end;
        count++;
    }
    ck_assert_int_eq(count, 20);
}
END_TEST

START_TEST(the_serve_command_opens_any_model_and_refuses_none)
{
    static const char *const models[] = {"llama_tiny", "gpt2_tiny"};
    char line[400];
    for (int k = 0; k < 2; k++) {
        snprintf(line, sizeof line, "serve --model tests/golden/%s"
                 " --capacity 9 << 'END'\n{\"prompt_ids\": [1, 2],"
                 " \"max_new_tokens\": 3}\nEND\n", models[k]);
        ck_assert_ptr_nonnull(strstr(run_program(line, 0),
                                     "\"end\": \"length\", \"tokens\": 3"));
        snprintf(line, sizeof line, "batching --model tests/golden/%s"
                 " --requests 6 --slots 2 --mean 3 --longest 6"
                 " --spread 50 --prompt 3", models[k]);
        ck_assert_ptr_nonnull(strstr(run_program(line, 0), "geom."));
    }
    ck_assert_ptr_nonnull(strstr(run_program("serve < /dev/null", 2),
                                 "--model"));
    ck_assert_ptr_nonnull(strstr(run_program("serve --model nowhere"
                                             " < /dev/null", 1), "nowhere"));
    ck_assert_ptr_nonnull(strstr(run_program("serve --model book/checkpoint"
                                             " --capacity 4096 < /dev/null",
                                             1), "capacity"));
    ck_assert_ptr_nonnull(strstr(run_program("serve --frob", 2), "--frob"));
    ck_assert_ptr_nonnull(strstr(run_program("serve --help", 0), "cancel"));
    ck_assert_ptr_nonnull(strstr(run_program("serve --model book/checkpoint"
                                             " < README.md", 1),
                                 "lines were refused"));
}
END_TEST

#define SERVER "serve until no lines come"

static const struct test tests[] = {
    TEST(lines_come_out_as_they_went_in, 2,
         "give out the line that has ended"),
    TEST(a_line_that_is_too_long_is_passed_over_whole, 2,
         "pass over a line that is too long"),
    TEST(an_empty_pipe_has_no_line_yet, 2,
         "read what there is, or wait for some"),
    TEST(what_cannot_be_read_is_no_end, 2, "fill the buffer"),
    TEST(every_field_is_refused_by_its_name, 2, "read the fields of a line"),
    TEST(a_line_says_what_its_fields_say, 2, "read what a line may say"),
    TEST(a_number_is_a_name_when_it_can_be_written_back, 2,
         "refuse what cannot be written back"),
    TEST(an_answer_without_a_length_gets_the_room_that_there_is, 2,
         "let the answer be as long as there is room"),
    TEST(what_is_written_back_is_spelled, 2, "write characters as JSON"),
    TEST(a_nameless_request_is_in_nobodys_way, 2, "name the client"),
    TEST(two_who_are_in_have_two_names, 2, "refuse a name that is in use"),
    TEST(a_stop_is_found_wherever_its_bytes_come, 2,
         "look for the stop behind each byte"),
    TEST(each_end_of_a_model_ends_an_answer, 3, "hear a token"),
    TEST(a_stop_is_sought_in_what_is_shown, 2,
         "show a byte that is no character"),
    TEST(the_pipe_waits_while_no_place_is_free, 2,
         "take lines while there is room"),
    TEST(a_conversation_is_answered_line_by_line, 2, SERVER),
    TEST(noise_between_lines_changes_no_answer, 2, SERVER),
    TEST(a_cancelled_request_ends_and_its_name_is_free, 2,
         "do what a line says"),
    TEST(a_line_of_a_megabyte_is_refused_and_the_next_is_read, 2, SERVER),
    TEST(a_server_that_cannot_read_or_write_says_so, 2, SERVER),
    TEST(a_server_survives_each_failed_allocation, 2,
         "open and close a server"),
    TEST(the_serve_command_says_what_generate_says, 2,
         "running the serve command"),
    TEST(the_serve_command_opens_any_model_and_refuses_none, 2,
         "batch with a model of any family"),
};

SUITE("19d: a server on a pipe", tests);
