/* Errors and versions of the public library: the sentences are those of core/err, per thread.
 *
 * The public codes and types are spelled in the header without ours; here the compiler holds both to the same
 * numbers. Checks that every public function shares are here too. Makes no sentence about attention. */
#include "api/api_private.h"
#include "core/version.h"

#define SAME(public, ours) _Static_assert((int)(public) == (int)(ours), "numbers of the header")
SAME(PL_OK, ERR_OK);
SAME(PL_ERROR_USAGE, ERR_USAGE);
SAME(PL_ERROR_IO, ERR_IO);
SAME(PL_ERROR_SHAPE, ERR_SHAPE);
SAME(PL_ERROR_SYNTAX, ERR_SYNTAX);
SAME(PL_ERROR_RANGE, ERR_RANGE);
SAME(PL_ERROR_MEMORY, ERR_MEMORY);
SAME(PL_ERROR_REFUSED, ERR_REFUSED);
SAME(PL_ERROR_NUMERIC, ERR_NUMERIC);
SAME(PL_ERROR_INTERNAL, ERR_INTERNAL);
SAME(PL_F32, DT_F32);
SAME(PL_F64, DT_F64);
SAME(PL_F16, DT_F16);
SAME(PL_BF16, DT_BF16);
SAME(PL_I8, DT_I8);
SAME(PL_U8, DT_U8);
SAME(PL_I16, DT_I16);
SAME(PL_I32, DT_I32);
SAME(PL_I64, DT_I64);
SAME(PL_BOOL, DT_BOOL);

const char *pl_error_text(void) { return err_text(); }
const char *pl_error_name(pl_error code) { return err_name((err)code); }
const char *pl_version(void) { return VERSION_TEXT; }

err pl__need(const void *p, const char *function, const char *what) {
    if (p) return ERR_OK;
    return err_set(ERR_USAGE, "%s: %s is NULL", function, what);
}

err pl__check_size(const char *name, size_t given, size_t least, size_t known) {
    if (given >= least && given <= known) return ERR_OK;
    return err_set(ERR_USAGE,
                   "the size member of a %s is %zu and this library (%s) knows %zu to %zu bytes; "
                   "set it to sizeof(%s), and use a library as new as the header",
                   name, given, VERSION_TEXT, least, known, name);
}
