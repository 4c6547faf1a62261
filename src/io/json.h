/* JSON on top of jansson: strict reading with positions, typed getters that answer in sentences, writing.
 * Integers stay apart from reals; duplicate keys are refused. Trees are jansson's own and are freed with json_decref;
 * this header adds sentences, never another tree. */
#ifndef IO_JSON_H
#define IO_JSON_H
#include "core/err.h"
#include "core/str.h"
#include <jansson.h>
#include <stdint.h>

/* what names the source in errors ("config.json", "line 7 of data.jsonl"). Free with json_decref. */
MUST_CHECK err json_parse(json_t **out, const char *what, const char *text, size_t n);
MUST_CHECK err json_read_file(json_t **out, const char *path);
MUST_CHECK err json_write_file(const json_t *j,
                               const char *path); /* atomic, indented, stable key order */
/* Getters: where is the source's name for the sentence. A missing key is ERR_FORMAT unless _or. */
MUST_CHECK err json_get_int(const json_t *obj, const char *where, const char *key, int64_t *out);
MUST_CHECK err json_get_real(const json_t *obj, const char *where, const char *key,
                             double *out); /* takes integers too */
MUST_CHECK err json_get_bool(const json_t *obj, const char *where, const char *key, int *out);
MUST_CHECK err json_get_text(const json_t *obj, const char *where, const char *key,
                             const char **out); /* borrowed from obj */
/* Into out, of n bytes; ERR_FORMAT for a longer one. */
MUST_CHECK err json_copy_text(const json_t *obj, const char *where, const char *key, char *out,
                              size_t n);
/* The _or forms: an absent or null key gives the default; a wrong type is still an error. */
MUST_CHECK err json_get_int_or(const json_t *obj, const char *where, const char *key, int64_t def,
                               int64_t *out);
MUST_CHECK err json_get_real_or(const json_t *obj, const char *where, const char *key, double def,
                                double *out);
MUST_CHECK err json_get_bool_or(const json_t *obj, const char *where, const char *key, int def,
                                int *out);
MUST_CHECK err json_get_text_or(const json_t *obj, const char *where, const char *key,
                                const char *def, const char **out);
/* Array of integers; n elements into out (cap at most), ERR_FORMAT otherwise. */
MUST_CHECK err json_get_ints(const json_t *obj, const char *where, const char *key, int64_t *out,
                             int cap, int *n);

#endif
