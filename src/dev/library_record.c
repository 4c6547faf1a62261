/* Lists of libraries and their comparison: see library_record.h.
 *
 * Every rank runs this on the same gathered lists and so comes to the same verdict and the same sentence. */
#include "dev/library_record.h"
#include <stdio.h>
#include <string.h>

err library_record_add(library_record_list *list, const char *name, const char *path,
                       const char *version, const char *build) {
    if (list->n >= LIBRARY_RECORD_MAX)
        return err_set(ERR_RANGE, "a record holds %d libraries; %s is one more", LIBRARY_RECORD_MAX,
                       name);
    library_record *r = &list->items[list->n++];
    size_t n = strlen(path), cut = n < sizeof r->path ? 0 : n - sizeof r->path + 1;
    memset(r, 0, sizeof *r); /* bytes that travel are all defined */
    snprintf(r->name, sizeof r->name, "%s", name);
    snprintf(r->path, sizeof r->path, "%s", path + cut);
    snprintf(r->version, sizeof r->version, "%s", version);
    snprintf(r->build, sizeof r->build, "%s", build);
    return ERR_OK;
}

err library_record_add_lib(library_record_list *list, const shared_lib *l) {
    return library_record_add(list, l->spec->name, l->path, l->version, l->build);
}

static const library_record *find(const library_record_list *list, const char *name) {
    for (int i = 0; i < list->n; i++)
        if (!strcmp(list->items[i].name, name)) return &list->items[i];
    return NULL;
}

static const char *version_of(const library_record *r) {
    return r->version[0] ? r->version : "of unknown version";
}

static err check_one(const library_record *first, const library_record *r, int rank) {
    int builds = first->build[0] && r->build[0] && strcmp(first->build, r->build);
    if (!strcmp(first->version, r->version) && !builds) return ERR_OK;
    return err_set(ERR_REFUSED,
                   "rank %d has %s %s at %s, and rank 0 has %s %s at %s%s; give all ranks the same "
                   "one",
                   rank, r->name, version_of(r), r->path, first->name, version_of(first),
                   first->path, strcmp(first->version, r->version) ? "" : ", another build of it");
}

static err check_absent(const library_record_list *has, int rank_has,
                        const library_record_list *lacks, int rank_lacks) {
    for (int i = 0; i < has->n; i++) {
        const library_record *r = &has->items[i];
        if (!find(lacks, r->name))
            return err_set(ERR_REFUSED,
                           "rank %d has no %s, and rank %d has %s %s at %s; give all ranks the "
                           "same one",
                           rank_lacks, r->name, rank_has, r->name, version_of(r), r->path);
    }
    return ERR_OK;
}

err library_record_agree(const library_record_list *lists, int ranks) {
    for (int rank = 1; rank < ranks; rank++) {
        const library_record_list *other = &lists[rank];
        TRY(check_absent(&lists[0], 0, other, rank));
        TRY(check_absent(other, rank, &lists[0], 0));
        for (int i = 0; i < other->n; i++)
            TRY(check_one(find(&lists[0], other->items[i].name), &other->items[i], rank));
    }
    return ERR_OK;
}
