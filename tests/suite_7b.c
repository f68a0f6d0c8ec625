/* Chapter 7, the routing itself: the table of checks against the lab's
   selection patterns, and the command that reads it. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include "routing.h"
#include "support/harness.h"

/* The lab's -k expressions, one a tier: a name is selected when it contains
   one of the words. */
static const char *const patterns[4][7] = {
    { "config", "registered", "parameter_identity", "forward_shape" },
    { "future_token", "decomposed_causal_oracle", "shifted_cross_entropy",
      "eval_is_deterministic", "state_dict_roundtrip", "backward" },
    { "cache", "context_overflow" },
    { "sampling", "generation" },
};

static bool selects(int tier, const char *name)
{
    for (int i = 0; i < 7 && patterns[tier][i] != NULL; i++)
        if (strstr(name, patterns[tier][i]) != NULL)
            return true;
    return false;
}

START_TEST(each_pattern_of_the_lab_selects_its_tier_and_nothing_else)
{
    int count[4] = { 0 };
    for (int i = 0; i < CHECK_COUNT; i++) {
        ck_assert_int_ge(checks[i].tier, 0);
        ck_assert_int_le(checks[i].tier, 3);
        count[checks[i].tier]++;
        for (int tier = 0; tier < 4; tier++)
            ck_assert_msg(selects(tier, checks[i].name)
                          == (tier == checks[i].tier), "%s in tier %d",
                          checks[i].name, tier);
        if (i > 0)
            ck_assert_int_ge(checks[i].tier, checks[i - 1].tier);
    }
    const int expected[4] = { 11, 8, 9, 7 };
    for (int tier = 0; tier < 4; tier++)
        ck_assert_int_eq(count[tier], expected[tier]);
}
END_TEST

START_TEST(each_check_has_a_name_of_its_own_and_a_whole_route)
{
    for (int i = 0; i < CHECK_COUNT; i++) {
        const struct route *route = checks[i].route;
        for (int j = 0; j < i; j++)
            ck_assert_str_ne(checks[i].name, checks[j].name);
        ck_assert_int_ge(route->chapter, 1);
        ck_assert_int_le(route->chapter, 6);
        ck_assert_int_gt((int)strlen(route->owner), 0);
        ck_assert_int_gt((int)strlen(route->failure), 0);
        ck_assert_int_gt((int)strlen(route->repair), 0);
    }
}
END_TEST

START_TEST(routes_are_found_by_check_and_by_owner)
{
    for (int i = 0; i < CHECK_COUNT; i++) {
        const struct route *route = checks[i].route;
        ck_assert_ptr_eq(route_find(checks[i].name), route);
        ck_assert_str_eq(route_find(route->owner)->owner, route->owner);
    }
    ck_assert_ptr_null(route_find(""));
    ck_assert_ptr_null(route_find("cache"));
    ck_assert_ptr_null(route_find("restore the modes"));
}
END_TEST

static char said[8192];

static int tinygpt(const char *arguments)
{
    char line[6000];
    snprintf(line, sizeof line, "'%s' %s", harness_program(), arguments);
    FILE *pipe = popen(line, "r");
    ck_assert_ptr_nonnull(pipe);
    said[fread(said, 1, sizeof said - 1, pipe)] = '\0';
    int status = pclose(pipe);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

START_TEST(the_route_command_lists_and_answers)
{
    int lines = 0;
    ck_assert_int_eq(tinygpt("route"), 0);
    for (const char *at = said; *at != '\0'; at++)
        lines += *at == '\n';
    ck_assert_int_eq(lines, CHECK_COUNT);
    ck_assert_int_eq(strncmp(said, "0  config_", 10), 0);
    ck_assert_int_eq(tinygpt("route generation_restores_the_mode"), 0);
    ck_assert_str_eq(said,
        "failure  the model is in another mode after a call\n"
        "owner    restore the mode (chapter 6)\n"
        "repair   restore it on the one path that success and failure"
        " share\n");
    ck_assert_int_eq(tinygpt("route 'restore the mode'"), 0);
    ck_assert_ptr_nonnull(strstr(said, "chapter 6"));
}
END_TEST

START_TEST(the_route_command_refuses_what_it_does_not_know)
{
    ck_assert_int_eq(tinygpt("route no_such_check 2>&1 >/dev/null"), 1);
    ck_assert_ptr_nonnull(strstr(said, "no_such_check"));
    ck_assert_ptr_eq(strchr(said, '\n'), said + strlen(said) - 1);
    ck_assert_int_eq(tinygpt("route --json 2>&1 >/dev/null"), 2);
    ck_assert_ptr_nonnull(strstr(said, "--json"));
    ck_assert_int_eq(tinygpt("route a b 2>&1 >/dev/null"), 2);
}
END_TEST

static const struct test tests[] = {
    TEST(each_pattern_of_the_lab_selects_its_tier_and_nothing_else, 0,
         "checks.def"),
    TEST(each_check_has_a_name_of_its_own_and_a_whole_route, 0,
         "the checks as a table"),
    TEST(routes_are_found_by_check_and_by_owner, 0,
         "find a route by a name"),
    TEST(the_route_command_lists_and_answers, 0, "answer for one name"),
    TEST(the_route_command_refuses_what_it_does_not_know, 0,
         "routing a failure"),
};

SUITE("chapter 7, the routing", tests);
