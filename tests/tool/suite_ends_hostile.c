/* The re-solve tool from end to end: attempts that loop, crash, flood, fork,
   end the suite, redefine its functions, or are no C at all. None may pass,
   hang, or leave a process behind. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "ends.h"
#include "process.h"

enum { GRADE_SECONDS_MAX = 70, SHOWN_MAX = 200000 };

/* Stage 5 is right but for what a test does to it. */
static const char stage_key[] = "5", file[] = "mask.c";


static void begin(void)
{
    place_make();
    ck_assert_msg(resolve("blank", stage_key, NULL) == 0, "%s", complained);
}

static void begin_solved(void)
{
    begin();
    paste_chunks(stages_find(&stages, stage_key));
}

/* Puts code before a function, and at the beginning of its body. */
static void spoil_at(const char *name, const char *function,
                     const char *before, const char *inside)
{
    char *text = read_from(stage_key, name);
    char *at = strstr(text, function);
    char *body = at != NULL ? strchr(at, '{') : NULL;
    ck_assert_ptr_nonnull(body);
    char *fresh = text_format("%.*s%s\n%.*s%s\n%s", (int)(at - text), text,
                              before, (int)(body + 1 - at), at, inside,
                              body + 1);
    write_into(stage_key, name, fresh);
    free(fresh);
    free(text);
}

/* Most tests call causal_mask; few print one. */
static void spoil(const char *before, const char *inside)
{
    spoil_at(file, "void causal_mask(", before, inside);
}

static void spoil_print(const char *before, const char *inside)
{
    spoil_at("mask_study.c", "void mask_print(", before, inside);
}

/* The grade fails, in time and in few words, and nothing goes on. */
static void expect_failure(void)
{
    int status = resolve("grade", stage_key, NULL);
    ck_assert_msg(status == 1, "status %d\n%.2000s%.500s", status, said,
                  complained);
    ck_assert_msg(took < GRADE_SECONDS_MAX, "%.1f s", took);
    if (getenv("ENDS_TIMES") != NULL)
        fprintf(stderr, "%.1f s\n", took);
    ck_assert_uint_lt(strlen(said) + strlen(complained), SHOWN_MAX);
    int left = processes_left();
    ck_assert_msg(left == 0, "%d processes are left", left);
    ck_assert_int_eq(result_of(stage_key), RESULT_OPEN);
}

/* Some tests failed: the attempt could be judged. */
static void expect_failed_tests(void)
{
    expect_failure();
    expect_grade(-1, -1);
}

/* There was no verdict, and the log has the reason. */
static void expect_no_verdict(const char *reason)
{
    expect_failure();
    cJSON *last = log_last();
    ck_assert_str_eq(text_in(last, "event"), "grade");
    ck_assert_msg(strstr(text_in(last, "problem"), reason) != NULL,
                  "\"%s\", but the log has \"%s\"\n%.1000s", reason,
                  text_in(last, "problem"), said);
    cJSON_Delete(last);
    expect_says(said, reason);
}

/* The same attempt without the mischief passes: only that failed it. */
static void end_solved(void)
{
    paste_files(stages_find(&stages, stage_key));
    ck_assert_msg(resolve("grade", stage_key, NULL) == 0, "%s%s", said,
                  complained);
    place_remove();
}

/* ------------------------------------------------------ what a test meets */

START_TEST(an_endless_loop_is_stopped)
{
    begin_solved();
    spoil("", "for (volatile int forever = 1; forever; ) { }");
    expect_failed_tests();
    expect_says(said, "imeout");
    end_solved();
}
END_TEST

START_TEST(an_endless_sleep_is_stopped)
{
    begin_solved();
    spoil("#include <unistd.h>", "for (;;) pause();");
    expect_failed_tests();
    end_solved();
}
END_TEST

START_TEST(an_abort_is_a_failed_test)
{
    begin_solved();
    spoil("#include <stdlib.h>", "abort();");
    expect_failed_tests();
    expect_says(said, "signal 6");
    end_solved();
}
END_TEST

START_TEST(a_crash_is_a_failed_test)
{
    begin_solved();
    spoil("", "*(volatile int *)0 = 1;");
    expect_failed_tests();
    expect_says(said, "signal 11");
    end_solved();
}
END_TEST

START_TEST(endless_recursion_is_a_failed_test)
{
    begin_solved();
    spoil("", "volatile char frame[4096]; frame[0] = 1;"
              " causal_mask(past, queries, keep); frame[1] = frame[0];");
    expect_failed_tests();
    end_solved();
}
END_TEST

START_TEST(runaway_memory_is_bounded)
{
    begin_solved();
    spoil_print("#include <stdlib.h>\n#include <string.h>",
                "for (;;) memset(malloc(1 << 26), 1, 1 << 26);");
    expect_failed_tests();
    end_solved();
}
END_TEST

START_TEST(megabytes_of_output_are_counted_and_dropped)
{
    begin_solved();
    spoil_print("#include <stdio.h>",
                "static char megabyte[1 << 20];\n"
                "for (int i = 0; i < 50; i++) {\n"
                "    fwrite(megabyte, 1, sizeof megabyte, stdout);\n"
                "    fwrite(megabyte, 1, sizeof megabyte, stderr); }\n"
                "return;");
    expect_failed_tests();
    end_solved();
}
END_TEST

START_TEST(exit_is_no_pass)
{
    begin_solved();
    spoil("#include <stdlib.h>", "exit(0);");
    expect_failed_tests();
    end_solved();
}
END_TEST

START_TEST(underscore_exit_is_no_pass)
{
    begin_solved();
    spoil("#include <unistd.h>", "_exit(0);");
    expect_failed_tests();
    end_solved();
}
END_TEST

START_TEST(killing_the_group_is_no_pass)
{
    begin_solved();
    spoil("#include <signal.h>\nint kill(int, int);", "kill(0, SIGKILL);");
    expect_failure();
    end_solved();
}
END_TEST

START_TEST(killing_the_parent_is_no_pass)
{
    begin_solved();
    spoil("#include <signal.h>\n#include <unistd.h>\nint kill(int, int);",
          "kill(getppid(), SIGKILL);");
    expect_no_verdict("ended without a verdict");
    end_solved();
}
END_TEST

/* Once only, lest 30 tests start 6000 processes. Half of the children leave
   the session, and a quarter of them their parents too. */
static const char storm[] =
    "int started = open(getenv(\"ENDS_STORM\"), O_CREAT | O_EXCL, 0600);\n"
    "for (int i = 0; started >= 0 && i < 200; i++)\n"
    "    if (fork() == 0) {\n"
    "        if (i % 2) setsid();\n"
    "        if (i % 4 == 3 && fork() != 0) _exit(0);\n"
    "        signal(SIGTERM, SIG_IGN); signal(SIGHUP, SIG_IGN);\n"
    "        for (;;) sleep(1000);\n"
    "    }\n";

START_TEST(a_storm_of_processes_ends_with_the_grading)
{
    begin_solved();
    spoil("#include <fcntl.h>\n#include <signal.h>\n#include <stdlib.h>\n"
          "#include <unistd.h>", storm);
    setenv("ENDS_STORM", below("storm"), 1);
    resolve("grade", stage_key, NULL);
    int left = processes_left();
    ck_assert_msg(left == 0, "%d processes are left", left);
    ck_assert_msg(access(below("storm"), F_OK) == 0, "no storm: %s", said);
    ck_assert_int_lt((int)took, GRADE_SECONDS_MAX);
    place_remove();
}
END_TEST

/* Writing fails, as on a full disk; whether that matters is the code's. */
START_TEST(a_large_file_is_not_written)
{
    struct stat about;
    begin_solved();
    spoil("#include <stdio.h>\n#include <stdlib.h>",
          "FILE *large = fopen(getenv(\"ENDS_LARGE\"), \"w\");\n"
          "fseek(large, (1L << 30) - 1, SEEK_SET);\n"
          "fputc(1, large); if (fclose(large) != 0) return;");
    setenv("ENDS_LARGE", below("large"), 1);
    expect_failed_tests();
    ck_assert_int_eq(stat(below("large"), &about), 0);
    ck_assert_int_le(about.st_size, 256 << 20);
    end_solved();
}
END_TEST

START_TEST(a_suite_that_is_deleted_comes_back)
{
    begin();
    spoil("#include <unistd.h>\n#include <sys/types.h>\n"
          "ssize_t readlink(const char *, char *, size_t);",
          "char self[4096] = { 0 };\n"
          "if (readlink(\"/proc/self/exe\", self, sizeof self - 1) > 0)\n"
          "    unlink(self);");
    expect_failed_tests();
    expect_failed_tests();
    end_solved();
}
END_TEST

/* ----------------------------------------------- what comes before a test */

START_TEST(a_constructor_that_exits_is_no_pass)
{
    begin_solved();
    spoil("#include <stdlib.h>\n__attribute__((constructor))"
          " static void early(void) { exit(0); }", "");
    expect_no_verdict("ended without a verdict");
    end_solved();
}
END_TEST

START_TEST(a_constructor_that_waits_is_stopped)
{
    begin_solved();
    spoil("#include <unistd.h>\n__attribute__((constructor))"
          " static void early(void) { for (;;) pause(); }", "");
    expect_no_verdict("seconds and was stopped");
    end_solved();
}
END_TEST

START_TEST(a_destructor_does_not_turn_the_verdict)
{
    begin();
    spoil("#include <unistd.h>\n__attribute__((destructor))"
          " static void late(void) { _exit(0); }", "");
    expect_failure();
    end_solved();
}
END_TEST

/* What the verdict is without any of them. */
static void plain_numbers(int *passed, int *failed)
{
    expect_failed_tests();
    cJSON *last = log_last();
    *passed = number_in(last, "passed");
    *failed = number_in(last, "failed");
    cJSON_Delete(last);
}

START_TEST(a_name_of_the_suites_stays_inside)
{
    static const char *const definitions[] = {
        "int main(void) { return 0; }",
        "void *malloc(unsigned long n) { (void)n; return 0; }",
        "void free(void *p) { (void)p; }",
        "void _ck_assert_failed(const char *f, int l, const char *e, ...)"
        " { (void)f; (void)l; (void)e; }",
        "int srunner_ntests_failed(void *r) { (void)r; return 0; }",
        "void *tr_rtype(void *r) { (void)r; return 0; }",
        "long write(int f, const void *b, unsigned long n)"
        " { (void)f; (void)b; return (long)n; }",
        "int printf(const char *f, ...) { (void)f; return 0; }",
        "void exit(int s) { (void)s; for (;;) { } }",
        "int harness_seed(void) { return 1; }",
        "int suite = 1;",
    };
    int passed, failed;
    begin();
    char *before = read_from(stage_key, file);
    plain_numbers(&passed, &failed);
    for (size_t i = 0; i < sizeof definitions / sizeof *definitions; i++) {
        char *text = text_format("%s\n%s\n", before, definitions[i]);
        write_into(stage_key, file, text);
        free(text);
        expect_failure();
        expect_grade(passed, failed);
    }
    free(before);
    end_solved();
}
END_TEST

START_TEST(a_blank_of_ones_own_is_no_pass)
{
    begin();
    spoil("void blank_reached(const char *name) { (void)name; for (;;) {"
          " __builtin_trap(); } }", "");
    expect_failure();
    end_solved();
}
END_TEST

/* ------------------------------------------------- headers and other files */

START_TEST(the_headers_beside_an_attempt_weaken_nothing)
{
    begin_solved();
    char *include = text_format("%s/include", folder_of(stage_key));
    struct list headers = files_in(include, ".h");
    ck_assert_uint_gt(headers.count, 3);
    for (size_t i = 0; i < headers.count; i++) {
        char *path = text_format("%s/%s", include, headers.items[i]);
        struct stat about;
        ck_assert_int_eq(stat(path, &about), 0);
        ck_assert_int_eq(about.st_mode & 0222, 0);
        ck_assert_int_eq(chmod(path, 0644), 0);
        write_text(path, "#error this header is not read\n");
        free(path);
    }
    ck_assert_msg(resolve("grade", stage_key, NULL) == 0, "%s", said);
    list_free(&headers);
    free(include);
    place_remove();
}
END_TEST

START_TEST(a_header_in_front_of_the_books_is_the_attempts_alone)
{
    begin();
    write_into(stage_key, "mask.h", "#include <stdbool.h>\n"
               "#include <stdio.h>\n"
               "#define causal_mask(...) something_else(__VA_ARGS__)\n");
    expect_failure();
    write_into(stage_key, "mask.h", "#include_next \"mask.h\"\n");
    end_solved();
}
END_TEST

/* Replaces mask.c by what a line of shell makes of $0. */
static void make_file(const char *line)
{
    struct list argv = { 0 };
    char *path = text_format("%s/%s", folder_of(stage_key), file);
    char *all = text_format("rm \"$0\"; %s", line);
    list_add_words(&argv, "sh -c");
    list_add(&argv, all);
    list_add(&argv, path);
    ck_assert(process_run(&argv, below("shell")));
}

static void expect_refused_file(const char *line)
{
    begin_solved();
    make_file(line);
    expect_no_verdict("does not compile");
    expect_says(said, file);
    make_file("rm -rf \"$0\"; true");
    place_remove();
}

START_TEST(a_directory_for_a_file_is_named)
{
    expect_refused_file("mkdir \"$0\"");
}
END_TEST

START_TEST(a_dangling_link_is_named)
{
    expect_refused_file("ln -s absent \"$0\"");
}
END_TEST

START_TEST(an_unreadable_file_is_named)
{
    if (geteuid() != 0)     /* who may read everything */
        expect_refused_file("echo > \"$0\"; chmod 0 \"$0\"");
}
END_TEST

START_TEST(a_pipe_for_a_file_does_not_hang)
{
    expect_refused_file("mkfifo \"$0\"");
}
END_TEST

START_TEST(ten_megabytes_of_nonsense_are_refused_in_few_words)
{
    expect_refused_file("yes 'x y z;' | head -c 10000000 > \"$0\"");
}
END_TEST

START_TEST(ten_megabytes_of_comments_are_no_matter)
{
    begin_solved();
    char *text = read_from(stage_key, file);
    make_file("yes '/* a line of no matter */' | head -n 350000 > \"$0\"");
    char *comments = read_from(stage_key, file);
    char *both = text_format("%s%s", comments, text);
    write_into(stage_key, file, both);
    ck_assert_msg(resolve("grade", stage_key, NULL) == 0, "%s", said);
    free(text);
    free(comments);
    free(both);
    place_remove();
}
END_TEST

START_TEST(zero_bytes_in_a_file_are_no_pass)
{
    begin();
    make_file("head -c 5000 /dev/zero > \"$0\"");
    expect_failure();
    place_remove();
}
END_TEST

START_TEST(an_empty_file_asks_for_its_functions)
{
    begin_solved();
    write_into(stage_key, file, "");
    expect_failed_tests();
    ck_assert(has_line(said, "causal_mask"));
    end_solved();
}
END_TEST

START_TEST(an_attempt_without_files_is_named)
{
    begin();
    struct list files = files_in(folder_of(stage_key), ".c");
    for (size_t i = 0; i < files.count; i++) {
        char *path = text_format("%s/%s", folder_of(stage_key),
                                 files.items[i]);
        ck_assert_int_eq(remove(path), 0);
        free(path);
    }
    list_free(&files);
    expect_no_verdict("no C files");
    place_remove();
}
END_TEST

START_TEST(an_attempt_whose_folder_is_gone_is_named)
{
    begin();
    const char *folder = folder_of(stage_key);
    ck_assert_int_eq(rename(folder, below("elsewhere")), 0);
    ck_assert_int_eq(resolve("grade", stage_key, NULL), 1);
    ck_assert(said[0] != '\0' || complained[0] != '\0');
    place_remove();
}
END_TEST

/* --------------------------------------------------- words of the compiler */

/* "path:line" of the first line of mask.c that holds the text. */
static char *place_of(const char *words)
{
    char *text = read_from(stage_key, file);
    char *at = strstr(text, words);
    int line = 1;
    ck_assert_ptr_nonnull(at);
    for (char *c = text; c < at; c++)
        line += *c == '\n';
    free(text);
    return text_format("%s/%s:%d:", folder_of(stage_key), file, line);
}

START_TEST(a_compile_error_is_at_the_attempts_line)
{
    begin_solved();
    spoil("", "this is no C;");
    expect_no_verdict("does not compile");
    char *at = place_of("this is no C");
    expect_says(said, at);
    free(at);
    end_solved();
}
END_TEST

START_TEST(a_warning_is_shown_and_fails_nothing)
{
    begin_solved();
    spoil("", "if (past = past) queries = queries;");
    ck_assert_msg(resolve("grade", stage_key, NULL) == 0, "%s", said);
    char *at = place_of("if (past = past)");
    expect_says(said, at);
    expect_says(said, "warning");
    free(at);
    /* and again, when nothing is compiled */
    ck_assert_msg(resolve("grade", stage_key, NULL) == 0, "%s", said);
    expect_says(said, "warning");
    place_remove();
}
END_TEST

START_TEST(a_function_that_nobody_wrote_is_named)
{
    begin_solved();
    spoil("void written_by_nobody(void);", "written_by_nobody();");
    expect_no_verdict("not link");
    expect_says(said, "written_by_nobody");
    end_solved();
}
END_TEST

START_TEST(a_function_written_twice_is_named)
{
    begin_solved();
    write_into(stage_key, "another.c", "#include \"mask.h\"\n"
               "void causal_mask(int past, int queries, bool *keep)\n"
               "{ (void)past; (void)queries; (void)keep; }\n");
    expect_no_verdict("fit together");
    expect_says(said, "causal_mask");
    expect_says(said, "another.c");
    place_remove();
}
END_TEST

/* ------------------------------------------------------- other directories */

/* All of the stage's files in one, under another name. */
static void write_other(const char *directory, bool whole)
{
    char *all = text_format("#include \"%s\"\n", "mask.h");
    const char *const files[] = { "mask.c", "model.c", "mask_study.c" };
    ck_assert_int_eq(mkdir(directory, 0777), 0);
    for (int i = whole ? 0 : 1; i < 3; i++) {
        char *text = right_text(5, files[i]);
        char *longer = text_format("%s\n%s", all, text);
        free(all);
        free(text);
        all = longer;
    }
    char *path = text_format("%s/everything at once.c", directory);
    write_text(path, all);
    free(path);
    free(all);
}

START_TEST(somebody_elses_directory_passes_without_an_attempt)
{
    place_make();
    char directory[4200];
    snprintf(directory, sizeof directory, "%s",
             below("a 'quoted' \"place\" $HOME"));
    write_other(directory, true);
    ck_assert_msg(resolve("grade", "5", "--src", directory, NULL) == 0,
                  "%s%s", said, complained);
    ck_assert_ptr_null(log_read());
    ck_assert_msg(resolve("grade", "5", "--src", directory, NULL) == 0,
                  "%s%s", said, complained);
    place_remove();
}
END_TEST

START_TEST(a_function_missing_from_somebody_elses_is_named)
{
    place_make();
    char directory[4200];
    snprintf(directory, sizeof directory, "%s", below("other"));
    write_other(directory, false);
    ck_assert_int_eq(resolve("grade", "5", "--src", directory, NULL), 1);
    ck_assert(has_line(said, "causal_mask"));
    ck_assert_ptr_null(log_read());
    place_remove();
}
END_TEST

START_TEST(an_empty_or_absent_directory_is_refused)
{
    place_make();
    char directory[4200];
    snprintf(directory, sizeof directory, "%s", below("other"));
    ck_assert_int_eq(mkdir(directory, 0777), 0);
    ck_assert_int_eq(resolve("grade", "5", "--src", directory, NULL), 1);
    expect_says(said, directory);
    ck_assert_int_eq(resolve("grade", "5", "--src", below("absent"), NULL),
                     1);
    ck_assert(said[0] != '\0' || complained[0] != '\0');
    ck_assert_ptr_null(log_read());
    place_remove();
}
END_TEST

START_TEST(attempts_may_lie_in_a_quoted_place)
{
    place_make();
    const char *attempts = below("it's \"here\" & $(there); `now`");
    ck_assert_msg(resolve("blank", "5", "--attempts", attempts, NULL) == 0,
                  "%s", complained);
    ck_assert_int_eq(resolve("grade", "5", "--attempts", attempts, NULL), 1);
    ck_assert(has_line(said, "print the row of query i"));
    ck_assert_int_eq(resolve("reveal", "5", "--attempts", attempts,
                             "--wrong", "the 'quotes' \"too\"", NULL), 0);
    ck_assert_int_ne(access(below("attempts"), F_OK), 0);
    place_remove();
}
END_TEST

static const struct test tests[] = {
    TEST(an_endless_loop_is_stopped, 0, "run the suites"),
    TEST(an_endless_sleep_is_stopped, 0, "run the suites"),
    TEST(an_abort_is_a_failed_test, 0, "run the suites"),
    TEST(a_crash_is_a_failed_test, 0, "run the suites"),
    TEST(endless_recursion_is_a_failed_test, 0, "become the fenced program"),
    TEST(runaway_memory_is_bounded, 0, "become the fenced program"),
    TEST(megabytes_of_output_are_counted_and_dropped, 0,
         "read what it prints"),
    TEST(exit_is_no_pass, 0, "run the suites"),
    TEST(underscore_exit_is_no_pass, 0, "run the suites"),
    TEST(killing_the_group_is_no_pass, 0, "run the suites"),
    TEST(killing_the_parent_is_no_pass, 0, "run the suites"),
    TEST(a_storm_of_processes_ends_with_the_grading, 0,
         "kill everything that it left"),
    TEST(a_large_file_is_not_written, 0, "become the fenced program"),
    TEST(a_suite_that_is_deleted_comes_back, 0, "link suites and program"),
    TEST(a_constructor_that_exits_is_no_pass, 1, "run the suites"),
    TEST(a_constructor_that_waits_is_stopped, 1,
         "wait for it, but not for ever"),
    TEST(a_destructor_does_not_turn_the_verdict, 1, "run the suites"),
    TEST(a_name_of_the_suites_stays_inside, 1, "keep its names inside"),
    TEST(a_blank_of_ones_own_is_no_pass, 1, "keep its names inside"),
    TEST(the_headers_beside_an_attempt_weaken_nothing, 2,
         "compile the attempt"),
    TEST(a_header_in_front_of_the_books_is_the_attempts_alone, 2,
         "name the headers, the file and the object"),
    TEST(a_directory_for_a_file_is_named, 2, "compile the attempt"),
    TEST(a_dangling_link_is_named, 2, "compile the attempt"),
    TEST(an_unreadable_file_is_named, 2, "compile the attempt"),
    TEST(a_pipe_for_a_file_does_not_hang, 2, "compile the attempt"),
    TEST(ten_megabytes_of_nonsense_are_refused_in_few_words, 2,
         "compile the attempt"),
    TEST(ten_megabytes_of_comments_are_no_matter, 2, "compile the attempt"),
    TEST(zero_bytes_in_a_file_are_no_pass, 2, "compile the attempt"),
    TEST(an_empty_file_asks_for_its_functions, 2,
         "stand in for what is not written"),
    TEST(an_attempt_without_files_is_named, 2, "compile the attempt"),
    TEST(an_attempt_whose_folder_is_gone_is_named, 2, "compile the attempt"),
    TEST(a_compile_error_is_at_the_attempts_line, 2, "compile the attempt"),
    TEST(a_warning_is_shown_and_fails_nothing, 2, "compile the attempt"),
    TEST(a_function_that_nobody_wrote_is_named, 2, "link suites and program"),
    TEST(a_function_written_twice_is_named, 2, "keep its names inside"),
    TEST(somebody_elses_directory_passes_without_an_attempt, 2,
         "grade somebody else's directory"),
    TEST(a_function_missing_from_somebody_elses_is_named, 2,
         "stand in for what is not written"),
    TEST(an_empty_or_absent_directory_is_refused, 2,
         "grade somebody else's directory"),
    TEST(attempts_may_lie_in_a_quoted_place, 2, "make the folder"),
};
SUITE("re-solving, attempts that misbehave", tests);
