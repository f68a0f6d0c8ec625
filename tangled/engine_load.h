#ifndef ENGINE_LOAD_H
#define ENGINE_LOAD_H

#include "engine.h"

/* Maps a file of panels, by its name's end, .panels; or opens a checkpoint of
   any family and format, packs its weights and closes it. type is for a
   checkpoint; a file of panels of another type than *type is refused, unless
   type is NULL. The caller owns *engine, which is unchanged on error. */
enum status engine_load(struct engine **engine, const char *path,
                        const enum matrix_type *type,
                        const struct kernels *kernels, struct error *error);
bool engine_is_panels(const char *path);

#endif
