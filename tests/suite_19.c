/* Chapter 19, files of tensors. Halves by ldexp and by their neighbours;
   files and indexes that are made here byte by byte. */
#include <math.h>
#include <sys/socket.h>
#include <sys/un.h>
#include "file.h"
#include "file_map.h"
#include "half.h"
#include "json.h"
#include "shards.h"
#include "support/allocator.h"
#include "support/compare.h"
#include "support/files.h"

#define LENGTH(array) (sizeof (array) / sizeof *(array))

static struct error error;

/* ------------------------------------------------------------------ halves */

struct format {
    const char *name;
    int exponent_bits, fraction_bits;
    float (*to)(uint16_t);
    uint16_t (*from)(float);
};

static const struct format formats[] = {
    {"F16", 5, 10, f16_to_f32, f16_from_f32},
    {"BF16", 8, 7, bf16_to_f32, bf16_from_f32},
};

static int exponent_of(const struct format *format, unsigned bits)
{
    return (int)(bits >> format->fraction_bits)
           & ((1 << format->exponent_bits) - 1);
}

/* The formula of the chapter, for a finite half. */
static double by_formula(const struct format *format, unsigned bits)
{
    const int m = format->fraction_bits;
    const int bias = (1 << (format->exponent_bits - 1)) - 1;
    const int fraction = (int)bits & ((1 << m) - 1);
    const int exponent = exponent_of(format, bits);
    const double size = exponent == 0
        ? ldexp(fraction, 1 - bias - m)
        : ldexp(fraction + (1 << m), exponent - bias - m);
    return bits >> 15 ? -size : size;
}

/* Halves whose exponent is of these. */
static void expect_values(int first, int last)
{
    for (size_t f = 0; f < LENGTH(formats); f++)
        for (unsigned bits = 0; bits < 65536; bits++) {
            const struct format *format = &formats[f];
            const int top = (1 << format->exponent_bits) - 1;
            const int exponent = exponent_of(format, bits);
            if (exponent < first || exponent > (last < 0 ? top - 1 : last))
                continue;
            const float got = format->to((uint16_t)bits);
            const double want = by_formula(format, bits);
            ck_assert_msg((double)got == want
                          && !signbit(got) == !signbit(want),
                          "%s %04x is %g, not %g", format->name, bits, got,
                          want);
        }
}

START_TEST(every_normal_half_is_the_float_of_its_formula)
{
    expect_values(1, -1);
}
END_TEST

START_TEST(every_subnormal_half_and_both_zeros_are_their_floats)
{
    expect_values(0, 0);
}
END_TEST

START_TEST(infinity_stays_infinite_and_nan_a_nan_from_every_half)
{
    for (size_t f = 0; f < LENGTH(formats); f++)
        for (unsigned bits = 0; bits < 65536; bits++) {
            const struct format *format = &formats[f];
            if (exponent_of(format, bits)
                != (1 << format->exponent_bits) - 1)
                continue;
            const float got = format->to((uint16_t)bits);
            const bool whole = bits << (32 - format->fraction_bits) == 0;
            ck_assert_msg(whole ? isinf(got) : isnan(got), "%s %04x is %g",
                          format->name, bits, got);
            ck_assert_msg(!signbit(got) == !(bits >> 15), "%s %04x is %g",
                          format->name, bits, got);
        }
}
END_TEST

/* The middle between each positive half and the next, in both signs, and the
   floats beside it. */
static void expect_rounding(int first, int last)
{
    for (size_t f = 0; f < LENGTH(formats); f++)
        for (unsigned bits = 0; bits < 0x7fff; bits++) {
            const struct format *format = &formats[f];
            const int top = (1 << format->exponent_bits) - 1;
            const int exponent = exponent_of(format, bits);
            if (exponent < first || exponent > (last < 0 ? top - 1 : last))
                continue;
            /* of the last half, where the next one would be */
            const double middle = 0.5 * (by_formula(format, bits)
                                         + by_formula(format, bits + 1));
            const float tie = (float)middle;
            if ((double)tie != middle || isinf(tie))
                continue;    /* BF16's last middle is no float's */
            const unsigned even = bits % 2 == 0 ? bits : bits + 1;
            for (unsigned sign = 0; sign <= 0x8000; sign += 0x8000) {
                const float side = sign ? -1 : 1;
                const unsigned got[] = {
                    format->from(side * nextafterf(tie, 0)),
                    format->from(side * tie),
                    format->from(side * nextafterf(tie, INFINITY))
                };
                const unsigned want[] = {bits | sign, even | sign,
                                         (bits + 1) | sign};
                for (int k = 0; k < 3; k++)
                    ck_assert_msg(got[k] == want[k], "%s: %g rounds to %04x,"
                                  " not %04x", format->name, side * tie,
                                  got[k], want[k]);
            }
        }
}

START_TEST(every_tie_of_normal_halves_goes_to_the_even_one)
{
    expect_rounding(1, -1);
}
END_TEST

START_TEST(every_tie_of_subnormal_halves_goes_to_the_even_one)
{
    expect_rounding(0, 0);
}
END_TEST

START_TEST(every_half_comes_back_from_its_float)
{
    for (size_t f = 0; f < LENGTH(formats); f++)
        for (unsigned bits = 0; bits < 65536; bits++) {
            const struct format *format = &formats[f];
            const float value = format->to((uint16_t)bits);
            if (isnan(value))
                continue;
            ck_assert_msg(format->from(value) == bits, "%s %04x: %04x",
                          format->name, bits, format->from(value));
        }
}
END_TEST

START_TEST(every_kind_of_nan_stays_one)
{
    for (size_t f = 0; f < LENGTH(formats); f++)
        for (int k = 0; k < 23; k++)
            for (uint32_t sign = 0; sign < 2; sign++) {
                const uint32_t bits = sign << 31 | 0x7f800000u | 1u << k;
                float nan;
                memcpy(&nan, &bits, sizeof nan);
                const uint16_t half = formats[f].from(nan);
                ck_assert_msg(isnan(formats[f].to(half)), "%s: NaN %08x is"
                              " %04x", formats[f].name, bits, half);
                ck_assert_uint_eq(half >> 15, sign);
            }
}
END_TEST

START_TEST(what_no_half_holds_is_infinite_or_zero)
{
    ck_assert_uint_eq(f16_from_f32(65519.996f), 0x7bff);
    ck_assert_uint_eq(f16_from_f32(65520), 0x7c00);
    ck_assert_uint_eq(f16_from_f32(-3e38f), 0xfc00);
    ck_assert_uint_eq(f16_from_f32(INFINITY), 0x7c00);
    ck_assert_uint_eq(f16_from_f32(0x1p-25f), 0);
    ck_assert_uint_eq(f16_from_f32(0x1.000002p-25f), 1);
    ck_assert_uint_eq(f16_from_f32(-1e-45f), 0x8000);
    ck_assert_uint_eq(bf16_from_f32(0x1.fffffep127f), 0x7f80);
    ck_assert_uint_eq(bf16_from_f32(-INFINITY), 0xff80);
    ck_assert_uint_eq(bf16_from_f32(1e-45f), 0);
}
END_TEST

START_TEST(no_half_is_nearer_than_the_one_that_is_taken)
{
    uint64_t state = noise_start(190);
    for (int round = 0; round < 20000; round++) {
        const struct format *format = &formats[round % 2];
        const float x = ldexpf(noise(&state), noise_below(&state, 40) - 26);
        const uint16_t half = format->from(x);
        const double error_taken = fabs((double)format->to(half) - x);
        for (int step = -1; step <= 1; step += 2) {
            const uint16_t other = (uint16_t)(half + step);
            if ((half & 0x7fff) == 0 && step < 0)
                continue;
            ck_assert_msg(error_taken <= fabs((double)format->to(other) - x),
                          "%s: %g to %04x", format->name, x, half);
        }
    }
}
END_TEST

START_TEST(elements_are_read_by_their_type_wherever_they_stand)
{
    uint64_t state = noise_start(191);
    unsigned char bytes[70];
    const enum dtype types[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F32};
    for (int round = 0; round < 200; round++) {
        for (size_t k = 0; k < sizeof bytes; k++)
            bytes[k] = (unsigned char)(noise_bits(&state) % 120);
        const int type = round % 3, offset = round % 5;
        float out[16];
        floats_from(types[type], bytes + offset, 16, out);
        for (int k = 0; k < 16; k++) {
            const unsigned char *at = bytes + offset
                                      + k * (type == 2 ? 4 : 2);
            const unsigned low = at[0] + 256u * at[1];
            float want;
            memcpy(&want, at, sizeof want);    /* this machine's order */
            if (type < 2)
                want = (float)by_formula(&formats[type], low);
            ck_assert_float_eq(out[k], want);
        }
    }
    ck_assert(dtype_is_weight(DTYPE_F32) && dtype_is_weight(DTYPE_F16)
              && dtype_is_weight(DTYPE_BF16));
    ck_assert(!dtype_is_weight(DTYPE_F64) && !dtype_is_weight(DTYPE_I32)
              && !dtype_is_weight(DTYPE_U8) && !dtype_is_weight(DTYPE_BOOL));
}
END_TEST

/* -------------------------------------------------------------------- maps */

START_TEST(a_map_has_the_bytes_of_its_file)
{
    struct file_map map;
    const char *path = in(new_directory(), "file");
    write_bytes(path, "some\0bytes", 10);
    const int files = open_files();
    const long live = allocator_live();
    enum status status = file_map_open(&map, path, &error);
    const long mapped = allocator_live() - live;
    expect_ok(status, &error);
    ck_assert_int_eq(mapped, 1);
    ck_assert_int_eq(open_files(), files);
    ck_assert_uint_eq(map.length, 10);
    expect_same_bits("map", map.bytes, "some\0bytes", 10);
    unlink(path);
    expect_same_bits("map of a removed file", map.bytes, "some\0bytes", 10);
    const long held = allocator_live();
    file_map_close(&map);
    file_map_close(&map);
    const long given = held - allocator_live();
    ck_assert_int_eq(given, 1);
    ck_assert_uint_eq(map.length, 0);
    ck_assert_ptr_nonnull(map.bytes);
}
END_TEST

START_TEST(an_empty_file_is_mapped_and_then_too_short)
{
    struct file_map map;
    struct shards *shards = NULL;
    const char *path = in(new_directory(), "empty");
    write_bytes(path, "", 0);
    expect_ok(file_map_open(&map, path, &error), &error);
    ck_assert_uint_eq(map.length, 0);
    ck_assert_ptr_nonnull(map.bytes);
    file_map_close(&map);
    ck_assert_int_eq(shards_open_file(&shards, path, &error), STATUS_FORMAT);
    expect_named(&error, "empty: ");
    ck_assert_ptr_null(shards);
}
END_TEST

START_TEST(what_is_no_file_is_refused)
{
    const char *directory = new_directory();
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%.80s/s", directory);
    const int socket_file = socket(AF_UNIX, SOCK_STREAM, 0);
    (void)bind(socket_file, (struct sockaddr *)&address, sizeof address);
    const char *paths[] = {directory, "/dev/null", "/dev/zero",
                           in(directory, "absent"), in(directory, "s"), ""};
    for (size_t k = 0; k < LENGTH(paths); k++) {
        struct file_map map = {(const unsigned char *)"kept", 4};
        const int files = open_files();
        ck_assert_int_eq(file_map_open(&map, paths[k], &error), STATUS_IO);
        ck_assert_msg(strncmp(error.message, paths[k], strlen(paths[k])) == 0
                      || strlen(paths[k]) > 96, "%s", error.message);
        ck_assert_uint_eq(map.length, 4);
        ck_assert_int_eq(open_files(), files);
    }
    close(socket_file);
}
END_TEST

START_TEST(a_pipe_is_refused_without_waiting)
{
    const char *directory = new_directory();
    struct file_map map;
    unsigned char *bytes = NULL;
    size_t length;
    ck_assert_int_eq(mkfifo(in(directory, "pipe"), 0600), 0);
    alarm(5);
    ck_assert_int_eq(file_map_open(&map, in(directory, "pipe"), &error),
                     STATUS_IO);
    expect_named(&error, "not a regular file");
    ck_assert_int_eq(file_read(in(directory, "pipe"), &bytes, &length,
                               &error), STATUS_IO);
    alarm(0);
}
END_TEST

START_TEST(a_refused_mapping_is_an_error)
{
    struct file_map map = {(const unsigned char *)"kept", 4};
    const char *path = in(new_directory(), "file");
    const int files = open_files();
    write_bytes(path, "bytes", 5);
    allocator_fail_at(1);
    const enum status status = file_map_open(&map, path, &error);
    ck_assert(allocator_stop());
    ck_assert_int_eq(status, STATUS_NO_MEMORY);
    expect_named(&error, "file: ");
    ck_assert_uint_eq(map.length, 4);
    ck_assert_int_eq(open_files(), files);
}
END_TEST

/* ------------------------------------------------------------------- parse */

#define SPAN(a, b) "\"data_offsets\":[" #a "," #b "]}"
#define TENSOR(name, type, shape) \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ","

/* No byte more than the data has may be handed out, so the data are at the
   end of their block. */
static enum status parse(const char *header, size_t data_length)
{
    struct safetensors *file = NULL;
    size_t length;
    char *data = calloc(data_length + 1, 1);
    unsigned char *bytes = tensor_bytes(header, data, data_length, &length);
    const long live = allocator_live();
    const enum status status = safetensors_parse(&file, "it", bytes, length,
                                                 &error);
    const bool made = file != NULL;
    safetensors_close(&file);
    const long left = allocator_live() - live;
    ck_assert(made == (status == STATUS_OK));
    ck_assert_int_eq(left, 0);
    free(bytes);
    free(data);
    return status;
}

START_TEST(bytes_in_memory_are_read_as_a_file_is)
{
    const float data[] = {1, 2, 3, 4, 5, 6};
    struct safetensors *file = NULL;
    size_t length;
    unsigned char *bytes = tensor_bytes(
        "{" TENSOR("b", "F32", "[2,2]") SPAN(8, 24) ","
        TENSOR("a", "F32", "[2]") SPAN(0, 8) "}", data, sizeof data,
        &length);
    expect_ok(safetensors_parse(&file, "it", bytes, length, &error), &error);
    ck_assert_uint_eq(safetensors_count(file), 2);
    const struct safetensors_entry *b = safetensors_find(file, "b");
    expect_same_bits("b", b->data, data + 2, 16);
    ck_assert_ptr_eq(b->data, bytes + length - 16);    /* no copy */
    safetensors_close(&file);
    ck_assert_ptr_null(file);
    free(bytes);
}
END_TEST

START_TEST(a_file_that_was_cut_or_grew_is_refused_at_every_length)
{
    const float data[] = {1, 2, 3, 4, 5, 6};
    struct safetensors *file = NULL;
    size_t length;
    unsigned char *bytes = tensor_bytes(
        "{\"__metadata__\":{\"k\":\"v\"}," TENSOR("b", "F32", "[2,2]")
        SPAN(8, 24) "," TENSOR("a", "BF16", "[4]") SPAN(0, 8) "}", data,
        sizeof data, &length);
    for (size_t cut = 0; cut < length; cut++) {
        unsigned char *part = malloc(cut + 1);
        memcpy(part, bytes, cut);
        const long live = allocator_live();
        const enum status status = safetensors_parse(&file, "it", part, cut,
                                                     &error);
        const long left = allocator_live() - live;
        ck_assert_int_eq(status, STATUS_FORMAT);
        ck_assert_int_eq(left, 0);
        ck_assert_ptr_null(file);
        free(part);
    }
    bytes[length] = 0;    /* tensor_bytes has room for it */
    ck_assert_int_eq(safetensors_parse(&file, "it", bytes, length + 1,
                                       &error), STATUS_FORMAT);
    expect_ok(safetensors_parse(&file, "it", bytes, length, &error), &error);
    safetensors_close(&file);
    free(bytes);
}
END_TEST

START_TEST(a_header_that_says_anything_wrong_is_refused)
{
    static const struct { const char *header; size_t data; } table[] = {
        {"", 0}, {"[]", 0}, {" {}", 0}, {"{}x", 0}, {"{", 0},
        {"{" TENSOR("a", "F32", "[1]") SPAN(0, 4) "," TENSOR("a", "F32",
         "[1]") SPAN(4, 8) "}", 8},
        {"{" TENSOR("a", "F32", "[2]") SPAN(0, 8) "," TENSOR("b", "F32",
         "[2]") SPAN(4, 12) "}", 12},
        {"{" TENSOR("a", "F32", "[1]") SPAN(0, 4) "," TENSOR("b", "F32",
         "[1]") SPAN(8, 12) "}", 12},
        {"{" TENSOR("a", "F32", "[1]") SPAN(4, 0) "}", 4},
        {"{" TENSOR("a", "F32", "[1]") SPAN(0, 8) "}", 8},
        {"{" TENSOR("a", "F32", "[1]") SPAN(0, 4) "}", 8},
        {"{" TENSOR("a", "F32", "[1]") SPAN(-4, 0) "}", 4},
        {"{" TENSOR("a", "F32", "[1]") SPAN(0, 4.5) "}", 5},
        {"{" TENSOR("a", "F32", "[1]") SPAN(0, 1e300) "}", 4},
        {"{" TENSOR("a", "F32", "[4294967296,4294967296]") SPAN(0, 0) "}",
         0},
        {"{" TENSOR("a", "F32", "[4611686018427387904]") SPAN(0, 0) "}", 0},
        {"{" TENSOR("a", "F32", "[-1]") SPAN(0, 4) "}", 4},
        {"{" TENSOR("a", "F33", "[1]") SPAN(0, 4) "}", 4},
        {"{" TENSOR("a", "F16", "[1]") SPAN(0, 4) "}", 4},
        {"{" TENSOR("a", "F32", "[1,1,1,1,1,1,1,1,1]") SPAN(0, 4) "}", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 0},
        {"{\"a\":{}}", 0}, {"{\"a\":7}", 0}, {"{\"__metadata__\":7}", 0},
        {"{\"__metadata__\":{\"a\":7}}", 0},
        {"{\"a\\u0000\":{}}", 0}, {"{\"a\\n\":{}}", 0},
    };
    for (size_t k = 0; k < LENGTH(table); k++) {
        ck_assert_msg(parse(table[k].header, table[k].data) == STATUS_FORMAT,
                      "not refused: %s", table[k].header);
        ck_assert_int_eq(strncmp(error.message, "it: ", 4), 0);
    }
    expect_ok(parse("{}", 0), &error);
}
END_TEST

START_TEST(a_headers_length_is_held_against_the_file)
{
    struct safetensors *file = NULL;
    unsigned char bytes[10] = {0, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    const uint64_t lengths[] = {0, 1, 3, UINT64_MAX, UINT64_MAX - 7,
                                UINT64_MAX - 8, (uint64_t)1 << 63, 1u << 31};
    for (size_t k = 0; k < LENGTH(lengths); k++) {
        for (int b = 0; b < 8; b++)
            bytes[b] = (unsigned char)(lengths[k] >> 8 * b);
        ck_assert_int_eq(safetensors_parse(&file, "it", bytes, sizeof bytes,
                                           &error), STATUS_FORMAT);
    }
}
END_TEST

START_TEST(brackets_without_end_do_not_end_the_program)
{
    const size_t depth = 1000000;
    char *text = malloc(depth + 16);
    cJSON *object = NULL;
    for (int kind = 0; kind < 2; kind++) {
        memcpy(text, "{\"a\":", 5);
        for (size_t k = 0; k < depth; k++)
            text[5 + k] = kind == 0 ? '[' : "{\"a\":"[k % 5];
        text[5 + depth] = '\0';
        ck_assert_int_eq(parse(text, 0), STATUS_FORMAT);
        ck_assert_int_eq(json_parse(&object, text, depth + 5, &error),
                         STATUS_FORMAT);
        ck_assert_ptr_null(object);
    }
    free(text);
}
END_TEST

/* -------------------------------------------------------------------- JSON */

START_TEST(json_is_one_object_whose_keys_differ)
{
    static const char *const bad[] = {
        "", "7", "[]", "{} {}", "{}x", "{\"a\":1,\"a\":1}",
        "{\"a\":1,\"b\":2,\"\\u0061\":3}", "{\"a\\u0000\":1}", "{\"a\":}",
        "null", "{", "{\"a\":1,}"
    };
    static const char *const good[] = {
        "{}", " {} \n\t\r", "{\"a\":{\"b\":1},\"b\":[1,2]}",
        "{\"a\":\"\\\\u0000\"}"
    };
    cJSON *object = NULL;
    for (size_t k = 0; k < LENGTH(bad); k++) {
        const long live = allocator_live();
        const enum status status = json_parse(&object, bad[k],
                                              strlen(bad[k]), &error);
        const long left = allocator_live() - live;
        ck_assert_msg(status == STATUS_FORMAT, "not refused: %s", bad[k]);
        ck_assert_ptr_null(object);
        ck_assert_int_eq(left, 0);
    }
    ck_assert_int_eq(json_parse(&object, "{}\0", 3, &error), STATUS_FORMAT);
    for (size_t k = 0; k < LENGTH(good); k++) {
        expect_ok(json_parse(&object, good[k], strlen(good[k]), &error),
                  &error);
        cJSON_Delete(object);
        object = NULL;
    }
}
END_TEST

/* ------------------------------------------------------------------ shards */

enum { SHARDED = 7 };

/* Tensors c, a, d, b … of which every third is in another file. */
static const char *const names[SHARDED] = {"c", "a", "g", "b", "e", "d",
                                           "f"};
static float values[SHARDED][3];

static struct safetensors_entry entry_of(int k)
{
    return (struct safetensors_entry){
        .name = names[k], .dtype = DTYPE_F32, .rank = 1, .shape = {3},
        .data = values[k], .bytes = sizeof values[k]
    };
}

static const char *file_of(int k)
{
    static const char *const files[] = {"y.safetensors", "z.safetensors",
                                        "x.safetensors"};
    return files[k % 3];
}

/* Three files and their index. */
static const char *sharded(void)
{
    const char *directory = new_directory();
    uint64_t state = noise_start(192);
    char index[1024] = "{\"metadata\":{\"total_size\":84},\"weight_map\":{";
    for (int k = 0; k < SHARDED; k++) {
        noise_floats(&state, 3, values[k]);
        sprintf(index + strlen(index), "%s\"%s\":\"%s\"", k ? "," : "",
                names[k], file_of(k));
    }
    strcat(index, "}}\n");
    for (int f = 0; f < 3; f++) {
        struct safetensors_entry entries[SHARDED];
        size_t count = 0;
        for (int k = f; k < SHARDED; k += 3)
            entries[count++] = entry_of(k);
        write_tensors(in(directory, file_of(f)), entries, count);
    }
    write_text(in(directory, "model.safetensors.index.json"), index);
    return directory;
}

START_TEST(each_tensor_is_found_with_its_own_bytes)
{
    const char *directory = sharded();
    struct shards *shards = NULL;
    const int files = open_files();
    const long live = allocator_live();
    const enum status status = shards_open(&shards, directory, &error);
    const long held = allocator_live() - live;
    expect_ok(status, &error);
    ck_assert_int_eq(open_files(), files);
    ck_assert_uint_eq(shards_count(shards), SHARDED);
    for (size_t k = 0; k < SHARDED; k++) {
        const char letter[2] = {(char)('a' + (int)k), '\0'};
        bool there = false;
        for (size_t i = 0; i < SHARDED; i++)
            there = there || strcmp(shards_at(shards, i)->name, letter) == 0;
        ck_assert_msg(there, "nothing lists %s", letter);
    }
    const long before = allocator_live();
    shards_close(&shards);
    shards_close(&shards);
    const long given = before - allocator_live();
    ck_assert_int_eq(given, held);
    ck_assert_ptr_null(shards);
}
END_TEST

START_TEST(tensors_of_all_files_are_in_one_order)
{
    struct shards *shards = NULL;
    size_t bytes = 0;
    const char *directory = sharded();
    expect_ok(shards_open(&shards, directory, &error), &error);
    for (size_t k = 0; k < SHARDED; k++) {
        const char letter[2] = {(char)('a' + (int)k), '\0'};
        ck_assert_str_eq(shards_at(shards, k)->name, letter);
        ck_assert_uint_eq(shards_find(shards, letter), k);
    }
    for (int k = 0; k < SHARDED; k++)
        expect_same_bits(names[k],
                         shards_at(shards, shards_find(shards, names[k]))
                             ->data, values[k], sizeof values[k]);
    ck_assert_uint_eq(shards_find(shards, "h"), SHARDED);
    ck_assert_uint_eq(shards_find(shards, ""), SHARDED);
    for (int f = 0; f < 3; f++) {
        struct stat facts;
        ck_assert_int_eq(stat(in(directory, file_of(f)), &facts), 0);
        bytes += (size_t)facts.st_size;
    }
    ck_assert_uint_eq(shards_bytes(shards), bytes);
    shards_close(&shards);
}
END_TEST

START_TEST(one_file_goes_before_an_index)
{
    const char *directory = sharded();
    struct shards *shards = NULL;
    const struct safetensors_entry entry = entry_of(2);
    write_tensors(in(directory, "model.safetensors"), &entry, 1);
    expect_ok(shards_open(&shards, directory, &error), &error);
    ck_assert_uint_eq(shards_count(shards), 1);
    shards_close(&shards);
    unlink(in(directory, "model.safetensors"));
    unlink(in(directory, "model.safetensors.index.json"));
    ck_assert_int_eq(shards_open(&shards, directory, &error), STATUS_IO);
    expect_named(&error, "model.safetensors");
}
END_TEST

/* What the index says under weight_map, in the directory of sharded. */
static void expect_index_refused(const char *directory, const char *map,
                                 enum status status, const char *named)
{
    char text[1024];
    struct shards *shards = NULL;
    snprintf(text, sizeof text, "{\"weight_map\":%s}", map);
    write_text(in(directory, "model.safetensors.index.json"), text);
    const int files = open_files();
    const long live = allocator_live();
    const enum status got = shards_open(&shards, directory, &error);
    const long left = allocator_live() - live;
    ck_assert_msg(got == status && shards == NULL, "%s: status %d", map,
                  (int)got);
    expect_named(&error, named);
    ck_assert_int_eq(left, 0);
    ck_assert_int_eq(open_files(), files);
}

START_TEST(an_index_names_files_of_its_own_directory)
{
    const char *directory = sharded(), *other = sharded();
    const char *up = strrchr(other, '/');
    char map[600];
    const char *const forms[] = {"{\"a\":\"..%s/z.safetensors\"}",
                                 "{\"a\":\".%s/../z.safetensors\"}",
                                 "{\"a\":\"x%s/z.safetensors\"}"};
    for (size_t k = 0; k < LENGTH(forms); k++) {
        snprintf(map, sizeof map, forms[k], up);
        expect_index_refused(directory, map, STATUS_FORMAT, "same directory");
    }
    snprintf(map, sizeof map, "{\"a\":\"%s/z.safetensors\"}", other);
    expect_index_refused(directory, map, STATUS_FORMAT, "same directory");
    const char *const bad[] = {"{\"a\":\"\"}", "{\"a\":\"..\"}",
                               "{\"a\":\".\"}", "{\"a\":\"x\\ny\"}"};
    for (size_t k = 0; k < LENGTH(bad); k++)
        expect_index_refused(directory, bad[k], STATUS_FORMAT,
                             "same directory");
}
END_TEST

START_TEST(an_index_that_is_none_is_refused)
{
    const char *directory = sharded();
    const char *const bad[] = {"7", "{}", "[]", "null", "{\"a\":7}",
                               "{\"a\":null}", "{\"a\":{}}"};
    for (size_t k = 0; k < LENGTH(bad); k++)
        expect_index_refused(directory, bad[k], STATUS_FORMAT, "weight_map");
    expect_index_refused(directory, "{\"a\":\"x\",\"a\":\"y\"}",
                         STATUS_FORMAT, "twice");
    expect_index_refused(directory, "{\"a\":\"absent.safetensors\"}",
                         STATUS_IO, "absent.safetensors");
    ck_assert_int_eq(mkfifo(in(directory, "pipe"), 0600), 0);
    alarm(5);
    expect_index_refused(directory, "{\"a\":\"pipe\"}", STATUS_IO, "pipe");
    alarm(0);
    expect_index_refused(directory, "{\"a\":\"model.safetensors.index.json\""
                         "}", STATUS_FORMAT, "header");
}
END_TEST

/* x has g and d; y has c, b and f; z has a and e */
START_TEST(each_file_holds_what_the_index_says_and_no_more)
{
    const char *directory = sharded();
    /* d is said to be in z */
    expect_index_refused(directory, "{\"g\":\"x.safetensors\","
                         "\"d\":\"z.safetensors\",\"a\":\"z.safetensors\","
                         "\"e\":\"z.safetensors\"}", STATUS_FORMAT, "\"d\"");
    /* e is in z and not said to be */
    expect_index_refused(directory, "{\"a\":\"z.safetensors\"}",
                         STATUS_FORMAT, "\"e\"");
    expect_index_refused(directory, "{\"e\":\"z.safetensors\"}",
                         STATUS_FORMAT, "\"a\"");
    /* b comes too early, too late */
    expect_index_refused(directory, "{\"a\":\"z.safetensors\","
                         "\"e\":\"z.safetensors\",\"b\":\"z.safetensors\"}",
                         STATUS_FORMAT, "\"b\"");
    expect_index_refused(directory, "{\"a\":\"z.safetensors\","
                         "\"e\":\"z.safetensors\",\"h\":\"z.safetensors\"}",
                         STATUS_FORMAT, "\"h\"");
}
END_TEST

START_TEST(a_tensor_of_two_files_is_refused)
{
    const char *directory = sharded();
    const struct safetensors_entry two[] = {entry_of(2), entry_of(1)};
    write_tensors(in(directory, "x.safetensors"), two, 2);    /* g, a */
    expect_index_refused(directory, "{\"g\":\"x.safetensors\","
                         "\"a\":\"z.safetensors\",\"e\":\"z.safetensors\"}",
                         STATUS_FORMAT, "\"a\"");
}
END_TEST

START_TEST(opening_shards_survives_each_failed_allocation_and_mapping)
{
    const char *directory = sharded();
    struct shards *shards = NULL;
    const int files = open_files();
    long n = 1;
    for (;; n++) {
        const long live = allocator_live();
        allocator_fail_at(n);
        const enum status status = shards_open(&shards, directory, &error);
        const long left = allocator_live() - live;
        if (!allocator_stop())
            break;
        ck_assert_msg(status == STATUS_NO_MEMORY || status == STATUS_FORMAT,
                      "allocation %ld: status %d", n, (int)status);
        ck_assert_ptr_null(shards);
        ck_assert_int_eq(left, 0);
        ck_assert_int_eq(open_files(), files);
    }
    ck_assert_int_gt(n, 12);
    shards_close(&shards);
}
END_TEST

#define TIE "let the rest decide whether to go up"
#define SMALL "make a number below the smallest normal half"
#define LAST "keep what is infinite or not a number"
#define UNITS "round to a multiple of the smallest half"
#define TYPE "let the element be a float"
#define BOTH "let order say which of the two lists lacks a name"

static const struct test tests[] = {
    TEST(every_normal_half_is_the_float_of_its_formula, 2,
         "move the exponent to the bias of a float"),
    TEST(every_subnormal_half_and_both_zeros_are_their_floats, 2, SMALL),
    TEST(infinity_stays_infinite_and_nan_a_nan_from_every_half, 2, LAST),
    TEST(every_tie_of_normal_halves_goes_to_the_even_one, 2, TIE),
    TEST(every_tie_of_subnormal_halves_goes_to_the_even_one, 2, UNITS),
    TEST(every_half_comes_back_from_its_float, 2, UNITS),
    TEST(every_kind_of_nan_stays_one, 2, "keep a NaN one"),
    TEST(what_no_half_holds_is_infinite_or_zero, 2, UNITS),
    TEST(no_half_is_nearer_than_the_one_that_is_taken, 2, TIE),
    TEST(elements_are_read_by_their_type_wherever_they_stand, 2, TYPE),
    TEST(a_map_has_the_bytes_of_its_file, 2, "map what has bytes"),
    TEST(an_empty_file_is_mapped_and_then_too_short, 1,
         "map what has bytes"),
    TEST(what_is_no_file_is_refused, 1,
         "refuse what is not a regular file"),
    TEST(a_pipe_is_refused_without_waiting, 1, "open without waiting"),
    TEST(a_refused_mapping_is_an_error, 1, "map an open file"),
    TEST(bytes_in_memory_are_read_as_a_file_is, 2,
         "read tensors from memory"),
    TEST(a_file_that_was_cut_or_grew_is_refused_at_every_length, 1,
         "refuse a span that leaves the data"),
    TEST(a_header_that_says_anything_wrong_is_refused, 1,
         "refuse a span that is not what the shape asks for"),
    TEST(a_headers_length_is_held_against_the_file, 1,
         "refuse a header that is longer than the file"),
    TEST(brackets_without_end_do_not_end_the_program, 1,
         "parse the header"),
    TEST(json_is_one_object_whose_keys_differ, 1, "parse one object"),
    TEST(each_tensor_is_found_with_its_own_bytes, 2,
         "let the entries of a file follow those of the files before"),
    TEST(tensors_of_all_files_are_in_one_order, 2,
         "sort what all files hold"),
    TEST(one_file_goes_before_an_index, 2, "open a directory of tensors"),
    TEST(an_index_names_files_of_its_own_directory, 1,
         "refuse a file that may lie elsewhere"),
    TEST(an_index_that_is_none_is_refused, 1, "take one line of the index"),
    TEST(each_file_holds_what_the_index_says_and_no_more, 1, BOTH),
    TEST(a_tensor_of_two_files_is_refused, 1, BOTH),
    TEST(opening_shards_survives_each_failed_allocation_and_mapping, 1,
         "release shards"),
};

SUITE("chapter 19, files of tensors", tests);
