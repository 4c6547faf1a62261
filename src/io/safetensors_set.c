/* A folder's weights as one set: model.safetensors alone, or shards named by an index.
 *
 * With an index every tensor is accounted for in both directions before the set is handed out: an entry
 * needs its tensor in the shard it names, and a tensor needs an entry that names its shard. Weight files
 * that the index does not name are refused, since they would be dropped in silence. The index's own
 * total_size is not compared: writers disagree about what it counts. */
#include "core/arena.h"
#include "core/file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define INDEX_NAME  "model.safetensors.index.json"
#define SINGLE_NAME "model.safetensors"

typedef struct slot {
    const tensor *t;
    const st_file *file;
} slot;

struct st_set {
    st_file **files; /* [n_files], by name */
    int n_files, count;
    slot *slots;         /* [count], by shard, then file order */
    const slot **sorted; /* [count], by tensor name */
};

static int by_name(const void *pa, const void *pb) {
    const slot *const *a = pa, *const *b = pb;
    return strcmp((*a)->t->name, (*b)->t->name);
}

static int by_text(const void *pa, const void *pb) {
    return strcmp(*(const char *const *)pa, *(const char *const *)pb);
}

static const char *base_name(const st_file *f) {
    const char *slash = strrchr(safetensors_path(f), '/');
    return slash ? slash + 1 : safetensors_path(f);
}

/* Views of all files into the set. */
static err collect(st_set *s) {
    for (int i = 0; i < s->n_files; i++) {
        int n = safetensors_count(s->files[i]);
        if (n > INT_MAX - s->count)
            return err_set(ERR_FORMAT, "%s: too many tensors", safetensors_path(s->files[i]));
        s->count += n;
    }
    TRY(mem_new((size_t)s->count, sizeof *s->slots, &s->slots));
    TRY(mem_new((size_t)s->count, sizeof *s->sorted, &s->sorted));
    int at = 0;
    for (int i = 0; i < s->n_files; i++)
        for (int k = 0; k < safetensors_count(s->files[i]); k++, at++) {
            s->slots[at] = (slot){safetensors_at(s->files[i], k), s->files[i]};
            s->sorted[at] = &s->slots[at];
        }
    if (at) qsort(s->sorted, (size_t)at, sizeof *s->sorted, by_name);
    for (int i = 1; i < at; i++)
        if (by_name(&s->sorted[i - 1], &s->sorted[i]) == 0)
            return err_set(
                ERR_FORMAT,
                "tensor '%s' is in both %s and %s; one of the files does not belong to this set",
                s->sorted[i]->t->name, safetensors_path(s->sorted[i - 1]->file),
                safetensors_path(s->sorted[i]->file));
    return ERR_OK;
}

static const slot *find(const st_set *s, const char *name) {
    tensor key = {.name = name};
    slot ks = {&key, NULL};
    const slot *k = &ks;
    const slot **found =
        s->count ? bsearch(&k, s->sorted, (size_t)s->count, sizeof k, by_name) : NULL;
    return found ? *found : NULL;
}

/* Both directions between the index and the shards. */
static err check_index(const st_set *s, const char *index_path, const json_t *map) {
    const char *name;
    const json_t *v;
    json_object_foreach((json_t *)map, name, v) {
        const slot *x = find(s, name);
        const char *shard = json_string_value(v);
        if (!x)
            return err_set(ERR_FORMAT, "%s: tensor '%s' should be in %s, and no file has it",
                           index_path, name, shard);
        if (strcmp(base_name(x->file), shard) != 0)
            return err_set(ERR_FORMAT, "%s: tensor '%s' should be in %s, and it is in %s",
                           index_path, name, shard, base_name(x->file));
    }
    for (int i = 0; i < s->count; i++)
        if (!json_object_get(map, s->slots[i].t->name))
            return err_set(ERR_FORMAT, "%s: tensor '%s' has no entry in " INDEX_NAME,
                           safetensors_path(s->slots[i].file), s->slots[i].t->name);
    return ERR_OK;
}

/* Shard names of the index, sorted, each once; the texts are borrowed from map. */
static err shard_names(const char *index_path, const json_t *map, const char **names, int *n) {
    const char *name;
    const json_t *v;
    int count = 0;
    json_object_foreach((json_t *)map, name, v) {
        const char *shard = json_string_value(v);
        if (!shard || !*shard || strchr(shard, '/') || strcmp(shard, "..") == 0)
            return err_set(ERR_FORMAT, "%s: tensor '%s' must name a file of the same folder",
                           index_path, name);
        names[count++] = shard;
    }
    if (count) qsort(names, (size_t)count, sizeof *names, by_text);
    *n = 0;
    for (int i = 0; i < count; i++)
        if (i == 0 || strcmp(names[i], names[*n - 1]) != 0) names[(*n)++] = names[i];
    return ERR_OK;
}

static int is_weight_file(const char *name) {
    size_t n = strlen(name);
    static const char end[] = ".safetensors";
    if (n < sizeof end || strcmp(name + n - (sizeof end - 1), end) != 0) return 0;
    return strcmp(name, SINGLE_NAME) == 0 || strncmp(name, "model-", 6) == 0;
}

/* model*.safetensors files of the folder that are not among names. */
static err check_strays(const char *dir, const char *const *names, int n, const char *reason) {
    char **found = NULL;
    int count = 0;
    err e = ERR_OK;
    TRY(file_list(dir, &found, &count));
    for (int i = 0; i < count && !e; i++) {
        const char *name = found[i];
        int known = !is_weight_file(name);
        for (int k = 0; k < n && !known; k++) known = strcmp(name, names[k]) == 0;
        if (!known) e = err_set(ERR_FORMAT, "%s/%s: %s", dir, name, reason);
    }
    file_names_free(found, count);
    return e;
}

/* The first tensor that the index places in shard, for the sentence about a missing file. */
static const char *first_of(const json_t *map, const char *shard) {
    const char *name;
    const json_t *v;
    json_object_foreach((json_t *)map, name, v) {
        if (strcmp(json_string_value(v), shard) == 0) return name;
    }
    return "";
}

static err open_shards(st_set *s, const char *dir, const char *index_path, const json_t *map,
                       const char *const *names, int n) {
    char path[PATH_MAX];
    TRY(mem_new((size_t)n, sizeof *s->files, &s->files));
    for (int i = 0; i < n; i++) {
        TRY(file_join(path, sizeof path, dir, names[i]));
        if (!file_exists(path))
            return err_set(ERR_IO, "%s: this file is missing; %s places tensor '%s' in it", path,
                           index_path, first_of(map, names[i]));
        TRY(safetensors_open(&s->files[i], path));
        s->n_files = i + 1;
    }
    return ERR_OK;
}

static err open_indexed(st_set *s, const char *dir, const char *index_path, const json_t *index) {
    const json_t *map = json_object_get(index, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0)
        return err_set(ERR_FORMAT,
                       "%s: 'weight_map' must be an object that names each tensor's file",
                       index_path);
    const char **names = NULL;
    int n = 0;
    TRY(mem_new(json_object_size(map), sizeof *names, &names));
    err e;
    TRY_GOTO(shard_names(index_path, map, names, &n), done);
    TRY_GOTO(open_shards(s, dir, index_path, map, names, n), done);
    TRY_GOTO(collect(s), done);
    TRY_GOTO(check_index(s, index_path, map), done);
    e = check_strays(dir, names, n,
                     "this weight file is not named in " INDEX_NAME "; remove one of the two");
done:
    mem_free(names);
    return e;
}

static err open_single(st_set *s, const char *dir) {
    char path[PATH_MAX], other[PATH_MAX];
    static const char *const only[] = {SINGLE_NAME};
    TRY(file_join(path, sizeof path, dir, SINGLE_NAME));
    TRY(file_join(other, sizeof other, dir, "pytorch_model.bin"));
    TRY(check_strays(dir, only, 1, "this looks like a shard, and the folder has no " INDEX_NAME));
    if (!file_exists(path) && file_exists(other))
        return err_set(ERR_REFUSED, "%s: only safetensors weights are read; convert this file",
                       other);
    if (!file_exists(path))
        return err_set(ERR_IO, "%s: neither " SINGLE_NAME " nor " INDEX_NAME " is in this folder",
                       dir);
    TRY(mem_new(1, sizeof *s->files, &s->files));
    TRY(safetensors_open(&s->files[0], path));
    s->n_files = 1;
    return collect(s);
}

err safetensors_set_open(st_set **out, const char *dir) {
    *out = NULL;
    char index_path[PATH_MAX];
    TRY(file_join(index_path, sizeof index_path, dir, INDEX_NAME));
    st_set *s = NULL;
    TRY(mem_new(1, sizeof *s, &s));
    json_t *index = NULL;
    err e = ERR_OK;
    if (!file_exists(index_path)) {
        e = open_single(s, dir);
    } else {
        e = json_read_file(&index, index_path);
        if (!e) e = open_indexed(s, dir, index_path, index);
    }
    json_decref(index);
    if (e) {
        safetensors_set_close(s);
        return e;
    }
    *out = s;
    return ERR_OK;
}

void safetensors_set_close(st_set *s) {
    if (!s) return;
    for (int i = 0; i < s->n_files; i++) safetensors_close(s->files[i]);
    mem_free(s->files);
    mem_free(s->slots);
    mem_free(s->sorted);
    mem_free(s);
}

int safetensors_set_count(const st_set *s) { return s->count; }
const tensor *safetensors_set_at(const st_set *s, int i) {
    return i >= 0 && i < s->count ? s->slots[i].t : NULL;
}
const char *safetensors_set_path(const st_set *s, int i) {
    return i >= 0 && i < s->count ? safetensors_path(s->slots[i].file) : NULL;
}
const tensor *safetensors_set_find(const st_set *s, const char *name) {
    const slot *x = find(s, name);
    return x ? x->t : NULL;
}
