/* safetensors: read by map with every check, write atomically.
 *
 * Read refuses, naming file and tensor: a header longer than the file, bad JSON, unknown types, extents
 * whose product differs from the bytes, offsets outside, overlapping or leaving gaps, duplicate names, a short file,
 * bytes after the last tensor. Data may be unaligned: go through dtype_to_f32 / memcpy. */
#ifndef IO_SAFETENSORS_H
#define IO_SAFETENSORS_H
#include "core/tensor.h"

typedef struct st_file st_file;
MUST_CHECK err safetensors_open(st_file **out, const char *path);
/* The same over n borrowed bytes that outlive the handle; what names them in errors. */
MUST_CHECK err safetensors_open_memory(st_file **out, const char *what, const void *data, size_t n);
void safetensors_close(st_file *f);
int safetensors_count(const st_file *f);
const tensor *safetensors_at(const st_file *f, int i);              /* in file order */
const tensor *safetensors_find(const st_file *f, const char *name); /* NULL when absent */
const char *safetensors_meta(const st_file *f, const char *key);    /* __metadata__ entry or NULL */
const char *safetensors_path(const st_file *f);

/* Tensors are written in the order given, offsets aligned to 64 by padding the header only at its end
 * (the data section has no gaps). meta: n_meta pairs key, value. */
MUST_CHECK err safetensors_write(const char *path, const tensor *t, int n,
                                 const char *const (*meta)[2], int n_meta);

/* A folder's weights: model.safetensors, or shards by model.safetensors.index.json, checked both ways
 * (index entry without tensor, tensor without entry, missing shard, name in two shards). Weight files
 * model*.safetensors beside an index that does not name them are refused too. Order: by shard name, then file order. */
typedef struct st_set st_set;
MUST_CHECK err safetensors_set_open(st_set **out, const char *dir);
void safetensors_set_close(st_set *s);
int safetensors_set_count(const st_set *s);
const tensor *safetensors_set_at(const st_set *s, int i);
const tensor *safetensors_set_find(const st_set *s, const char *name);
/* Path of the file that holds tensor i, for sentences. */
const char *safetensors_set_path(const st_set *s, int i);

#endif
