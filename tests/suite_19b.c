/* Chapter 19, its page on tokenizers. Every encoder is held against another
   one that works on strings, by the definition: support/tokenizers.h. */
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "byte_alphabet.h"
#include "merging.h"
#include "model_file.h"
#include "pieces.h"
#include "speaker.h"
#include "text_stream.h"
#include "tokenizer.h"
#include "utf8.h"
#include "vocabulary.h"
#include "support/allocator.h"
#include "support/formats.h"
#include "support/program.h"
#include "support/tokenizers.h"

static struct error error;

static void expect_refused(enum status status, enum status wanted,
                           const char *name)
{
    ck_assert_msg(status == wanted, "status %d, expected %d: %s", (int)status,
                  (int)wanted, error.message);
    expect_named(&error, name);
}

/* --------------------------------------------------------------- characters */

static int write_code(long code, unsigned char *out)
{
    if (code < 0x80) {
        out[0] = (unsigned char)code;
        return 1;
    }
    const int size = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int k = size - 1; k > 0; k--, code >>= 6)
        out[k] = (unsigned char)(0x80 | (code & 0x3F));
    out[0] = (unsigned char)(code
        | (size == 2 ? 0xC0 : size == 3 ? 0xE0 : 0xF0));
    return size;
}

START_TEST(a_character_is_whole_with_its_last_byte_and_not_before)
{
    for (long code = 0; code <= 0x10FFFF; code++) {
        unsigned char bytes[5] = {0, 0, 0, 0, 'x'};
        const int size = write_code(code, bytes);
        if (code >= 0xD800 && code < 0xE000) {
            ck_assert_int_eq(utf8_next(bytes, 3), -1);
            continue;
        }
        for (int k = 0; k < size; k++)
            if (utf8_next(bytes, (size_t)k) != 0)
                ck_abort_msg("U+%04lX of %d bytes: %d after %d", code, size,
                             utf8_next(bytes, (size_t)k), k);
        if (utf8_next(bytes, (size_t)size) != size
            || utf8_next(bytes, 5) != size)
            ck_abort_msg("U+%04lX: %d for %d", code, utf8_next(bytes, 5),
                         size);
    }
}
END_TEST

START_TEST(bytes_that_begin_no_character_are_counted)
{
    const struct { const char *bytes; int length, wanted; } cases[] = {
        {"\x80", 1, -1}, {"\xBF\x80", 2, -1}, {"\xC0\x80", 2, -1},
        {"\xC1\xBF", 2, -1}, {"\xF5\x80\x80\x80", 4, -1}, {"\xFF", 1, -1},
        {"\xC3" "a", 2, -1}, {"\xC3\xC3", 2, -1}, {"\xE0\x9F\xBF", 3, -1},
        {"\xE0\xA0", 2, 0}, {"\xE0\xA0" "a", 3, -2}, {"\xED\x9F\xBF", 3, 3},
        {"\xF0\x8F\xBF\xBF", 4, -1}, {"\xF0\x90\x80", 3, 0},
        {"\xF0\x90\x80" "a", 4, -3}, {"\xF4\x8F\xBF\xBF", 4, 4},
        {"\xF4\x90\x80\x80", 4, -1}, {"\xE2\x82\xE2", 3, -2}, {"", 1, 1},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++)
        ck_assert_int_eq(utf8_next((const unsigned char *)cases[k].bytes,
                                   (size_t)cases[k].length), cases[k].wanted);
}
END_TEST

START_TEST(a_quotation_ends_behind_a_character)
{
    const char *text = "a\xC3\xA9\xE2\x82\xAC!";        /* 1, 3, 6, 7 */
    const int wanted[] = {0, 1, 1, 3, 3, 3, 6, 7, 7, 7};
    for (int limit = 0; limit < 10; limit++)
        ck_assert_int_eq(utf8_cut(text, 7, limit), wanted[limit]);
    ck_assert_int_eq(utf8_cut("ab\xFF" "cd", 5, 9), 2);
}
END_TEST

/* --------------------------------------------------------------- vocabulary */

static struct span span_of(const void *bytes, size_t length)
{
    return (struct span){bytes, length};
}

START_TEST(a_token_is_found_by_its_bytes_however_they_are_cut)
{
    uint64_t state = noise_start(190);
    unsigned char bytes[300][9];
    size_t lengths[300];
    struct vocabulary *v = NULL;
    expect_ok(vocabulary_new(&v, 300, 300 * 9, &error), &error);
    for (int id = 0; id < 300; id++) {
        lengths[id] = 2 + (size_t)noise_below(&state, 8);
        memset(bytes[id], 0, 9);
        bytes[id][0] = (unsigned char)id;
        bytes[id][1] = (unsigned char)(id >> 8);
        for (size_t k = 2; k < lengths[id]; k++)
            bytes[id][k] = (unsigned char)noise_below(&state, 3);
        vocabulary_set(v, id, span_of(bytes[id], lengths[id]));
        if (id % 2 == 0)
            ck_assert_int_eq(vocabulary_enter(v, id), NO_TOKEN);
    }
    for (int id = 0; id < 300; id++) {
        const struct span got = vocabulary_bytes(v, id);
        ck_assert_uint_eq(got.length, lengths[id]);
        ck_assert_mem_eq(got.at, bytes[id], got.length);
        for (size_t cut = 0; cut <= lengths[id]; cut++)
            ck_assert_int_eq(vocabulary_find(v, span_of(bytes[id], cut),
                span_of(bytes[id] + cut, lengths[id] - cut)),
                id % 2 == 0 ? id : NO_TOKEN);
    }
    ck_assert_int_eq(vocabulary_enter(v, 4), 4);
    ck_assert_int_eq(vocabulary_count(v), 300);
    vocabulary_free(&v);
    ck_assert_ptr_null(v);
    vocabulary_free(&v);
}
END_TEST

/* ----------------------------------------------------------------- alphabet */

START_TEST(each_byte_has_the_character_that_the_published_table_gives_it)
{
    char text[512];
    unsigned char bytes[512];
    size_t count;
    struct word all = {0, {0}};
    for (int first = 0; first < 256; first += 32) {
        all.length = 32;
        for (int k = 0; k < 32; k++)
            all.bytes[k] = (unsigned char)(first + k);
        const int length = alphabet_write(&all, text);
        ck_assert(byte_alphabet_read((unsigned char *)text, (size_t)length,
                                     bytes, &count));
        ck_assert_uint_eq(count, 32);
        ck_assert_mem_eq(bytes, all.bytes, 32);
    }
    const struct { const char *text; unsigned char byte; } known[] = {
        {"\xC4\xA0", ' '}, {"\xC4\x8A", '\n'}, {"!", '!'}, {"~", '~'},
        {"\xC4\xA1", 0x7F}, {"\xC5\x82", 0xA0}, {"\xC5\x83", 0xAD},
        {"\xC2\xA1", 0xA1}, {"\xC3\xBF", 0xFF}, {"\xC4\x80", 0},
    };
    for (size_t k = 0; k < sizeof known / sizeof known[0]; k++) {
        ck_assert(byte_alphabet_read((const unsigned char *)known[k].text,
                                     strlen(known[k].text), bytes, &count));
        ck_assert_uint_eq(count, 1);
        ck_assert_uint_eq(bytes[0], known[k].byte);
    }
}
END_TEST

START_TEST(what_is_not_of_the_alphabet_is_told)
{
    const char *const wrong[] = {
        " ", "a b", "\n", "\x7F", "\xC2\xA0", "\xC2\xAD", "\xC5\x84",
        "\xE2\x82\xAC", "\xFF", "a\xC4", "\xF0\x9F\x98\x80"
    };
    unsigned char bytes[8];
    size_t count;
    for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++)
        ck_assert(!byte_alphabet_read((const unsigned char *)wrong[k],
                                      strlen(wrong[k]), bytes, &count));
}
END_TEST

/* ------------------------------------------------------------------- pieces */

static struct pieces *pattern(void)
{
    struct pieces *pieces = NULL;
    expect_ok(pieces_new(&pieces, &error), &error);
    return pieces;
}

/* The pieces of a text with a bar between them. */
static const char *barred(const struct pieces *pieces, const char *text,
                          size_t length)
{
    static char out[4096];
    struct piece_cutter *cutter = NULL;
    size_t piece, at = 0, made = 0;
    expect_ok(piece_cutter_new(&cutter, pieces, (const unsigned char *)text,
                               length, &error), &error);
    for (;;) {
        expect_ok(piece_cutter_next(cutter, &piece, &error), &error);
        if (piece == 0)
            break;
        if (made > 0)
            out[made++] = '|';
        memcpy(out + made, text + at, piece);
        made += piece;
        at += piece;
    }
    ck_assert_uint_eq(at, length);
    out[made] = '\0';
    piece_cutter_free(&cutter);
    return out;
}

static void expect_pieces(const char *const (*cases)[2], size_t count)
{
    struct pieces *pieces = pattern();
    for (size_t k = 0; k < count; k++)
        ck_assert_str_eq(barred(pieces, cases[k][0], strlen(cases[k][0])),
                         cases[k][1]);
    pieces_free(&pieces);
}
#define EXPECT_PIECES(cases) \
    expect_pieces(cases, sizeof cases / sizeof cases[0])

START_TEST(words_keep_the_one_space_before_them)
{
    const char *const cases[][2] = {
        {"", ""}, {"a", "a"}, {"Hello world", "Hello| world"},
        {" a", " a"}, {"a b1 c", "a| b|1| c"}, {"x=1", "x|=|1"},
        {"a  b", "a| | b"}, {"a   b", "a|  | b"}, {"1 2", "1| 2"},
        {"a ?!b", "a| ?!|b"}, {"_a_", "_|a|_"}, {"3.14", "3|.|14"},
    };
    EXPECT_PIECES(cases);
}
END_TEST

START_TEST(spaces_leave_the_last_one_to_what_follows)
{
    const char *const cases[][2] = {
        {" ", " "}, {"   ", "   "}, {"a ", "a| "}, {"a   ", "a|   "},
        {"\n\n a", "\n\n| a"}, {"a\n\nb", "a|\n|\n|b"}, {"\t\ta", "\t|\t|a"},
        {"a\n b", "a|\n| b"}, {"a \nb", "a| |\n|b"}, {" \n", " \n"},
        {"a\xC2\xA0 b", "a|\xC2\xA0| b"},
        {"\xE3\x80\x80\xE3\x80\x80x", "\xE3\x80\x80|\xE3\x80\x80|x"},
    };
    EXPECT_PIECES(cases);
}
END_TEST

START_TEST(seven_endings_are_cut_off_in_small_letters_only)
{
    const char *const cases[][2] = {
        {"it's", "it|'s"}, {"don't", "don|'t"}, {"we're", "we|'re"},
        {"I've", "I|'ve"}, {"I'm", "I|'m"}, {"we'll", "we|'ll"},
        {"I'd", "I|'d"}, {"IT'S", "IT|'|S"}, {"o'clock", "o|'|clock"},
        {"'tis", "'t|is"}, {"a 's", "a| '|s"}, {"x'x", "x|'|x"},
        {"''s", "''|s"}, {"'sx", "'s|x"}, {"'lx", "'|lx"}, {"'", "'"},
        {"l'eau", "l|'|eau"}, {"d'd", "d|'d"},
    };
    EXPECT_PIECES(cases);
}
END_TEST

START_TEST(letters_and_numbers_are_those_of_all_scripts)
{
    const char *const cases[][2] = {
        {"caf\xC3\xA9 \xC3\xBC" "ber", "caf\xC3\xA9| \xC3\xBC" "ber"},
        {"\xE4\xB8\xAD\xE6\x96\x87 x", "\xE4\xB8\xAD\xE6\x96\x87| x"},
        {"x\xC2\xB2", "x|\xC2\xB2"}, {"\xD9\xA1\xD9\xA2", "\xD9\xA1\xD9\xA2"},
        {"e\xCC\x81x", "e|\xCC\x81|x"},         /* a mark is no letter */
        {"a\xF0\x9F\x98\x80" "b", "a|\xF0\x9F\x98\x80|b"},
        {"a \xE2\x82\xAC" "5", "a| \xE2\x82\xAC|5"},
    };
    EXPECT_PIECES(cases);
}
END_TEST

/* A tab, a character, and a byte that ends the text between its like: one
   piece of both if the character is a space. */
START_TEST(twenty_five_characters_are_spaces_and_no_other)
{
    struct pieces *pieces = pattern();
    struct piece_cutter *cutter = NULL;
    unsigned char *text = malloc(0x110000 * 6);
    ck_assert_ptr_nonnull(text);
    size_t length = 0, piece = 1, at = 0;
    int spaces = 0;
    for (long code = 0; code <= 0x10FFFF; code++) {
        if (code >= 0xD800 && code < 0xE000)
            continue;
        text[length++] = '\t';
        length += (size_t)write_code(code, text + length);
        text[length++] = 0xFF;
    }
    expect_ok(piece_cutter_new(&cutter, pieces, text, length, &error),
              &error);
    for (; piece > 0; at += piece) {
        if (piece_cutter_next(cutter, &piece, &error) != STATUS_OK)
            ck_abort_msg("%s", error.message);
        spaces += piece > 1 && text[at] == '\t';
    }
    ck_assert_uint_eq(at, length);
    ck_assert_int_eq(spaces, 25);
    piece_cutter_free(&cutter);
    free(text);
    ck_assert_str_eq(barred(pieces, "\t\xE1\xA0\x8E", 4), "\t|\xE1\xA0\x8E");
    pieces_free(&pieces);
}
END_TEST

START_TEST(a_byte_of_no_character_is_a_piece_by_itself)
{
    const char *const cases[][2] = {
        {"\xFF", "\xFF"}, {"a\xFF" "b", "a|\xFF|b"},
        {"\x80\x80", "\x80|\x80"}, {"a\xC3", "a|\xC3"},
        {"\xE2\x82", "\xE2|\x82"}, {"\xE2\x82" "a", "\xE2|\x82|a"},
        {"  \xFF", "  |\xFF"}, {"it'\xFFs", "it|'|\xFF|s"},
        {"\xED\xA0\x80", "\xED|\xA0|\x80"}, {" \xC0\x80", " |\xC0|\x80"},
        {"\xFF a", "\xFF| a"},
    };
    EXPECT_PIECES(cases);
    struct pieces *pieces = pattern();
    ck_assert_str_eq(barred(pieces, "\xFF\xC3\xA9\xFF", 4),
                     "\xFF|\xC3\xA9|\xFF");
    pieces_free(&pieces);
}
END_TEST

START_TEST(made_up_texts_are_cut_as_by_hand)
{
    uint64_t state = noise_start(191);
    struct pieces *pieces = pattern();
    for (int round = 0; round < 4000; round++) {
        struct cut_text text = slow_text(&state, 1 + noise_below(&state, 24));
        struct piece_cutter *cutter = NULL;
        expect_ok(piece_cutter_new(&cutter, pieces,
                                   (unsigned char *)text.text,
                                   (size_t)text.length, &error), &error);
        for (int k = 0; k <= text.pieces; k++) {
            size_t piece;
            expect_ok(piece_cutter_next(cutter, &piece, &error), &error);
            const size_t wanted = k < text.pieces ? (size_t)text.piece[k] : 0;
            if (piece != wanted)
                ck_abort_msg("piece %d of \"%s\": %zu bytes, expected %zu", k,
                             text.text, piece, wanted);
        }
        piece_cutter_free(&cutter);
    }
    pieces_free(&pieces);
}
END_TEST

/* ------------------------------------------------------------------ merging

   Ids 0 … 9 are made-up letters; a rule joins two to a third. */

enum { RULES_MAX = 64 };
struct rules {
    int count, asked;
    struct { int32_t left, right, joined; uint32_t order; } rule[RULES_MAX];
};

static bool find_rule(const void *table, int32_t left, int32_t right,
                      uint32_t *order, int32_t *joined)
{
    struct rules *rules = (struct rules *)(uintptr_t)table;
    rules->asked++;
    for (int k = 0; k < rules->count; k++)
        if (rules->rule[k].left == left && rules->rule[k].right == right) {
            *order = rules->rule[k].order;
            *joined = rules->rule[k].joined;
            return true;
        }
    return false;
}

/* By the definition, with arrays. */
static int slow_merge(struct rules *rules, bool passes, int32_t *ids,
                      int count)
{
    for (bool more = true; more; ) {
        int best = -1;
        uint32_t order, least = UINT32_MAX;
        int32_t joined;
        for (int k = 0; k + 1 < count; k++)
            if (find_rule(rules, ids[k], ids[k + 1], &order, &joined)
                && order < least) {
                best = k;
                least = order;
            }
        more = best >= 0;
        for (int k = best; more && k + 1 < count; k++) {
            if (!find_rule(rules, ids[k], ids[k + 1], &order, &joined)
                || order != least)
                continue;
            ids[k] = joined;
            memmove(&ids[k + 1], &ids[k + 2],
                    (size_t)(count - k - 2) * sizeof *ids);
            count--;
            if (!passes)
                break;
        }
    }
    return count;
}

/* Rules whose orders are all different: a pass is then one pair's. Without
   passes orders may be equal, and a rule's order may be below that of the
   rule that made its parts. */
static struct rules rules_of_noise(uint64_t *state, bool passes)
{
    struct rules rules = {0, 0, {{0, 0, 0, 0}}};
    int32_t place[RULES_MAX];
    noise_order(state, RULES_MAX, place);
    for (int k = 0; k < RULES_MAX; k++) {
        const int32_t left = noise_below(state, 4 + k);
        const int32_t right = noise_below(state, 4 + k);
        uint32_t order;
        int32_t joined;
        if (find_rule(&rules, left, right, &order, &joined))
            continue;
        rules.rule[rules.count].left = left;
        rules.rule[rules.count].right = right;
        rules.rule[rules.count].joined = 4 + k;
        rules.rule[rules.count++].order = (uint32_t)(
            passes ? place[k] : noise_below(state, 6));
    }
    return rules;
}

static void expect_merged(struct rules *rules, bool passes,
                          struct merge_room *room, const int32_t *ids,
                          int count)
{
    const struct merge_rules given = {rules, find_rule, passes};
    int32_t got[200], wanted[200];
    int merged = count;
    memcpy(got, ids, (size_t)count * sizeof *ids);
    memcpy(wanted, ids, (size_t)count * sizeof *ids);
    expect_ok(merge_ids(&given, room, got, &merged, NULL, 0, &error), &error);
    const int left = slow_merge(rules, passes, wanted, count);
    ck_assert_int_eq(merged, left);
    for (int k = 0; k < left; k++)
        ck_assert_int_eq(got[k], wanted[k]);
}

START_TEST(made_up_rules_merge_as_by_the_definition)
{
    uint64_t state = noise_start(192);
    struct merge_room room = {0};
    for (int round = 0; round < 2000; round++) {
        const bool passes = round % 2;
        struct rules rules = rules_of_noise(&state, passes);
        int32_t ids[200];
        const int count = noise_below(&state, 60);
        for (int k = 0; k < count; k++)
            ids[k] = noise_below(&state, 4);
        expect_merged(&rules, passes, &room, ids, count);
    }
    merge_room_free(&room);
}
END_TEST

START_TEST(the_leftmost_of_equal_orders_goes_first)
{
    struct rules rules = {1, 0, {{0, 0, 1, 7}}};
    struct merge_room room = {0};
    const struct merge_rules given = {&rules, find_rule, false};
    int32_t ids[] = {0, 0, 0, 2, 0, 0, 0};
    const int32_t wanted[] = {1, 0, 2, 1, 0};
    int count = 7;
    expect_ok(merge_ids(&given, &room, ids, &count, NULL, 0, &error), &error);
    ck_assert_int_eq(count, 5);
    ck_assert_mem_eq(ids, wanted, sizeof wanted);
    merge_room_free(&room);
}
END_TEST

/* ab c ab c, with (ab, c) -> abc in line 10 and (abc, ab) -> abcab in line
   3: the pass over (ab, c) ends before the new pair counts. */
START_TEST(a_pass_ends_before_what_it_made_counts)
{
    struct rules rules = {2, 0, {{1, 2, 3, 10}, {3, 1, 4, 3}}};
    struct merge_room room = {0};
    for (int passes = 0; passes < 2; passes++) {
        const struct merge_rules given = {&rules, find_rule, passes == 1};
        int32_t ids[] = {1, 2, 1, 2};
        int count = 4;
        expect_ok(merge_ids(&given, &room, ids, &count, NULL, 0, &error),
                  &error);
        ck_assert_int_eq(count, 2);
        ck_assert_int_eq(ids[0], passes ? 3 : 4);
        ck_assert_int_eq(ids[1], passes ? 3 : 2);
    }
    merge_room_free(&room);
}
END_TEST

/* Doubling: a a -> b, b b -> c … */
START_TEST(a_long_list_takes_two_questions_a_join)
{
    enum { RULES = 18, LONG = 1 << RULES };
    struct rules rules = {RULES, 0, {{0, 0, 0, 0}}};
    struct merge_room room = {0};
    for (int k = 0; k < RULES; k++) {
        rules.rule[k].left = rules.rule[k].right = k;
        rules.rule[k].joined = k + 1;
        rules.rule[k].order = (uint32_t)k;
    }
    for (int passes = 0; passes < 2; passes++) {
        const struct merge_rules given = {&rules, find_rule, passes == 1};
        int32_t *ids = calloc(LONG, sizeof *ids);
        ck_assert_ptr_nonnull(ids);
        int count = LONG - 1;
        rules.asked = 0;
        expect_ok(merge_ids(&given, &room, ids, &count, NULL, 0, &error),
                  &error);
        ck_assert_int_eq(count, RULES);
        for (int k = 0; k < RULES; k++)
            ck_assert_int_eq(ids[k], RULES - 1 - k);
        ck_assert_int_le(rules.asked, 3 * LONG);
        free(ids);
    }
    merge_room_free(&room);
}
END_TEST

struct seen { int count; size_t left[9], right[9]; int32_t joined[9]; };

static void see(void *context, size_t left, size_t right, int32_t joined)
{
    struct seen *seen = context;
    seen->left[seen->count] = left;
    seen->right[seen->count] = right;
    seen->joined[seen->count++] = joined;
}

START_TEST(a_watcher_sees_each_merge_where_it_is)
{
    struct rules rules = {3, 0, {{1, 2, 5, 1}, {5, 3, 6, 0}, {0, 6, 7, 2}}};
    struct merge_room room = {0};
    struct seen seen = {0, {0}, {0}, {0}};
    const struct merge_watch watch = {see, &seen};
    const struct merge_rules given = {&rules, find_rule, true};
    int32_t ids[] = {0, 1, 2, 3};
    int count = 4;
    expect_ok(merge_ids(&given, &room, ids, &count, &watch, 100, &error),
              &error);
    ck_assert_int_eq(count, 1);
    ck_assert_int_eq(seen.count, 3);
    const size_t left[] = {101, 101, 100}, right[] = {102, 103, 101};
    const int32_t joined[] = {5, 6, 7};
    ck_assert_mem_eq(seen.left, left, sizeof left);
    ck_assert_mem_eq(seen.right, right, sizeof right);
    ck_assert_mem_eq(seen.joined, joined, sizeof joined);
    merge_room_free(&room);
}
END_TEST

START_TEST(merging_without_memory_leaves_the_ids)
{
    struct rules rules = {1, 0, {{0, 0, 1, 7}}};
    const struct merge_rules given = {&rules, find_rule, true};
    for (long n = 1; ; n++) {
        struct merge_room room = {0};
        int32_t ids[] = {0, 0, 0};
        int count = 3;
        allocator_fail_at(n);
        enum status status = merge_ids(&given, &room, ids, &count, NULL, 0,
                                       &error);
        const bool failed = allocator_stop();
        merge_room_free(&room);
        ck_assert_int_eq(status, failed ? STATUS_NO_MEMORY : STATUS_OK);
        ck_assert_int_eq(count, failed ? 3 : 2);
        ck_assert_int_eq(ids[0], failed ? 0 : 1);
        if (!failed)
            break;
    }
}
END_TEST

/* -------------------------------------------------------------- GPT-2's kind */

static struct tokenizer *of_merges(const struct trained *t)
{
    struct tokenizer *tokenizer = NULL;
    expect_ok(tokenizer_of_merges(&tokenizer, t->vocab, strlen(t->vocab),
                                  t->merges, strlen(t->merges), &error),
              &error);
    return tokenizer;
}

struct coded { int32_t *ids; int count; };

static struct coded encode(const struct tokenizer *tokenizer,
                           const char *text, size_t length, int options)
{
    struct coded coded = {NULL, -1};
    expect_ok(tokenizer_encode(tokenizer, text, length, options, &coded.ids,
                               &coded.count, &error), &error);
    return coded;
}

/* The bytes of ids, as a stream gives them. */
struct shown { char *bytes; size_t length, room, calls, broken, fail_at; };

static bool keep(void *context, const char *bytes, size_t length, bool whole)
{
    struct shown *shown = context;
    const int is = utf8_next((const unsigned char *)bytes, length);
    shown->calls++;
    shown->broken += !whole;
    if (whole != (is == (int)length) || (!whole && length != 1))
        ck_abort_msg("%zu bytes, whole: %d, utf8_next: %d", length, whole,
                     is);
    if (shown->calls == shown->fail_at)
        return false;
    if (shown->length + length > shown->room) {
        shown->room = 2 * shown->room + length;
        shown->bytes = realloc(shown->bytes, shown->room);
        ck_assert_ptr_nonnull(shown->bytes);
    }
    memcpy(shown->bytes + shown->length, bytes, length);
    shown->length += length;
    return true;
}

static void expect_decoded(const struct tokenizer *tokenizer,
                           const struct coded *coded, bool begin,
                           const char *text, size_t length)
{
    struct shown shown = {0};
    struct text_stream stream = {
        .tokenizer = tokenizer, .previous = begin ? -1 : 5, .show = keep,
        .context = &shown
    };
    bool well = true;
    for (int k = 0; k < coded->count; k++)
        well = text_stream_add(&stream, coded->ids[k]) && well;
    ck_assert(well && text_stream_end(&stream));
    ck_assert_uint_eq(shown.length, length);
    if (length > 0)
        ck_assert_mem_eq(shown.bytes, text, length);
    free(shown.bytes);
}

static void expect_ids(const struct coded *coded, const int32_t *wanted,
                       int count, const char *text)
{
    ck_assert_msg(coded->count == count, "\"%s\": %d ids, expected %d", text,
                  coded->count, count);
    for (int k = 0; k < count; k++)
        ck_assert_msg(coded->ids[k] == wanted[k],
                      "\"%s\": id %d is %d, expected %d", text, k,
                      (int)coded->ids[k], (int)wanted[k]);
}

START_TEST(made_up_texts_have_the_ids_of_the_slow_encoder)
{
    uint64_t state = noise_start(193);
    for (int vocabulary = 0; vocabulary < 3; vocabulary++) {
        struct trained *t = trained_on_noise(&state, 60 + 40 * vocabulary);
        struct tokenizer *tokenizer = of_merges(t);
        ck_assert_int_eq(tokenizer_count(tokenizer), t->tokens);
        for (int round = 0; round < 150; round++) {
            struct cut_text text = slow_text(&state,
                                             noise_below(&state, 40));
            int32_t wanted[WORD_MAX];
            int count = 0, at = 0;
            for (int k = 0; k < text.pieces; k++) {
                count += slow_merges(t, text.text + at, text.piece[k],
                                     wanted + count);
                at += text.piece[k];
            }
            struct coded coded = encode(tokenizer, text.text,
                                        (size_t)text.length, round % 2);
            expect_ids(&coded, wanted, count, text.text);
            free(coded.ids);
        }
        tokenizer_close(&tokenizer);
        trained_free(t);
    }
}
END_TEST

/* Words of the training alone, so that the merges go deep. */
START_TEST(words_of_the_training_have_the_ids_of_the_slow_encoder)
{
    uint64_t state = noise_start(194);
    struct trained *t = trained_on_noise(&state, 150);
    struct tokenizer *tokenizer = of_merges(t);
    for (int round = 0; round < 300; round++) {
        char text[64];
        int32_t wanted[64];
        const int length = 1 + noise_below(&state, 40);
        text[0] = "abc "[noise_below(&state, 4)];
        for (int k = 1; k < length; k++)
            text[k] = (char)('a' + noise_below(&state, 3));
        text[length] = '\0';
        if (length == 1 && text[0] == ' ')
            continue;
        struct coded coded = encode(tokenizer, text, (size_t)length, 0);
        expect_ids(&coded, wanted, slow_merges(t, text, length, wanted),
                   text);
        free(coded.ids);
    }
    tokenizer_close(&tokenizer);
    trained_free(t);
}
END_TEST

/* abc is longer than cd, and its line came later: by length abcd would be abc
   and d. bc is as long, and on the left: by length bcd would be bc and d. */
static struct trained *crossing(uint64_t *state)
{
    const struct word a = {1, "a"}, b = {1, "b"}, c = {1, "c"}, d = {1, "d"};
    const struct word ab = {2, "ab"}, space = {1, " "};
    struct trained *t = untrained();
    trained_line(t, a, b);
    trained_line(t, c, d);
    trained_line(t, ab, c);
    trained_line(t, space, ab);
    trained_line(t, b, c);
    trained_end(t, state);
    return t;
}

static int32_t id_of(const struct trained *t, const char *text)
{
    struct word word = {(int)strlen(text), {0}};
    memcpy(word.bytes, text, strlen(text));
    const int found = trained_find(t, &word);
    ck_assert_int_ge(found, 0);
    return t->id[found];
}

START_TEST(the_earliest_line_goes_first_however_long_the_others_are)
{
    uint64_t state = noise_start(195);
    struct trained *t = crossing(&state);
    struct tokenizer *tokenizer = of_merges(t);
    const int32_t wanted[] = {
        id_of(t, "ab"), id_of(t, "cd"), id_of(t, " ab"), id_of(t, "abc"),
        id_of(t, "b"), id_of(t, "cd")
    };
    struct coded coded = encode(tokenizer, "abcd", 4, 0);
    expect_ids(&coded, wanted, 2, "abcd");
    free(coded.ids);
    coded = encode(tokenizer, " ab", 3, 0);
    expect_ids(&coded, wanted + 2, 1, " ab");
    free(coded.ids);
    coded = encode(tokenizer, "bcd", 3, 0);
    expect_ids(&coded, wanted + 4, 2, "bcd");
    free(coded.ids);
    coded = encode(tokenizer, "abc", 3, 0);
    expect_ids(&coded, wanted + 3, 1, "abc");
    free(coded.ids);
    tokenizer_close(&tokenizer);
    trained_free(t);
}
END_TEST

static void fill_any_bytes(uint64_t *state, char *text, int length)
{
    for (int k = 0; k < length; k++)
        text[k] = (char)(noise_below(state, 3) == 0
                         ? noise_below(state, 256) : "a bc\n"[k % 5]);
}

START_TEST(any_bytes_come_back)
{
    uint64_t state = noise_start(196);
    struct trained *t = trained_on_noise(&state, 100);
    struct tokenizer *tokenizer = of_merges(t);
    char text[256];
    for (int round = 0; round < 400; round++) {
        const int length = noise_below(&state, 256);
        fill_any_bytes(&state, text, length);
        struct coded coded = encode(tokenizer, text, (size_t)length,
                                    round % 2);
        expect_decoded(tokenizer, &coded, true, text, (size_t)length);
        free(coded.ids);
    }
    for (int k = 0; k < 256; k++)
        text[k] = (char)k;
    struct coded coded = encode(tokenizer, text, 256, 0);
    expect_decoded(tokenizer, &coded, true, text, 256);
    free(coded.ids);
    tokenizer_close(&tokenizer);
    trained_free(t);
}
END_TEST

START_TEST(a_special_token_is_data_unless_it_is_asked_for)
{
    uint64_t state = noise_start(197);
    struct trained *t = crossing(&state);
    struct tokenizer *tokenizer = of_merges(t);
    const char *text = "ab<|endoftext|>cd<|endoftext|><|endoftext";
    const int32_t end = id_of(t, "<|endoftext|>");
    ck_assert_int_eq(tokenizer_eos(tokenizer), end);
    ck_assert_int_eq(tokenizer_bos(tokenizer), -1);
    ck_assert(tokenizer_special(tokenizer, end));
    ck_assert(!tokenizer_special(tokenizer, id_of(t, "ab")));
    struct coded coded = encode(tokenizer, text, strlen(text), 0);
    for (int k = 0; k < coded.count; k++)
        ck_assert_int_ne(coded.ids[k], end);
    expect_decoded(tokenizer, &coded, true, text, strlen(text));
    free(coded.ids);
    const int32_t wanted[] = {id_of(t, "ab"), end, id_of(t, "cd"), end,
                              id_of(t, "<"), id_of(t, "|")};
    coded = encode(tokenizer, text, strlen(text), TOKENIZER_SPECIAL);
    coded.count -= 9;
    expect_ids(&coded, wanted, 6, text);
    coded.count += 9;
    text = "abcd<|endoftext";
    expect_decoded(tokenizer, &coded, true, text, strlen(text));
    free(coded.ids);
    coded = encode(tokenizer, "<|endoftext|>", 13, TOKENIZER_SPECIAL);
    expect_ids(&coded, &end, 1, "<|endoftext|>");
    expect_decoded(tokenizer, &coded, true, "", 0);
    free(coded.ids);
    tokenizer_close(&tokenizer);
    trained_free(t);
}
END_TEST

START_TEST(the_longest_of_the_names_at_a_place_is_meant)
{
    uint64_t state = noise_start(198);
    struct trained *t = untrained();
    const struct word names[] = {{3, "<a>"}, {6, "<a><b>"}, {5, "[PAD]"}};
    for (int k = 0; k < 3; k++)
        t->token[t->tokens++] = names[k];
    trained_end(t, &state);
    struct tokenizer *tokenizer = of_merges(t);
    const int32_t wanted[] = {
        id_of(t, "x"), id_of(t, "<a><b>"), id_of(t, "<a>"), id_of(t, "[PAD]"),
        id_of(t, "<"), id_of(t, "b"), id_of(t, ">")
    };
    const char *text = "x<a><b><a>[PAD]<b>";
    struct coded coded = encode(tokenizer, text, strlen(text),
                                TOKENIZER_SPECIAL);
    expect_ids(&coded, wanted, 7, text);
    free(coded.ids);
    tokenizer_close(&tokenizer);
    trained_free(t);
}
END_TEST

/* A megabyte of one character: one piece. */
START_TEST(a_megabyte_in_one_piece_is_a_matter_of_moments)
{
    enum { MEGABYTE = 1000000 };
    uint64_t state = noise_start(199);
    struct trained *t = untrained();
    for (int length = 1; length <= 16; length *= 2) {
        struct word as = {length, {0}}, blanks = {length, {0}};
        memset(as.bytes, 'a', (size_t)length);
        memset(blanks.bytes, ' ', (size_t)length);
        trained_line(t, as, as);
        trained_line(t, blanks, blanks);
    }
    trained_end(t, &state);
    struct tokenizer *tokenizer = of_merges(t);
    char *text = malloc(MEGABYTE);
    ck_assert_ptr_nonnull(text);
    const char letters[] = {'a', ' ', '!', '\n', '\xFF'};
    for (int k = 0; k < 5; k++) {
        const int length = k < 2 ? MEGABYTE : MEGABYTE / 10;
        memset(text, letters[k], MEGABYTE);
        struct coded coded = encode(tokenizer, text, (size_t)length, 0);
        ck_assert_int_eq(coded.count, k < 2 ? length / 32 : length);
        free(coded.ids);
    }
    for (int k = 1; k < MEGABYTE; k += 2)
        text[k] = 'a';                           /* each its own piece */
    struct coded coded = encode(tokenizer, text, MEGABYTE / 4, 0);
    expect_decoded(tokenizer, &coded, true, text, MEGABYTE / 4);
    free(coded.ids);
    free(text);
    tokenizer_close(&tokenizer);
    trained_free(t);
}
END_TEST

/* The files of a vocabulary that is all bytes and two lines; %V and %M in a
   case are what it puts into them. */
static char *with(const char *text, const char *from, const char *to)
{
    char *made;
    size_t size;
    const char *at = strstr(text, from);
    ck_assert_msg(at != NULL, "no \"%s\" in the file", from);
    FILE *file = open_memstream(&made, &size);
    fprintf(file, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    fclose(file);
    return made;
}

static void expect_bad_files(const char *vocab, const char *merges,
                             const char *name)
{
    struct tokenizer *tokenizer = NULL;
    const long live = allocator_live();
    enum status status = tokenizer_of_merges(&tokenizer, vocab, strlen(vocab),
                                             merges, strlen(merges), &error);
    const long left = allocator_live() - live;
    expect_refused(status, STATUS_FORMAT, name);
    ck_assert_ptr_null(tokenizer);
    ck_assert_int_eq(left, 0);
}

/* Bytes have their own number as id; then ab, abc, <|endoftext|>. */
static struct trained *plain_files(void)
{
    uint64_t state = noise_start(200);
    const struct word a = {1, "a"}, b = {1, "b"}, c = {1, "c"}, ab = {2, "ab"};
    struct trained *t = untrained();
    trained_line(t, a, b);
    trained_line(t, ab, c);
    trained_end(t, &state);
    free(t->vocab);
    free(t->merges);
    for (int k = 0; k < t->tokens; k++)
        t->id[k] = k;
    trained_write(t, &state);
    return t;
}

START_TEST(a_vocabulary_that_cannot_be_is_refused)
{
    struct trained *t = plain_files();
    const struct { const char *from, *to, *name; } cases[] = {
        {"}\n", "\n", "JSON object"}, {"}\n", "} x", "JSON object"},
        {"{", "[", "JSON object"}, {"}\n", "}}", "JSON object"},
        {"\"ab\": 256", "\"ab\": 97", "a second token with id 97"},
        {"\"ab\": 256", "\"ab\": 259", "from 0 to 258"},
        {"\"ab\": 256", "\"ab\": -1", "\"ab\""},
        {"\"ab\": 256", "\"ab\": 256.5", "\"ab\""},
        {"\"ab\": 256", "\"ab\": 1e99", "\"ab\""},
        {"\"ab\": 256", "\"ab\": \"256\"", "\"ab\""},
        {"\"ab\": 256", "\"ab\": null", "\"ab\""},
        {"\"ab\": 256", "\"ab\": [256]", "\"ab\""},
        {"\"ab\": 256", "\"abc\": 256", "\"abc\""},
        {"\"ab\": 256", "\" \": 256", "are both"},
        {"\"ab\": 256", "\"\": 256", "empty token"},
        {"\"ab\": 256", "\"xy\": 256", "merges.txt: line 2"},
        {"\"a\": 97", "\"xy\": 97", "byte 61"},
        {"<|endoftext|>", "endoftext", "id 258"},
        {"<|endoftext|>", "a b", "id 258"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        char *vocab = with(t->vocab, cases[k].from, cases[k].to);
        expect_bad_files(vocab, t->merges, cases[k].name);
        free(vocab);
    }
    expect_bad_files("", t->merges, "JSON object");
    expect_bad_files("{}", t->merges, "byte 00");
    expect_bad_files("[]", t->merges, "JSON object");
    expect_bad_files("7", t->merges, "JSON object");
    trained_free(t);
}
END_TEST

/* Without what is behind the zero it would be the token that is missing. */
START_TEST(a_token_with_a_zero_in_it_is_refused)
{
    static const char *const spelled[] = {
        "\"ab\\u0000x\": 256", "\"\\u0061b\\u0000\": 256"
    };
    struct trained *t = plain_files();
    for (size_t k = 0; k < sizeof spelled / sizeof spelled[0]; k++) {
        char *vocab = with(t->vocab, "\"ab\": 256", spelled[k]);
        expect_bad_files(vocab, t->merges, "vocab.json: holds a zero");
        free(vocab);
    }
    /* a backslash and six characters are no zero, and some other token */
    char *vocab = with(t->vocab, "\"ab\": 256", "\"\\\\u0000\": 256");
    expect_bad_files(vocab, t->merges, "merges.txt: line 2");
    free(vocab);
    trained_free(t);
}
END_TEST

START_TEST(merges_that_do_not_fit_the_vocabulary_are_refused)
{
    struct trained *t = plain_files();
    const struct { const char *from, *to, *name; } cases[] = {
        {"a b\n", "a b\na b\n", "line 3: the pair has a line before"},
        {"a b\n", "a b c\n", "line 2"}, {"a b\n", "ab\n", "line 2"},
        {"a b\n", "\na b\n", "line 2"}, {"a b\n", "a \n", "line 2"},
        {"a b\n", " b\n", "line 2"}, {"a b\n", "a  b\n", "line 2"},
        {"a b\n", "a b\na c\n", "line 3"}, {"a b\n", "zz b\n", "line 2"},
        {"ab c\n", "ab c\n \n", "line 4"}, {"a b\n", "a\tb\n", "line 2"},
        {"#version: 0.2\n", "#version: 0.2\n#version: 0.2\n", "line 2"},
        {"a b\n", "", "no line of merges.txt makes it"},
        {"ab c\n", "", "\"abc\", and no line of merges.txt makes it"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        char *merges = with(t->merges, cases[k].from, cases[k].to);
        expect_bad_files(t->vocab, merges, cases[k].name);
        free(merges);
    }
    expect_bad_files(t->vocab, "", "no line of merges.txt makes it");
    trained_free(t);
}
END_TEST

START_TEST(a_file_may_end_its_lines_otherwise_and_leave_its_version_out)
{
    struct trained *t = plain_files();
    const char *const merges[] = {
        "a b\nab c\n", "a b\nab c", "#version: 0.2\r\na b\r\nab c\r\n",
        "#version\na b\nab c\n",
    };
    for (int k = 0; k < 4; k++) {
        struct tokenizer *tokenizer = NULL;
        expect_ok(tokenizer_of_merges(&tokenizer, t->vocab, strlen(t->vocab),
                                      merges[k], strlen(merges[k]), &error),
                  &error);
        struct coded coded = encode(tokenizer, "abc", 3, 0);
        const int32_t wanted = 257;
        expect_ids(&coded, &wanted, 1, "abc");
        free(coded.ids);
        tokenizer_close(&tokenizer);
    }
    trained_free(t);
}
END_TEST

/* "# #" as the first line is a pair. */
START_TEST(a_line_that_begins_with_a_hash_is_a_pair)
{
    uint64_t state = noise_start(201);
    const struct word hash = {1, "#"};
    struct trained *t = untrained();
    trained_line(t, hash, hash);
    trained_end(t, &state);
    char *merges = with(t->merges, "#version: 0.2\n", "");
    struct tokenizer *tokenizer = NULL;
    expect_ok(tokenizer_of_merges(&tokenizer, t->vocab, strlen(t->vocab),
                                  merges, strlen(merges), &error), &error);
    struct coded coded = encode(tokenizer, "##", 2, 0);
    const int32_t wanted = id_of(t, "##");
    expect_ids(&coded, &wanted, 1, "##");
    free(coded.ids);
    free(merges);
    tokenizer_close(&tokenizer);
    trained_free(t);
}
END_TEST

/* cJSON allocates outside of what is counted here. */
START_TEST(gpt2s_kind_survives_each_failed_allocation)
{
    struct trained *t = plain_files();
    const char *text = "ab <|endoftext|> abc it's\xFF";
    for (long n = 1; ; n++) {
        struct tokenizer *tokenizer = NULL;
        struct coded coded = {NULL, -1};
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = tokenizer_of_merges(&tokenizer, t->vocab,
            strlen(t->vocab), t->merges, strlen(t->merges), &error);
        if (status == STATUS_OK)
            status = tokenizer_encode(tokenizer, text, strlen(text),
                                      TOKENIZER_SPECIAL, &coded.ids,
                                      &coded.count, &error);
        const bool failed = allocator_stop(), none = coded.ids == NULL;
        free(coded.ids);
        tokenizer_close(&tokenizer);
        live = allocator_live() - live;
        ck_assert_int_eq(live, 0);
        ck_assert_int_eq(status, failed ? STATUS_NO_MEMORY : STATUS_OK);
        ck_assert(failed == none);
        ck_assert_int_eq(coded.count, failed ? -1 : 11);
        if (!failed)
            break;
    }
    trained_free(t);
}
END_TEST

/* ---------------------------------------------------------- llama2.c's kind */

static struct tokenizer *of_scores(const struct scored *s)
{
    struct tokenizer *tokenizer = NULL;
    expect_ok(tokenizer_of_scores(&tokenizer, s->file, s->length, s->tokens,
                                  &error), &error);
    return tokenizer;
}

/* A few tokens with plain scores: 259 is " ", 260 a, 261 b, 262 c, 263 é,
   264 ab, 265 bc, 266 " a", 267 aa, 268 xa, whose x is none. */
static struct scored *small_scored(void)
{
    struct scored *s = scored_bytes();
    const char *const texts[] = {
        " ", "a", "b", "c", "\xC3\xA9", "ab", "bc", " a", "aa", "xa"
    };
    const float scores[] = {-9, -9, -9, -9, -9, -1, -1, -2, -0.5f, 1};
    for (int k = 0; k < 10; k++)
        scored_add(s, texts[k], scores[k]);
    scored_write(s);
    return s;
}

static void expect_small(const char *text, int options, const int32_t *wanted,
                         int count)
{
    struct scored *s = small_scored();
    struct tokenizer *tokenizer = of_scores(s);
    struct coded coded = encode(tokenizer, text, strlen(text), options);
    expect_ids(&coded, wanted, count, text);
    free(coded.ids);
    tokenizer_close(&tokenizer);
    scored_free(s);
}

START_TEST(a_byte_without_a_token_is_said_by_its_number)
{
    const int32_t wanted[] = {0xE2 + 3, 0x82 + 3, 0xAC + 3, 3 + 1, 3 + 255};
    expect_small("\xE2\x82\xAC\x01\xFF", 0, wanted, 5);
}
END_TEST

START_TEST(a_byte_without_a_token_is_joined_with_nothing)
{
    const int32_t wanted[] = {'x' + 3, 260};
    expect_small("xa", 0, wanted, 2);
}
END_TEST

START_TEST(a_text_that_begins_has_a_space_before_it)
{
    const int32_t wanted[] = {1, 259, 261};
    expect_small("b", TOKENIZER_BEGIN, wanted, 3);
    expect_small("b", 0, wanted + 2, 1);
}
END_TEST

START_TEST(texts_of_llama2c_have_the_ids_of_the_definition)
{
    struct scored *s = small_scored();
    struct tokenizer *tokenizer = of_scores(s);
    const struct { const char *text; int count, ids[9]; } cases[] = {
        {"", 1, {1}}, {"a", 2, {1, 266}}, {"b", 3, {1, 259, 261}},
        {" ", 3, {1, 259, 259}}, {"abc", 4, {1, 259, 264, 262}},
        {"bc", 3, {1, 259, 265}}, {"aaa", 4, {1, 259, 267, 260}},
        {"aaaa", 4, {1, 259, 267, 267}}, {"\xC3\xA9", 3, {1, 259, 263}},
        {"x", 3, {1, 259, 'x' + 3}}, {"xa", 4, {1, 259, 'x' + 3, 260}}, {"\xFF", 3, {1, 259, 258}},
        {"\xE2\x82\xAC", 5, {1, 259, 0xE2 + 3, 0x82 + 3, 0xAC + 3}},
        {"a\x80", 4, {1, 259, 'a' + 3, 0x83}}, {"\n", 3, {1, 259, 13}},
        {"<0x41>", 8, {1, 259, 63, 51, 123, 55, 52, 65}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        const char *text = cases[k].text;
        struct coded coded = encode(tokenizer, text, strlen(text),
                                    TOKENIZER_BEGIN);
        expect_ids(&coded, cases[k].ids, cases[k].count, text);
        expect_decoded(tokenizer, &coded, true, text, strlen(text));
        free(coded.ids);
    }
    ck_assert_int_eq(tokenizer_bos(tokenizer), 1);
    ck_assert_int_eq(tokenizer_eos(tokenizer), 1);
    tokenizer_close(&tokenizer);
    scored_free(s);
}
END_TEST

START_TEST(a_text_that_goes_on_has_no_space_before_it)
{
    struct scored *s = small_scored();
    struct tokenizer *tokenizer = of_scores(s);
    const int32_t wanted[] = {264, 262};
    struct coded coded = encode(tokenizer, "abc", 3, 0);
    expect_ids(&coded, wanted, 2, "abc");
    expect_decoded(tokenizer, &coded, false, "abc", 3);
    free(coded.ids);
    const int32_t spaced = 266;
    coded = encode(tokenizer, " a", 2, 0);
    expect_ids(&coded, &spaced, 1, " a");
    expect_decoded(tokenizer, &coded, false, " a", 2);
    expect_decoded(tokenizer, &coded, true, "a", 1);
    free(coded.ids);
    coded = encode(tokenizer, "", 0, 0);
    ck_assert_int_eq(coded.count, 0);
    ck_assert_ptr_null(coded.ids);
    tokenizer_close(&tokenizer);
    scored_free(s);
}
END_TEST

START_TEST(made_up_scores_give_the_ids_of_the_slow_encoder)
{
    static const char *const letters[] = {
        " ", "a", "b", "c", "\xC3\xA9", "\xE4\xB8\xAD", "<", "\n", "x",
        "\x80", "\xFF", "\xC3"
    };
    uint64_t state = noise_start(202);
    for (int vocabulary = 0; vocabulary < 5; vocabulary++) {
        struct scored *s = scored_from_noise(&state);
        struct tokenizer *tokenizer = of_scores(s);
        for (int round = 0; round < 200; round++) {
            char text[256] = "";
            int32_t wanted[WORD_MAX] = {1};
            const int length = noise_below(&state, 60);
            const int begin = round % 2;
            for (int k = 0; k < length; k++)
                strcat(text, letters[noise_below(&state, 8 + 4 * begin)]);
            const int count = begin + slow_scores(s, text, (int)strlen(text),
                                                  begin, wanted + begin);
            struct coded coded = encode(tokenizer, text, strlen(text), begin);
            expect_ids(&coded, wanted, count, text);
            expect_decoded(tokenizer, &coded, begin, text, strlen(text));
            free(coded.ids);
        }
        tokenizer_close(&tokenizer);
        scored_free(s);
    }
}
END_TEST

START_TEST(any_bytes_come_back_through_scores)
{
    uint64_t state = noise_start(203);
    struct scored *s = scored_from_noise(&state);
    struct tokenizer *tokenizer = of_scores(s);
    char text[256];
    for (int round = 0; round < 400; round++) {
        const int length = noise_below(&state, 256);
        fill_any_bytes(&state, text, length);
        for (int begin = 0; begin < 2; begin++) {
            struct coded coded = encode(tokenizer, text, (size_t)length,
                                        begin);
            expect_decoded(tokenizer, &coded, begin, text, (size_t)length);
            free(coded.ids);
        }
    }
    tokenizer_close(&tokenizer);
    scored_free(s);
}
END_TEST

/* "ab" and "bc" have these scores; which of them does "abc" become? */
static void expect_first(float ab, float bc, bool left)
{
    struct scored *s = scored_bytes();
    const int32_t ab_first[] = {262, 261}, bc_first[] = {259, 263};
    scored_add(s, "a", -9);
    scored_add(s, "b", -9);
    scored_add(s, "c", -9);
    scored_add(s, "ab", ab);
    scored_add(s, "bc", bc);
    scored_write(s);
    struct tokenizer *tokenizer = of_scores(s);
    struct coded coded = encode(tokenizer, "abc", 3, 0);
    expect_ids(&coded, left ? ab_first : bc_first, 2, "abc");
    free(coded.ids);
    tokenizer_close(&tokenizer);
    scored_free(s);
}

START_TEST(zeros_of_both_signs_are_one_score)
{
    expect_first(0.0f, -0.0f, true);
    expect_first(-0.0f, 0.0f, true);
}
END_TEST

/* Scores next to each other, of both signs. */
START_TEST(a_higher_score_goes_first)
{
    const float scores[][2] = {
        {1, 2}, {-2, -1}, {-1, 1}, {-1, 0}, {0, 1}, {1e-40f, 2e-40f},
        {-2e-40f, -1e-40f}, {-3e38f, 3e38f}, {1, 1.0000001f},
        {-1.0000001f, -1}, {-1e-45f, 0}, {-1e-45f, -0.0f}, {-0.0f, 1e-45f},
    };
    for (size_t k = 0; k < sizeof scores / sizeof scores[0]; k++) {
        expect_first(scores[k][0], scores[k][1], false);
        expect_first(scores[k][1], scores[k][0], true);
    }
}
END_TEST

static void expect_bad_scores(const unsigned char *file, size_t length,
                              int vocab_size, const char *name)
{
    struct tokenizer *tokenizer = NULL;
    /* a copy without a byte to spare, for the sanitizer to watch */
    unsigned char *copy = malloc(length + (length == 0));
    ck_assert_ptr_nonnull(copy);
    memcpy(copy, file, length);
    const long live = allocator_live();
    enum status status = tokenizer_of_scores(&tokenizer, copy, length,
                                             vocab_size, &error);
    const long left = allocator_live() - live;
    free(copy);
    expect_refused(status, STATUS_FORMAT, name);
    ck_assert_ptr_null(tokenizer);
    ck_assert_int_eq(left, 0);
}

START_TEST(a_file_of_scores_that_ends_anywhere_is_refused)
{
    struct scored *s = small_scored();
    struct tokenizer *tokenizer = NULL;
    for (size_t length = 0; length < s->length; length++)
        expect_bad_scores(s->file, length, s->tokens, "");
    expect_bad_scores(s->file, s->length, s->tokens - 1, "269 tokens");
    expect_bad_scores(s->file, s->length, s->tokens + 1, "token 269");
    expect_ok(tokenizer_of_scores(&tokenizer, s->file, s->length, 0, &error),
              &error);
    ck_assert_int_eq(tokenizer_count(tokenizer), 269);
    tokenizer_close(&tokenizer);
    scored_free(s);
}
END_TEST

static void put_at(unsigned char *file, size_t at, uint32_t number)
{
    for (int k = 0; k < 4; k++)
        file[at + (size_t)k] = (unsigned char)(number >> 8 * k);
}

START_TEST(scores_and_lengths_that_cannot_be_are_refused)
{
    struct scored *s = small_scored();
    /* the score of token 0 is at 4, its length at 8, its bytes at 12 */
    const uint32_t scores[] = {0x7FC00000, 0x7F800000, 0xFF800000,
                               0xFFFFFFFF};
    const uint32_t lengths[] = {0, 7, 8, 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF};
    for (int k = 0; k < 4; k++) {
        put_at(s->file, 4, scores[k]);
        expect_bad_scores(s->file, s->length, 0, "token 0: expected a finite");
    }
    put_at(s->file, 4, 0);
    for (int k = 0; k < 6; k++) {
        put_at(s->file, 8, lengths[k]);
        expect_bad_scores(s->file, s->length, 0, "token");
    }
    put_at(s->file, 8, 5);
    for (uint32_t longest = 0; longest < 6; longest++) {
        put_at(s->file, 0, longest);
        expect_bad_scores(s->file, s->length, 0, "expected a length");
    }
    put_at(s->file, 0, 6);
    scored_free(s);
}
END_TEST

START_TEST(bytes_under_another_name_are_refused)
{
    for (int k = 0; k < 256; k += 15) {
        struct scored *s = small_scored();
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)k);
        for (size_t at = 0; at + 6 < s->length; at++)
            if (memcmp(s->file + at, name, 6) == 0)
                s->file[at + 4] = 'x';
        expect_bad_scores(s->file, s->length, s->tokens, name);
        scored_free(s);
    }
    struct scored *s = scored_bytes();
    s->tokens--;
    scored_write(s);
    expect_bad_scores(s->file, s->length, 0, "at least 259");
    scored_free(s);
}
END_TEST

START_TEST(llama2cs_kind_survives_each_failed_allocation)
{
    struct scored *s = small_scored();
    for (long n = 1; ; n++) {
        struct tokenizer *tokenizer = NULL;
        struct coded coded = {NULL, -1};
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = tokenizer_of_scores(&tokenizer, s->file,
                                                 s->length, 0, &error);
        if (status == STATUS_OK)
            status = tokenizer_encode(tokenizer, "aaa", 3, TOKENIZER_BEGIN,
                                      &coded.ids, &coded.count, &error);
        const bool failed = allocator_stop();
        free(coded.ids);
        tokenizer_close(&tokenizer);
        live = allocator_live() - live;
        ck_assert_int_eq(live, 0);
        ck_assert_int_eq(status, failed ? STATUS_NO_MEMORY : STATUS_OK);
        ck_assert_int_eq(coded.count, failed ? -1 : 4);
        if (!failed)
            break;
    }
    scored_free(s);
}
END_TEST

/* -------------------------------------------------------------------- bytes */

START_TEST(a_byte_is_its_own_id)
{
    uint64_t state = noise_start(204);
    struct tokenizer *tokenizer = NULL;
    char text[300];
    expect_ok(tokenizer_of_bytes(&tokenizer, &error), &error);
    ck_assert_int_eq(tokenizer_count(tokenizer), 256);
    ck_assert_int_eq(tokenizer_eos(tokenizer), -1);
    ck_assert_int_eq(tokenizer_bos(tokenizer), -1);
    fill_any_bytes(&state, text, 300);
    struct coded coded = encode(tokenizer, text, 300, TOKENIZER_BEGIN);
    ck_assert_int_eq(coded.count, 300);
    for (int k = 0; k < 300; k++)
        ck_assert_int_eq(coded.ids[k], (unsigned char)text[k]);
    expect_decoded(tokenizer, &coded, true, text, 300);
    free(coded.ids);
    tokenizer_close(&tokenizer);
}
END_TEST

START_TEST(an_id_without_a_token_is_shown_as_a_replacement)
{
    struct tokenizer *tokenizer = NULL;
    expect_ok(tokenizer_of_bytes(&tokenizer, &error), &error);
    const int32_t none[] = {256, -1, INT32_MAX, INT32_MIN};
    for (int k = 0; k < 4; k++) {
        size_t length = 0;
        const unsigned char *bytes = tokenizer_bytes(tokenizer, none[k],
                                                     &length);
        ck_assert_uint_eq(length, 3);
        ck_assert_mem_eq(bytes, "\xEF\xBF\xBD", 3);
        ck_assert(!tokenizer_special(tokenizer, none[k]));
    }
    tokenizer_close(&tokenizer);
}
END_TEST

/* --------------------------------------------------------------- the stream */

/* Through a tokenizer of bytes: the worst case for characters. */
static struct shown streamed(const char *bytes, size_t length, size_t fail_at)
{
    struct tokenizer *tokenizer = NULL;
    struct shown shown = {.fail_at = fail_at};
    expect_ok(tokenizer_of_bytes(&tokenizer, &error), &error);
    struct text_stream stream = {
        .tokenizer = tokenizer, .previous = -1, .show = keep,
        .context = &shown
    };
    bool well = true;
    for (size_t k = 0; k < length && well; k++)
        well = text_stream_add(&stream, (unsigned char)bytes[k]);
    well = well && text_stream_end(&stream);
    ck_assert_int_eq(well, fail_at == 0 || fail_at > shown.calls);
    tokenizer_close(&tokenizer);
    return shown;
}

START_TEST(a_character_comes_out_whole_and_at_its_last_byte)
{
    struct tokenizer *tokenizer = NULL;
    const char *text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z";
    const size_t out[] = {1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11};
    struct shown shown = {0};
    expect_ok(tokenizer_of_bytes(&tokenizer, &error), &error);
    struct text_stream stream = {
        .tokenizer = tokenizer, .previous = -1, .show = keep,
        .context = &shown
    };
    for (size_t k = 0; k < strlen(text); k++) {
        ck_assert(text_stream_add(&stream, (unsigned char)text[k]));
        ck_assert_uint_eq(shown.length, out[k]);
    }
    ck_assert_uint_eq(shown.calls, 5);
    ck_assert(text_stream_end(&stream));
    ck_assert_uint_eq(shown.calls, 5);
    free(shown.bytes);
    tokenizer_close(&tokenizer);
}
END_TEST

START_TEST(bytes_of_no_character_come_out_as_they_are)
{
    uint64_t state = noise_start(205);
    for (int round = 0; round < 500; round++) {
        char text[64];
        const int length = noise_below(&state, 64);
        for (int k = 0; k < length; k++)
            text[k] = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xFF"[
                noise_below(&state, 11)];
        struct shown shown = streamed(text, (size_t)length, 0);
        ck_assert_uint_eq(shown.length, (size_t)length);
        if (length > 0)
            ck_assert_mem_eq(shown.bytes, text, (size_t)length);
        free(shown.bytes);
    }
    struct shown shown = streamed("\xE2\x82" "a\xC3\xA9\xF0\x9F", 7, 0);
    ck_assert_uint_eq(shown.calls, 6);
    ck_assert_uint_eq(shown.broken, 4);
    free(shown.bytes);
}
END_TEST

START_TEST(a_stream_stops_where_nobody_takes_what_it_shows)
{
    for (size_t k = 1; k <= 5; k++) {
        struct shown shown = streamed("a\xE2\x82" "b\xC3", 5, k);
        ck_assert_uint_eq(shown.calls, k);
        free(shown.bytes);
    }
}
END_TEST

START_TEST(a_token_of_half_a_character_waits_for_the_other_half)
{
    uint64_t state = noise_start(206);
    const struct word e2 = {1, "\xE2"}, b82 = {1, "\x82"}, ac = {1, "\xAC"};
    const struct word a = {1, "a"};
    struct trained *t = untrained();
    trained_line(t, e2, b82);
    trained_line(t, ac, a);
    trained_end(t, &state);
    struct tokenizer *tokenizer = of_merges(t);
    struct shown shown = {0};
    struct text_stream stream = {
        .tokenizer = tokenizer, .previous = -1, .show = keep,
        .context = &shown
    };
    ck_assert(text_stream_add(&stream, id_of(t, "\xE2\x82")));
    ck_assert_uint_eq(shown.length, 0);
    ck_assert(text_stream_add(&stream, id_of(t, "<|endoftext|>")));
    ck_assert_uint_eq(shown.length, 0);
    ck_assert(text_stream_add(&stream, id_of(t, "\xAC" "a")));
    ck_assert_uint_eq(shown.length, 4);
    ck_assert_mem_eq(shown.bytes, "\xE2\x82\xAC" "a", 4);
    stream.special = true;
    ck_assert(text_stream_add(&stream, id_of(t, "<|endoftext|>")));
    ck_assert_uint_eq(shown.length, 17);
    free(shown.bytes);
    tokenizer_close(&tokenizer);
    trained_free(t);
}
END_TEST

START_TEST(the_space_before_a_text_is_taken_away_where_it_begins)
{
    struct scored *s = small_scored();
    struct tokenizer *tokenizer = of_scores(s);
    const int32_t ids[] = {266, 266, 1, 266, 259, 259};
    struct shown shown = {0};
    struct text_stream stream = {
        .tokenizer = tokenizer, .previous = -1, .show = keep,
        .context = &shown
    };
    for (int k = 0; k < 6; k++)
        ck_assert(text_stream_add(&stream, ids[k]));
    ck_assert_uint_eq(shown.length, 6);
    ck_assert_mem_eq(shown.bytes, "a aa  ", 6);
    free(shown.bytes);
    tokenizer_close(&tokenizer);
    scored_free(s);
}
END_TEST

/* ------------------------------------------------------------------- opening */

static const char *beside(const char *name)
{
    static char path[4][512];
    static int next;
    char *made = path[next++ % 4];
    snprintf(made, sizeof path[0], "%s/%s", harness_scratch(), name);
    return made;
}

static void put_file(const char *name, const void *bytes, size_t length)
{
    FILE *file = fopen(beside(name), "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, length, file), length);
    ck_assert_int_eq(fclose(file), 0);
}

static void take_away(void)
{
    static const char *const names[] = {
        "vocab.json", "merges.txt", "tokenizer.bin", "tok269.bin", "model.bin"
    };
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
        remove(beside(names[k]));
}

static int opened(const char *model, const char *named, int vocab_size)
{
    struct tokenizer *tokenizer = NULL;
    enum status status = tokenizer_open(&tokenizer, model, named, vocab_size,
                                        &error);
    const int count = status == STATUS_OK ? tokenizer_count(tokenizer)
                                          : -(int)status;
    tokenizer_close(&tokenizer);
    return count;
}

START_TEST(a_tokenizer_is_found_beside_its_model)
{
    struct trained *t = plain_files();
    struct scored *s = small_scored();
    const char *directory = harness_scratch();
    take_away();
    put_file("model.bin", "x", 1);
    const char *model = beside("model.bin");
    ck_assert_int_eq(opened(directory, NULL, 256), 256);
    ck_assert_int_eq(opened(model, NULL, 256), 256);
    ck_assert_int_eq(opened(directory, NULL, 269), -STATUS_INVALID);
    expect_named(&error, "has neither vocab.json");
    put_file("tokenizer.bin", s->file, s->length);
    ck_assert_int_eq(opened(model, NULL, 269), 269);
    ck_assert_int_eq(opened(directory, NULL, 0), 269);
    ck_assert_int_eq(opened(model, NULL, 300), -STATUS_FORMAT);
    expect_named(&error, "tokenizer.bin");
    put_file("tok269.bin", "broken", 6);
    ck_assert_int_eq(opened(model, NULL, 269), -STATUS_FORMAT);
    expect_named(&error, "tok269.bin");
    put_file("vocab.json", t->vocab, strlen(t->vocab));
    ck_assert_int_eq(opened(directory, NULL, 259), -STATUS_IO);
    expect_named(&error, "merges.txt");
    put_file("merges.txt", t->merges, strlen(t->merges));
    ck_assert_int_eq(opened(directory, NULL, 259), 259);
    ck_assert_int_eq(opened(directory, NULL, 300), 259);
    ck_assert_int_eq(opened(directory, NULL, 258), -STATUS_FORMAT);
    expect_named(&error, "259 ids, and the model 258");
    remove(beside("vocab.json"));
    ck_assert_int_eq(opened(directory, NULL, 259), -STATUS_IO);
    expect_named(&error, "vocab.json");
    take_away();
    scored_free(s);
    trained_free(t);
}
END_TEST

START_TEST(a_tokenizer_that_is_named_is_the_one)
{
    struct trained *t = plain_files();
    struct scored *s = small_scored();
    take_away();
    put_file("tok269.bin", s->file, s->length);
    put_file("vocab.json", t->vocab, strlen(t->vocab));
    put_file("merges.txt", t->merges, strlen(t->merges));
    ck_assert_int_eq(opened("/", "bytes", 300), 256);
    ck_assert_int_eq(opened("/", harness_scratch(), 0), 259);
    ck_assert_int_eq(opened("/", beside("vocab.json"), 0), 259);
    ck_assert_int_eq(opened("/", beside("tok269.bin"), 269), 269);
    ck_assert_int_eq(opened("/", beside("tok269.bin"), 270), -STATUS_FORMAT);
    ck_assert_int_eq(opened("/", beside("nothing"), 0), -STATUS_IO);
    ck_assert_int_eq(opened("/", "/proc", 256), -STATUS_INVALID);
    ck_assert_int_eq(opened("/", "/dev/zero", 256), -STATUS_IO);
    take_away();
    scored_free(s);
    trained_free(t);
}
END_TEST

/* All of them hold scores, and lie beside a pair. */
START_TEST(a_pair_is_opened_by_the_name_of_its_vocabulary)
{
    static const char *const others[] = {
        "tokenizer.json", "my-vocab.json", "vocab.json.json", "Vocab.json",
        "vocab.jso", ".json"
    };
    struct trained *t = plain_files();
    struct scored *s = small_scored();
    char here[4096];
    take_away();
    put_file("vocab.json", t->vocab, strlen(t->vocab));
    put_file("merges.txt", t->merges, strlen(t->merges));
    for (size_t k = 0; k < sizeof others / sizeof others[0]; k++) {
        put_file(others[k], s->file, s->length);
        ck_assert_msg(opened("/", beside(others[k]), 0) == 269, "%s",
                      others[k]);
        remove(beside(others[k]));
    }
    ck_assert_ptr_nonnull(getcwd(here, sizeof here));
    ck_assert_int_eq(chdir(harness_scratch()), 0);
    const int count = opened("/", "vocab.json", 0);
    ck_assert_int_eq(chdir(here), 0);
    ck_assert_int_eq(count, 259);
    take_away();
    scored_free(s);
    trained_free(t);
}
END_TEST

START_TEST(files_that_cannot_be_a_tokenizers_are_not_read)
{
    take_away();
    put_file("tokenizer.bin", "x", 1);
    ck_assert_int_eq(truncate(beside("tokenizer.bin"), (64 << 20) + 1), 0);
    ck_assert_int_eq(opened(harness_scratch(), NULL, 300), -STATUS_FORMAT);
    expect_named(&error, "64 MiB");
    remove(beside("tokenizer.bin"));
    ck_assert_int_eq(mkfifo(beside("merges.txt"), 0600), 0);
    put_file("vocab.json", "{}", 2);
    ck_assert_int_eq(opened(harness_scratch(), NULL, 300), -STATUS_IO);
    expect_named(&error, "not a regular file");
    take_away();
}
END_TEST

/* What generation_config.json and config.json say (NULL: not there), and the
   ids that follow, up to a negative one; a first of -9 is a refusal. */
struct ends_case {
    const char *generation, *config;
    int32_t ids[TEXT_ENDS_MAX + 1];
};

/* Beside a tokenizer with the EOS 258. */
static void expect_ends(const struct ends_case *cases, size_t cases_count)
{
    struct trained *t = plain_files();
    struct tokenizer *tokenizer = of_merges(t);
    take_away();
    for (size_t k = 0; k < cases_count; k++) {
        const struct text_ends before = {2, {70, 71}};
        struct text_ends ends = before;
        const char *const texts[] = {cases[k].generation, cases[k].config};
        static const char *const names[] = {"generation_config.json",
                                            "config.json"};
        for (int file = 0; file < 2; file++) {
            remove(beside(names[file]));
            if (texts[file] != NULL)
                put_file(names[file], texts[file], strlen(texts[file]));
        }
        const enum status status = text_ends_read(
            &ends, k % 2 ? beside("model.panels") : harness_scratch(),
            tokenizer, 269, &error);
        if (cases[k].ids[0] == -9) {
            ck_assert_int_eq(status, STATUS_FORMAT);
            expect_named(&error, cases[k].generation != NULL ? names[0]
                                                             : names[1]);
            ck_assert_mem_eq(&ends, &before, sizeof ends);
            continue;
        }
        expect_ok(status, &error);
        int count = 0;
        for (; count < TEXT_ENDS_MAX && cases[k].ids[count] >= 0; count++)
            ck_assert_int_eq(ends.ids[count], cases[k].ids[count]);
        ck_assert_int_eq(ends.count, count);
        for (int32_t id = 0; id < 269; id++) {
            bool there = false;
            for (int at = 0; at < count; at++)
                there = there || cases[k].ids[at] == id;
            ck_assert_int_eq(text_ends_with(&ends, id), there);
        }
    }
    remove(beside("generation_config.json"));
    remove(beside("config.json"));
    tokenizer_close(&tokenizer);
    trained_free(t);
}

START_TEST(the_files_of_a_model_say_which_id_ends_a_text)
{
    static const struct ends_case cases[] = {
        {NULL, NULL, {258, -1}},
        {NULL, "{\"eos_token_id\": 7}", {7, -1}},
        {NULL, "{\"eos_token_id\": 0}", {0, -1}},
        {NULL, "{\"eos_token_id\": null}", {258, -1}},
        {NULL, "{\"EOS_TOKEN_ID\": 4}", {258, -1}},
        {NULL, "{\"eos_token_id\": 269}", {-1}},
        {"{\"eos_token_id\": 1}", "{\"eos_token_id\": 7}", {1, -1}},
        {"{\"max_length\": 9}", "{\"eos_token_id\": 7}", {7, -1}},
        {"{\"max_length\": 9}", NULL, {258, -1}},
        {NULL, "{\"eos_token_id\": -1}", {-9}},
        {NULL, "{\"eos_token_id\": 1.5}", {-9}},
        {NULL, "{\"eos_token_id\": \"7\"}", {-9}},
        {NULL, "{\"eos_token_id\": 4294967297}", {-9}},
        {"{", "{\"eos_token_id\": 7}", {-9}},
    };
    expect_ends(cases, sizeof cases / sizeof *cases);
    put_file("config.json", "{\"eos_token_id\": 7}", 19);
    struct text_ends ends = {0, {0}};
    expect_ok(text_ends_read(&ends, beside("model.bin"), NULL, 269, &error),
              &error);
    ck_assert_int_eq(ends.count, 0);             /* llama2.c's */
    expect_ok(text_ends_read(&ends, harness_scratch(), NULL, 269, &error),
              &error);
    ck_assert_int_eq(ends.ids[0], 7);
    remove(beside("config.json"));
}
END_TEST

START_TEST(each_id_of_a_list_ends_a_text)
{
    static const struct ends_case cases[] = {
        {NULL, "{\"eos_token_id\": [9, 3, 9, 5]}", {9, 3, 5, -1}},
        {NULL, "{\"eos_token_id\": []}", {-1}},
        {NULL, "{\"eos_token_id\": [300, 268]}", {268, -1}},
        {"{\"eos_token_id\": [1, 2]}", "{\"eos_token_id\": 7}", {1, 2, -1}},
        {NULL, "{\"eos_token_id\": [0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]}",
         {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, -1}},
        {NULL, "{\"eos_token_id\": [0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,"
         "16]}", {-9}},
        {NULL, "{\"eos_token_id\": [1, null]}", {-9}},
    };
    expect_ends(cases, sizeof cases / sizeof *cases);
}
END_TEST

/* ------------------------------------------------------------------ commands

   A model that has learned a text by heart: position t says id script[t + 1],
   whatever it reads. It has more ids than tokens. */

enum { HEART_V = 272, HEART_N = 24 };

static struct tiny_gpt *heart_model(const int32_t *script)
{
    const struct gpt_config config = {
        .vocab_size = HEART_V, .context_length = HEART_N, .d_model = HEART_V,
        .n_layers = 1, .n_heads = 1, .d_ff = 1, .layer_norm_eps = 1e-5,
    };
    struct tiny_gpt *model = new_model(&config);
    struct parameters *p = tiny_gpt_parameters(model);
    for (int k = 0; k < HEART_V; k++) {
        p->final_norm.weight.data[k] = 1;
        p->token_embedding.weight.data[k * HEART_V + k] = 1;
    }
    for (int t = 0; t + 1 < HEART_N; t++)
        p->position_embedding.weight.data[t * HEART_V + script[t + 1]] = 5;
    return model;
}

static void save_heart(const char *directory, const int32_t *script)
{
    struct tiny_gpt *model = heart_model(script);
    mkdir(directory, 0700);
    expect_ok(tiny_gpt_save(model, directory, &error), &error);
    tiny_gpt_free(&model);
}

/* The model of a text in a directory, with a vocabulary beside it whose ids
   are the bytes, then ab, abc and the end. */
struct heart { char directory[256]; struct trained *t; };

static void put_in(const struct heart *heart, const char *name,
                   const char *text)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", heart->directory, name);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    ck_assert_int_eq(fclose(file), 0);
}

static struct heart new_heart(const char *name, const char *text)
{
    struct heart heart = {.t = plain_files()};
    int32_t script[HEART_N];
    const size_t length = strlen(text);
    for (size_t k = 0; k < HEART_N; k++)         /* 258 is the end */
        script[k] = k < length ? (unsigned char)text[k] : 258;
    snprintf(heart.directory, sizeof heart.directory, "%s/%s",
             harness_scratch(), name);
    save_heart(heart.directory, script);
    put_in(&heart, "vocab.json", heart.t->vocab);
    put_in(&heart, "merges.txt", heart.t->merges);
    return heart;
}

static void heart_free(struct heart *heart)
{
    static const char *const names[] = {
        "vocab.json", "merges.txt", "config.json", "model.safetensors"
    };
    char path[300];
    for (int k = 0; k < 4; k++) {
        snprintf(path, sizeof path, "%s/%s", heart->directory, names[k]);
        remove(path);
    }
    rmdir(heart->directory);
    trained_free(heart->t);
}

static const char *tinygpt(const struct heart *heart, int expected,
                           const char *format, ...)
{
    char line[4000], *at = line;
    va_list arguments;
    at += sprintf(at, "%.20s", format);
    at = strchr(line, ' ');
    sprintf(at, " --model %s", heart->directory);
    at += strlen(at);
    va_start(arguments, format);
    vsprintf(at, strchr(format, ' '), arguments);
    va_end(arguments);
    return run_program(line, expected);
}

#define EURO "\xE2\x82\xAC"

START_TEST(generate_takes_text_and_says_text)
{
    struct heart heart = new_heart("heart", "xyz" EURO "abc\xC3\xA9");
    ck_assert_str_eq(tinygpt(&heart, 0, "generate --prompt xyz"),
                     EURO "abc\xC3\xA9");
    ck_assert_str_eq(tinygpt(&heart, 0, "generate --prompt ab"),
                     "yz" EURO "abc\xC3\xA9");
    ck_assert_str_eq(tinygpt(&heart, 0, "generate --prompt 'abc abc'"
                             " --max-new-tokens 2"), "\xE2\x82");
    ck_assert_str_eq(tinygpt(&heart, 0, "generate --prompt-ids 1,2,3"
                             " --max-new-tokens 3"), EURO);
    ck_assert_str_eq(tinygpt(&heart, 0, "generate --prompt xyz --json"),
        "{\"tokens\":[226,130,172,97,98,99,195,169,258]}\n");
    ck_assert_str_eq(tinygpt(&heart, 0, "generate --prompt xyz --eos -1"
                             " --max-new-tokens 10 --json"),
        "{\"tokens\":[226,130,172,97,98,99,195,169,258,258]}\n");
    ck_assert_str_eq(tinygpt(&heart, 0, "generate --prompt xyz --eos 97"),
                     EURO);
    ck_assert_str_eq(tinygpt(&heart, 0, "generate --prompt xyz --eos -1"),
                     EURO "abc\xC3\xA9");
    ck_assert_str_eq(tinygpt(&heart, 0, "generate --prompt "
        "'<|endoftext|>' --special --max-new-tokens 1 --json"),
        "{\"tokens\":[121]}\n");
    ck_assert_str_eq(tinygpt(&heart, 0, "generate --prompt "
        "'<|endoftext|>' --max-new-tokens 1 --json"), "{\"tokens\":[258]}\n");
    heart_free(&heart);
}
END_TEST

/* 98 is b, 226 is the euro's first byte. */
START_TEST(generation_stops_where_the_model_says)
{
    struct heart heart = new_heart("heart", "xyz" EURO "abc\xC3\xA9");
    const char *const ways[] = {
        "generate --prompt xyz", "generate --prompt xyz --prefill-chunk 2",
        "generate --prompt xyz --speculative %s",
    };
    put_in(&heart, "generation_config.json", "{\"eos_token_id\": [99, 98]}");
    for (int k = 0; k < 3; k++)
        ck_assert_str_eq(tinygpt(&heart, 0, ways[k], heart.directory),
                         EURO "a");
    ck_assert_str_eq(tinygpt(&heart, 0, "generate --prompt xyz --json"),
        "{\"tokens\":[226,130,172,97,98]}\n");
    ck_assert_str_eq(tinygpt(&heart, 0, "generate --prompt xyz --eos 99"
                             " --json"),
        "{\"tokens\":[226,130,172,97,98,99]}\n");
    ck_assert_str_eq(tinygpt(&heart, 0, "generate --prompt xyz --eos -1"
                             " --max-new-tokens 9"), EURO "abc\xC3\xA9");
    ck_assert_ptr_nonnull(strstr(tinygpt(&heart, 0, "chat --max-new-tokens 9"
                                         " --prompt xyz"), EURO "a\n"));
    put_in(&heart, "generation_config.json", "{\"eos_token_id\": [\"b\"]}");
    ck_assert_ptr_nonnull(strstr(tinygpt(&heart, 1, "generate --prompt xyz"
                                         " 2>&1"), "generation_config.json"));
    char path[300];
    snprintf(path, sizeof path, "%s/generation_config.json", heart.directory);
    remove(path);
    heart_free(&heart);
}
END_TEST

START_TEST(every_run_says_the_same_text)
{
    struct heart heart = new_heart("heart", "xyz" EURO "abc\xC3\xA9");
    struct heart draft = new_heart("draft", "xyz" EURO "aac\xC3\xA9");
    const char *const ways[] = {
        "generate --prompt xyz --prefill-chunk 2",
        "generate --prompt xyz --speculative %s",
        "generate --prompt xyz --temperature 1e-3 --seed 7",
    };
    for (int k = 0; k < 3; k++)
        ck_assert_str_eq(tinygpt(&heart, 0, ways[k], draft.directory),
                         EURO "abc\xC3\xA9");
    heart_free(&draft);
    heart_free(&heart);
}
END_TEST

START_TEST(a_draft_of_other_tokens_is_refused)
{
    struct heart heart = new_heart("heart", "xyz");
    struct heart draft = new_heart("draft", "xyz");
    char *vocab = with(draft.t->vocab, "\"ab\": 256", "\"ab\": 9999");
    char *turned = with(vocab, "\"abc\": 257", "\"abc\": 256");
    char *other = with(turned, "9999", "257");
    put_in(&draft, "vocab.json", other);
    struct speaker one = {0}, two = {0};
    expect_ok(speaker_open(&one, heart.directory, NULL, true, &error),
              &error);
    expect_ok(speaker_open(&two, draft.directory, NULL, true, &error),
              &error);
    expect_ok(speaker_check_same(&one, &one, "--draft", &error), &error);
    expect_refused(speaker_check_same(&one, &two, "--draft", &error),
                   STATUS_INVALID, "--draft: id 256");
    tokenizer_close(&two.tokenizer);
    expect_ok(speaker_check_same(&one, &two, "--draft", &error), &error);
    two.lm.vocab_size--;
    expect_refused(speaker_check_same(&one, &two, "--draft", &error),
                   STATUS_INVALID, "--draft: vocab_size");
    speaker_close(&two);
    speaker_close(&one);
    const char *said = tinygpt(&heart, 1, "generate --prompt xyz"
                               " --speculative %s", draft.directory);
    ck_assert_msg(strstr(said, "--speculative: id 256") != NULL, "%s", said);
    free(other);
    free(turned);
    free(vocab);
    heart_free(&draft);
    heart_free(&heart);
}
END_TEST

START_TEST(two_tokenizers_differ_in_a_token_or_in_their_number)
{
    struct trained *t = plain_files();
    char *plain = with(t->merges, "ab c\n", "");
    char *fewer = with(t->vocab, "\"abc\": 257", "\"<a>\": 257");
    struct tokenizer *one = of_merges(t), *bytes = NULL, *named = NULL;
    expect_ok(tokenizer_of_bytes(&bytes, &error), &error);
    expect_ok(tokenizer_of_merges(&named, fewer, strlen(fewer), plain,
                                  strlen(plain), &error), &error);
    ck_assert_int_eq(tokenizer_difference(one, one), -1);
    ck_assert_int_eq(tokenizer_difference(one, bytes), 256);
    ck_assert_int_eq(tokenizer_difference(bytes, one), 256);
    ck_assert_int_eq(tokenizer_difference(one, named), 257);
    tokenizer_close(&one);
    tokenizer_close(&bytes);
    tokenizer_close(&named);
    free(fewer);
    free(plain);
    trained_free(t);
}
END_TEST

START_TEST(a_model_without_a_tokenizer_speaks_in_ids)
{
    struct heart heart = new_heart("heart", "xyz");
    char path[300];
    snprintf(path, sizeof path, "%s/merges.txt", heart.directory);
    remove(path);
    ck_assert_ptr_nonnull(strstr(tinygpt(&heart, 1, "generate --prompt-ids 1"),
                                 "merges.txt"));
    snprintf(path, sizeof path, "%s/vocab.json", heart.directory);
    remove(path);
    ck_assert_str_eq(tinygpt(&heart, 0, "generate --prompt-ids 1,2"
                             " --max-new-tokens 2"), "122 258\n");
    ck_assert_str_eq(tinygpt(&heart, 0, "generate --prompt-ids 1,2"
                             " --max-new-tokens 1 --tokenizer bytes"), "z");
    ck_assert_str_eq(tinygpt(&heart, 0, "generate --prompt ab"
                             " --max-new-tokens 1 --tokenizer bytes"), "z");
    const char *const text[] = {
        "generate --prompt ab", "chat --max-new-tokens 1 --prompt a",
        "logits --prompt a --continuation b", "tokenize --text a",
    };
    for (int k = 0; k < 4; k++) {
        const char *said = tinygpt(&heart, 1, text[k]);
        ck_assert_msg(strstr(said, "has neither vocab.json") != NULL, "%s",
                      said);
        ck_assert_ptr_eq(strchr(said, '\n'), said + strlen(said) - 1);
    }
    heart_free(&heart);
}
END_TEST

START_TEST(ids_without_a_token_are_shown_as_replacements)
{
    struct heart heart = new_heart("heart", "xyz");
    const int32_t script[HEART_N] = {0, 265, 'a', 270, 258};
    save_heart(heart.directory, script);
    ck_assert_str_eq(tinygpt(&heart, 0, "generate --prompt x"),
                     "\xEF\xBF\xBD" "a\xEF\xBF\xBD");
    heart_free(&heart);
}
END_TEST

START_TEST(a_chat_is_in_text_and_ends_its_replies_with_eos)
{
    struct heart heart = new_heart("heart", "hi" EURO);
    ck_assert_str_eq(tinygpt(&heart, 0, "chat --max-new-tokens 9"
                             " --prompt hi"), EURO "\n");
    ck_assert_str_eq(tinygpt(&heart, 0, "chat --max-new-tokens 1"
                             " --prompt h"), "i\n");
    heart_free(&heart);
    heart = new_heart("heart", "hi" EURO "..." EURO);
    for (int k = 0; k < 3; k++) {
        static const char *const kinds[] = {"none", "snapshots", "blocks"};
        ck_assert_str_eq(tinygpt(&heart, 0, "chat --max-new-tokens 3"
            " --prompt hi --prompt '.' --block-size 2 --prefix-cache %s",
            kinds[k]), EURO "\n.\xE2\x82\n");
    }
    heart_free(&heart);
}
END_TEST

START_TEST(logits_takes_text_for_ids)
{
    struct heart heart = new_heart("heart", "xyz" EURO);
    static char ids[8192];
    strcpy(ids, tinygpt(&heart, 0, "logits --prompt-ids 120,121"
                        " --continuation-ids 256,99"));
    ck_assert_str_eq(tinygpt(&heart, 0, "logits --prompt xy --continuation"
                             " 'ab' --tokenizer %s", heart.directory),
                     (strchr(ids, '\n')[1] = '\0', ids));
    ck_assert_ptr_nonnull(strstr(tinygpt(&heart, 2, "logits --prompt xy"
        " --prompt-ids 1 --continuation b"), "or text for them"));
    ck_assert_ptr_nonnull(strstr(tinygpt(&heart, 1, "logits --prompt ''"
        " --continuation b"), "prompt is empty"));
    heart_free(&heart);
}
END_TEST

/* The oracle's directories, through the cache and without it. */
START_TEST(logits_are_the_same_with_the_cache_and_without)
{
    static const char *const models[] = {
        "gpt2_tiny", "gpt2_tiny_f16", "gpt2_tiny_bf16", "llama_tiny"
    };
    static char cached[8192];
    for (int m = 0; m < 4; m++) {
        char line[256];
        snprintf(line, sizeof line, "logits --model tests/golden/%s"
                 " --prompt-ids 3,1,4 --continuation-ids 1,5", models[m]);
        strcpy(cached, run_program(line, 0));
        strcat(line, " --no-cache");
        const char *whole = run_program(line, 0), *a = cached, *b = whole;
        int numbers = 0;
        for (char *ends[2] = {NULL, NULL}; *a != '\0' && *b != '\0';
             a = ends[0] + 1, b = ends[1] + 1, numbers++) {
            const double x = strtod(a, &ends[0]), y = strtod(b, &ends[1]);
            ck_assert_double_le(fabs(x - y), 1e-5 + 1e-5 * fabs(y));
            ck_assert(ends[0] > a && ends[1] > b);
        }
        ck_assert_int_ge(numbers, 2 * 60);
        snprintf(line, sizeof line, "generate --model tests/golden/%s"
                 " --prompt-ids 3,1,4 --max-new-tokens 3", models[m]);
        int said[3];
        ck_assert_int_eq(sscanf(run_program(line, 0), "%d %d %d", &said[0],
                                &said[1], &said[2]), 3);
    }
}
END_TEST

/* ------------------------------------------------ models of every format */

enum { SAID = 5 };
static const int32_t opening[] = {3, 1, 4, 1, 5, 9, 2};
enum { OPENING = sizeof opening / sizeof opening[0] };

/* Rows 2 … 5 of that text, which are behind its first three ids. */
START_TEST(logits_are_right_in_every_format)
{
    for (enum written format = 0; format < FORMATS; format++) {
        struct original original = original_of(format);
        const int width = original.vocab_size;
        float wanted[OPENING * 16], got[4 * 16];
        char line[700], *end;
        snprintf(line, sizeof line, "logits --model '%s' --prompt-ids 3,1,4"
                 " --continuation-ids 1,5,9,2", write_format(format));
        const char *at = run_program(line, 0);
        for (int k = 0; k < 4 * width; k++, at = end) {
            got[k] = strtof(at, &end);
            ck_assert_ptr_ne(end, at);
            ck_assert_int_eq(*end, k % width == width - 1 ? '\n' : ' ');
        }
        ck_assert_str_eq(at, "\n");
        original_logits(&original, opening, OPENING, wanted);
        expect_close(written_formats[format].name, got, wanted + 2 * width,
                     (size_t)(4 * width), 2, (const int[]){4, width},
                     TOLERANCE);
        original_free(&original);
    }
}
END_TEST

/* Without a tokenizer beside them. No id has a larger logit than the one that
   is said, but for the rounding of both. */
START_TEST(generate_goes_on_greedily_in_every_format)
{
    for (enum written format = 0; format < FORMATS; format++) {
        struct original original = original_of(format);
        const int width = original.vocab_size;
        int32_t ids[3 + SAID] = {3, 1, 4};
        float rows[(3 + SAID) * 16];
        char line[700], *end;
        snprintf(line, sizeof line, "generate --model '%s' --prompt-ids"
                 " 3,1,4 --max-new-tokens %d", write_format(format), SAID);
        const char *at = run_program(line, 0);
        for (int k = 0; k < SAID; k++, at = end) {
            ids[3 + k] = (int32_t)strtol(at, &end, 10);
            ck_assert_ptr_ne(end, at);
            ck_assert(ids[3 + k] >= 0 && ids[3 + k] < width);
        }
        ck_assert_str_eq(at, "\n");
        original_logits(&original, ids, 3 + SAID, rows);
        for (int k = 0; k < SAID; k++) {
            const float *row = rows + (2 + k) * width;
            for (int id = 0; id < width; id++)
                ck_assert_msg(row[id] - row[ids[3 + k]]
                              <= 1e-5f + 1e-5f * fabsf(row[id]),
                              "%s: new id %d is %d, and %d has more",
                              written_formats[format].name, k,
                              (int)ids[3 + k], id);
        }
        original_free(&original);
    }
}
END_TEST

static const char *said_by(const char *model, const char *command,
                           const char *options)
{
    char line[1000];
    snprintf(line, sizeof line, "%s --model '%s' %s", command, model,
             options);
    return run_program(line, 0);
}

/* The heart once more, as the hub would have it. */
START_TEST(text_is_said_by_a_gpt2_of_the_hub)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    const char *text = "xyz" EURO "abc\xC3\xA9";
    struct trained *t = plain_files();
    int32_t script[HEART_N];
    for (size_t k = 0; k < HEART_N; k++)
        script[k] = k < strlen(text) ? (unsigned char)text[k] : 258;
    struct tiny_gpt *model = heart_model(script);
    for (int k = 0; k < 3; k++) {
        const char *directory = new_directory();
        struct hub_file file = {.count = 0};
        gpt2_tensors(&file, model, types[k], k == 1 ? "transformer." : "");
        hub_write(&file, directory, gpt2_text(tiny_gpt_config(model), ""));
        hub_clear(&file);
        write_text(in(directory, "vocab.json"), t->vocab);
        write_text(in(directory, "merges.txt"), t->merges);
        ck_assert_str_eq(said_by(directory, "generate", "--prompt xyz"),
                         EURO "abc\xC3\xA9");
        if (k > 0)
            continue;
        ck_assert_str_eq(said_by(directory, "generate", "--prompt 'abc abc'"
                                 " --max-new-tokens 2"), "\xE2\x82");
        ck_assert_str_eq(said_by(directory, "tokenize", "--text 'abc ab'"),
                         "257,32,256\n");
    }
    tiny_gpt_free(&model);
    trained_free(t);
}
END_TEST

/* A Llama that goes from each id to the next of a round, whatever was
   before: without attention, an id has a column of its own, and its head's
   row says which it follows. */
static struct llama *model_of_a_round(const int32_t *round, int length)
{
    enum { V = 269, C = 270 };
    const struct llama_config config = {
        .vocab_size = V, .context_length = 24, .d_model = C, .n_layers = 1,
        .n_heads = 1, .n_kv_heads = 1, .head_dim = C, .d_ff = 1,
        .rms_norm_eps = 1e-5, .rope_theta = 10000
    };
    struct llama *model = new_llama(&config);
    const struct tensor *table =
        llama_tensor_find(model, "model.embed_tokens.weight")->tensor;
    const struct tensor *head =
        llama_tensor_find(model, "lm_head.weight")->tensor;
    const struct tensor *norm =
        llama_tensor_find(model, "model.norm.weight")->tensor;
    for (int k = 0; k < C; k++)
        norm->data[k] = 1;
    for (int id = 0; id < V; id++)
        table->data[id * C + id] = 1;
    for (int k = 0; k < length; k++)
        head->data[round[(k + 1) % length] * C + round[k]] = 1;
    return model;
}

/* " a", c, é, bc, " ", the bytes of €, a, and 1, which ends a text. */
START_TEST(text_is_said_by_a_file_of_llama2c)
{
    static const int32_t round[] = {266, 262, 263, 265, 259, 0xE2 + 3,
                                    0x82 + 3, 0xAC + 3, 260, 1};
    struct llama *model = model_of_a_round(round, 10);
    struct scored *s = small_scored();
    const char *directory = new_directory();
    const char *path = in(directory, "model.bin");
    size_t length;
    unsigned char *bytes = llama2c_bytes(model, &length);
    write_bytes(path, bytes, length);
    write_bytes(in(directory, "tokenizer.bin"), s->file, s->length);
    ck_assert_str_eq(said_by(path, "generate", "--prompt a"),
                     "c\xC3\xA9" "bc " EURO "a");
    ck_assert_str_eq(said_by(path, "generate", "--prompt bc"), " " EURO "a");
    ck_assert_str_eq(said_by(path, "generate", "--prompt a"
                             " --max-new-tokens 5"),
                     "c\xC3\xA9" "bc \xE2");
    ck_assert_str_eq(said_by(path, "generate", "--prompt a --json"
                             " --eos -1 --max-new-tokens 11"),
        "{\"tokens\":[262,263,265,259,229,133,175,260,1,266,262]}\n");
    ck_assert_str_eq(said_by(path, "tokenize", "--text 'a bc'"),
                     "1,266,259,265\n");
    free(bytes);
    scored_free(s);
    llama_free(&model);
}
END_TEST

START_TEST(tokenize_shows_ids_pieces_and_merges)
{
    struct heart heart = new_heart("heart", "x");
    const struct { const char *line, *wanted; } cases[] = {
        {"tokenize --text 'abc ab'", "257,32,256\n"},
        {"tokenize --text ''", "\n"},
        {"tokenize --text 'abc \"\xFF'  --pieces", "   257  \"abc\"\n"
         "    32  \" \"\n    34  \"\\\"\"\n   255  \"\xEF\xBF\xBD\"\n"},
        {"tokenize --text 'a<|endoftext|>' --special", "97,258\n"},
        {"tokenize --text 'a\xC3' --json", "{\"ids\":[97,195],\"pieces\":["
         "{\"text\":\"a\",\"hex\":\"61\",\"special\":false},{\"text\":\""
         "\xEF\xBF\xBD\",\"hex\":\"c3\",\"special\":false}]}\n"},
        {"tokenize --text 'xabc' --json --steps", "{\"steps\":[{\"left\":1,"
         "\"right\":2,\"id\":256},{\"left\":1,\"right\":3,\"id\":257}],"
         "\"ids\":[120,257],\"pieces\":[{\"text\":\"x\",\"hex\":\"78\","
         "\"special\":false},{\"text\":\"abc\",\"hex\":\"616263\","
         "\"special\":false}]}\n"},
        {"tokenize --decode --ids '257, 32 195,169\n'", "abc \xC3\xA9"},
        {"tokenize --decode --ids 97,258,98", "ab"},
        {"tokenize --decode --ids 97,258,98 --special", "a<|endoftext|>b"},
        {"tokenize --decode --ids ''", ""},
        {"tokenize --decode --ids 226,130", "\xE2\x82"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++)
        ck_assert_str_eq(tinygpt(&heart, 0, cases[k].line), cases[k].wanted);
    heart_free(&heart);
}
END_TEST

START_TEST(tokenize_reads_files_and_pipes_and_undoes_itself)
{
    uint64_t state = noise_start(207);
    struct scored *s = scored_from_noise(&state);
    char text[700], line[900];
    put_file("tokenizer.bin", s->file, s->length);
    for (int k = 0; k < 700; k++)
        text[k] = (char)noise_below(&state, 256);
    put_file("model.bin", text, sizeof text);
    const char *const lines[] = {
        "tokenize --tokenizer %s --file %s > %s.ids && '%s' tokenize --decode"
        " --tokenizer %s < %s.ids | cmp - %s && echo same",
        "tokenize --tokenizer %s < %s > %s.ids && '%s' tokenize --decode"
        " --tokenizer %s --ids \"$(cat %s.ids)\" | cmp - %s && echo same",
        "tokenize --no-begin --tokenizer %s < %s > %s.ids && '%s' tokenize"
        " --decode --no-begin --tokenizer %s < %s.ids | cmp - %s && echo same",
    };
    char tokenizer[300], file[300];
    snprintf(tokenizer, sizeof tokenizer, "%s", beside("tokenizer.bin"));
    snprintf(file, sizeof file, "%s", beside("model.bin"));
    for (int k = 0; k < 3; k++) {
        char whole[4000];
        snprintf(whole, sizeof whole, lines[k], tokenizer, file, file,
                 harness_program(), tokenizer, file, file);
        ck_assert_str_eq(run_program(whole, 0), "same\n");
    }
    snprintf(line, sizeof line, "%s.ids", file);
    remove(line);
    take_away();
    scored_free(s);
}
END_TEST

START_TEST(tokenize_refuses_what_it_cannot_do)
{
    const struct { const char *line; int status; const char *word; } bad[] = {
        {"tokenize", 2, "--tokenizer FILE is needed"},
        {"tokenize --text a", 2, "--tokenizer FILE is needed"},
        {"tokenize --tokenizer", 2, "--tokenizer"},
        {"tokenize --tokenizer bytes --text a --file b", 2, "not both"},
        {"tokenize --tokenizer bytes --decode --text a", 2, "--decode"},
        {"tokenize --tokenizer bytes --decode --json", 2, "--decode"},
        {"tokenize --tokenizer bytes --ids 1", 2, "--decode"},
        {"tokenize --tokenizer bytes --steps --text a", 2, "--json"},
        {"tokenize --tokenizer bytes --nonsense", 2, "--nonsense"},
        {"tokenize --tokenizer /nowhere/at.all --text a", 1, "at.all"},
        {"tokenize --tokenizer /proc --text a", 1, "/proc has"},
        {"tokenize --tokenizer bytes --file /nowhere", 1, "/nowhere"},
        {"tokenize --model /nowhere --text a", 1, "/nowhere"},
        {"tokenize --tokenizer bytes --decode --ids 1,256", 1, "number 1"},
        {"tokenize --tokenizer bytes --decode --ids 1,-1", 1, "number 1"},
        {"tokenize --tokenizer bytes --decode --ids 1.5", 1, "number 0"},
        {"tokenize --tokenizer bytes --decode --ids 1x", 1, "number 0"},
        {"tokenize --tokenizer bytes --decode --ids "
         "99999999999999999999999", 1, "number 0"},
    };
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        const char *said = run_program(bad[k].line, bad[k].status);
        if (strcmp(bad[k].word, "/proc has") == 0)
            ck_assert_ptr_nonnull(strstr(said, "/proc: has neither"));
        else
            ck_assert_msg(strstr(said, bad[k].word) != NULL, "%s: %s",
                          bad[k].line, said);
        ck_assert_ptr_eq(strchr(said, '\n'), said + strlen(said) - 1);
    }
    ck_assert_ptr_nonnull(strstr(run_program("tokenize --help", 0),
                                 "--steps"));
}
END_TEST

/* -------------------------------------------------------------------- table */

#define FIRST_BYTE "let size and the second byte's bounds follow from the " \
    "first byte"
#define PATTERN "a contraction, a word, a number, other signs, or spaces"
#define VISIBLE "let visible say whether the byte shows itself"
#define VALID "find the end of the valid text, once for all its pieces"
#define BAD_BYTE "let the piece be one byte that is no character"
#define SOONER "let the lower order be sooner, and the place on the left"
#define WAITS "let in what waits, when this pass is over"
#define ORDER "let the earliest line go first"
#define NAMED "let a special token end the text here"
#define HIGHER "let a higher score have a lower order"
#define CHARACTERS "let characters be tokens or bytes"
#define SPACE "begin with the space that is not the text's own"
#define LET_OUT "let out what is decided"
#define LEAVE_OUT "leave out the space that is not the text's own"

static const struct test tests[] = {
    TEST(a_character_is_whole_with_its_last_byte_and_not_before, 2,
         FIRST_BYTE),
    TEST(bytes_that_begin_no_character_are_counted, 2, FIRST_BYTE),
    TEST(a_quotation_ends_behind_a_character, 2,
         "cut a text behind a whole character"),
    TEST(a_token_is_found_by_its_bytes_however_they_are_cut, 2,
         "an id is found by its bytes"),
    TEST(each_byte_has_the_character_that_the_published_table_gives_it, 2,
         VISIBLE),
    TEST(what_is_not_of_the_alphabet_is_told, 2,
         "read one character of the alphabet"),
    TEST(words_keep_the_one_space_before_them, 2, PATTERN),
    TEST(spaces_leave_the_last_one_to_what_follows, 2, PATTERN),
    TEST(seven_endings_are_cut_off_in_small_letters_only, 2, PATTERN),
    TEST(letters_and_numbers_are_those_of_all_scripts, 2, PATTERN),
    TEST(twenty_five_characters_are_spaces_and_no_other, 2, "the pattern"),
    TEST(a_byte_of_no_character_is_a_piece_by_itself, 2, BAD_BYTE),
    TEST(made_up_texts_are_cut_as_by_hand, 2, PATTERN),
    TEST(the_leftmost_of_equal_orders_goes_first, 2, SOONER),
    TEST(a_pass_ends_before_what_it_made_counts, 2, WAITS),
    TEST(made_up_rules_merge_as_by_the_definition, 2,
         "join a place with the one behind it"),
    TEST(a_watcher_sees_each_merge_where_it_is, 2,
         "merge what has been offered"),
    TEST(a_long_list_takes_two_questions_a_join, 2,
         "join a place with the one behind it"),
    TEST(merging_without_memory_leaves_the_ids, 2,
         "room to merge in is made and freed"),
    TEST(a_character_comes_out_whole_and_at_its_last_byte, 2, LET_OUT),
    TEST(bytes_of_no_character_come_out_as_they_are, 2, LET_OUT),
    TEST(a_stream_stops_where_nobody_takes_what_it_shows, 2, LET_OUT),
    TEST(a_byte_is_its_own_id, 2, "the tokenizer of bytes"),
    TEST(an_id_without_a_token_is_shown_as_a_replacement, 2,
         "what an id is"),
    TEST(a_line_that_begins_with_a_hash_is_a_pair, 2,
         "pass over the line that names the version"),
    TEST(the_earliest_line_goes_first_however_long_the_others_are, 2, ORDER),
    TEST(words_of_the_training_have_the_ids_of_the_slow_encoder, 2,
         "encode pieces by merging bytes"),
    TEST(made_up_texts_have_the_ids_of_the_slow_encoder, 2,
         "encode a text without special tokens"),
    TEST(a_special_token_is_data_unless_it_is_asked_for, 2, NAMED),
    TEST(the_longest_of_the_names_at_a_place_is_meant, 2,
         "find the next special token"),
    TEST(any_bytes_come_back, 2, "encode a text without special tokens"),
    TEST(a_megabyte_in_one_piece_is_a_matter_of_moments, 2, VALID),
    TEST(a_vocabulary_that_cannot_be_is_refused, 2,
         "refuse a token that has no id of its own"),
    TEST(a_token_with_a_zero_in_it_is_refused, 2,
         "parse the object of tokens"),
    TEST(merges_that_do_not_fit_the_vocabulary_are_refused, 2,
         "hold the two files against each other"),
    TEST(a_file_may_end_its_lines_otherwise_and_leave_its_version_out, 2,
         "let a line be the next one"),
    TEST(gpt2s_kind_survives_each_failed_allocation, 2,
         "make a tokenizer of both files"),
    TEST(a_text_that_begins_has_a_space_before_it, 2, SPACE),
    TEST(the_space_before_a_text_is_taken_away_where_it_begins, 2, LEAVE_OUT),
    TEST(a_byte_without_a_token_is_said_by_its_number, 2,
         "say a byte of the character"),
    TEST(a_byte_without_a_token_is_joined_with_nothing, 2,
         "refuse bytes that have no spelling"),
    TEST(zeros_of_both_signs_are_one_score, 2, "let both zeros be one"),
    TEST(a_higher_score_goes_first, 2, HIGHER),
    TEST(texts_of_llama2c_have_the_ids_of_the_definition, 2, CHARACTERS),
    TEST(a_text_that_goes_on_has_no_space_before_it, 2, SPACE),
    TEST(made_up_scores_give_the_ids_of_the_slow_encoder, 2,
         "find what two tokens spell together"),
    TEST(any_bytes_come_back_through_scores, 2, CHARACTERS),
    TEST(a_file_of_scores_that_ends_anywhere_is_refused, 2,
         "refuse another number of tokens"),
    TEST(scores_and_lengths_that_cannot_be_are_refused, 2,
         "refuse a token that cannot be"),
    TEST(bytes_under_another_name_are_refused, 2,
         "refuse bytes under another name"),
    TEST(llama2cs_kind_survives_each_failed_allocation, 2,
         "make a tokenizer of scores"),
    TEST(a_token_of_half_a_character_waits_for_the_other_half, 2,
         "add the bytes of an id"),
    TEST(a_tokenizer_is_found_beside_its_model, 2,
         "open what a directory has"),
    TEST(a_tokenizer_that_is_named_is_the_one, 2,
         "open what the caller names"),
    TEST(a_pair_is_opened_by_the_name_of_its_vocabulary, 2,
         "open the pair that a vocabulary belongs to"),
    TEST(files_that_cannot_be_a_tokenizers_are_not_read, 2,
         "read a file that a tokenizer may have"),
    TEST(two_tokenizers_differ_in_a_token_or_in_their_number, 2,
         "what an id is"),
    TEST(a_draft_of_other_tokens_is_refused, 2,
         "refuse a speaker of other tokens"),
    TEST(generate_takes_text_and_says_text, 3,
         "describe the request to any model"),
    TEST(the_files_of_a_model_say_which_id_ends_a_text, 2,
         "let the tokenizer say it if no file does"),
    TEST(each_id_of_a_list_ends_a_text, 2, "take each id of the list"),
    TEST(generation_stops_where_the_model_says, 3,
         "let the tokenizer say it if no file does"),
    TEST(every_run_says_the_same_text, 3,
         "generate with any model and its tokenizer"),
    TEST(a_model_without_a_tokenizer_speaks_in_ids, 3,
         "open, read the prompt, generate"),
    TEST(ids_without_a_token_are_shown_as_replacements, 3, "what an id is"),
    TEST(a_chat_is_in_text_and_ends_its_replies_with_eos, 3,
         "choose the ids of a reply"),
    TEST(logits_takes_text_for_ids, 3, "read ids or text"),
    TEST(logits_are_the_same_with_the_cache_and_without, 3,
         "compute the rows of any family"),
    TEST(tokenize_shows_ids_pieces_and_merges, 3, "printing ids"),
    TEST(tokenize_reads_files_and_pipes_and_undoes_itself, 3,
         "getting the text"),
    TEST(tokenize_refuses_what_it_cannot_do, 3,
         "refuse options of the other direction"),
    TEST(logits_are_right_in_every_format, 3,
         "compute the rows of any family"),
    TEST(generate_goes_on_greedily_in_every_format, 3,
         "generate with any model and its tokenizer"),
    TEST(text_is_said_by_a_gpt2_of_the_hub, 3,
         "generate with any model and its tokenizer"),
    TEST(text_is_said_by_a_file_of_llama2c, 3,
         "generate with any model and its tokenizer"),
};

SUITE("chapter 19, text and ids", tests);
