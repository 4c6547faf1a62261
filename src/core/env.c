/* Environment switches: the one table of names and the one caller of getenv.
 *
 * A switch that is set to nothing counts as unset. Values are not parsed or cached here: whoever asks
 * for a switch says in its own error what the value may be. */
#include "core/env.h"
#include <stdlib.h>

static const struct {
    const char *name, *help;
} switches[ENV_COUNT] = {
#define X(name, help) [ENV_##name] = {#name, help},
#include "core/env.def"
#undef X
};

const char *env_get(env_key k) {
    const char *value = getenv(switches[k].name);
    return value && *value ? value : NULL;
}

const char *env_name(env_key k) { return switches[k].name; }

const char *env_help(env_key k) { return switches[k].help; }

const char *env_library_path(void) {
    const char *v = getenv("LD_LIBRARY_PATH");
    return v && *v ? v : NULL;
}

const char *env_preload(void) {
    const char *v = getenv("LD_PRELOAD");
    return v && *v ? v : NULL;
}

static const char *absolute(const char *path) { return path && *path == '/' ? path : NULL; }

const char *env_cache_home(void) { return absolute(getenv("XDG_CACHE_HOME")); }

const char *env_home(void) { return absolute(getenv("HOME")); }
