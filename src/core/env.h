/* Environment switches, one table (env.def), and the only file that calls getenv.
 *
 * Values are neither parsed nor cached here: whoever reads a switch says what it may be. */
#ifndef CORE_ENV_H
#define CORE_ENV_H

typedef enum env_key {
#define X(name, help) ENV_##name,
#include "core/env.def"
#undef X
    ENV_COUNT
} env_key;

const char *env_get(env_key k); /* NULL when unset or empty */
const char *env_name(env_key k);
const char *env_help(env_key k);
/* LD_LIBRARY_PATH, the loader's and no switch of ours: doctor tells what it hides. NULL as above. */
const char *env_library_path(void);
const char *env_preload(void); /* LD_PRELOAD, likewise */
/* XDG_CACHE_HOME and HOME, the system's: where caches go when no switch says. NULL unless they are absolute paths. */
const char *env_cache_home(void);
const char *env_home(void);

#endif
