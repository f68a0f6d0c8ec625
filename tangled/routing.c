#include "routing.h"

#include <string.h>

#define ROUTE(id, chapter, owner, failure, repair) ROUTE_##id,
enum {
#include "routes.def"
    ROUTE_COUNT
};
#undef ROUTE

#define ROUTE(id, chapter, owner, failure, repair) \
    { chapter, owner, failure, repair },
static const struct route routes[ROUTE_COUNT] = {
#include "routes.def"
};
#undef ROUTE

#define CHECK(name, tier, route) \
    { #name, tier, &routes[ROUTE_##route] },
const struct check checks[CHECK_COUNT] = {
#include "checks.def"
};
#undef CHECK

#define CHECK(name, tier, route) + 1
_Static_assert(0
#include "checks.def"
               == CHECK_COUNT, "the lab has thirty-five checks");
#undef CHECK

const struct route *route_find(const char *name)
{
    for (int i = 0; i < CHECK_COUNT; i++)
        if (strcmp(checks[i].name, name) == 0)
            return checks[i].route;
    for (int i = 0; i < ROUTE_COUNT; i++)
        if (strcmp(routes[i].owner, name) == 0)
            return &routes[i];
    return NULL;
}
