/* Where prepared documents go: memory of the set, or new shards and a new index beside a store's.
 *
 * Shards are added, and small ones at the store's end are copied into the new ones with their documents' ids and bytes as they were
 * (data_merge.c says which); the index (documents), the hashes of lines and the places of rejected lines are written whole for each
 * generation, old entries first: they are small. Every file is written beside its name, synced and renamed when it is complete; nothing
 * names it before the manifest does. What is held in memory does not grow with the number of documents, except
 * without a store. A set that lets tokens go
 * gets the entry alone. */
#include "data/data_prepare.h"
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { BLOCK_FIRST = 1 << 20, BLOCK_LAST = 64 << 20, LET_GO = 4 << 20 };

typedef struct part_writer {
    file_writer *w;
    XXH3_state_t *hash;
    int64_t bytes;
} part_writer;

struct data__out {
    data_set *set;
    const data__store *store; /* NULL: memory */
    data__manifest *m;
    size_t keep; /* shards of the store that stay */
    data__pulse *pulse;
    part_writer part[DATA__PARTS];
    file_writer *shard;
    int64_t shard_bytes, shard_most;
    size_t block_size, block_used; /* of the set's last block of memory */
};

/* ---- memory ---- */

static err add_to_index(data_set *s, const data__entry *e) {
    TRY(mem_grow(&s->own_docs, &s->docs_cap, (size_t)s->counts.documents + 1, sizeof *s->own_docs));
    s->own_docs[s->counts.documents++] = *e;
    s->docs = s->own_docs;
    return ERR_OK;
}

static err add_to_memory(data__out *o, data__entry *e, const uint8_t *bytes, size_t n) {
    data_set *s = o->set;
    if (!s->n_shards || o->block_size - o->block_used < n) {
        uint8_t *block;
        size_t size = s->n_shards ? o->block_size * 2 : BLOCK_FIRST;
        if (size > BLOCK_LAST) size = BLOCK_LAST;
        if (size < n) size = n;
        TRY(mem_grow(&s->shards, &s->shards_cap, s->n_shards + 1, sizeof *s->shards));
        TRY(arena_alloc_raw(s->mem, size, 1, &block));
        s->shards[s->n_shards++] = block;
        o->block_size = size;
        o->block_used = 0;
    }
    e->shard = (uint32_t)s->n_shards - 1;
    e->offset = o->block_used;
    memcpy((uint8_t *)(uintptr_t)s->shards[e->shard] + e->offset, bytes, n);
    o->block_used += n;
    return add_to_index(s, e);
}

/* ---- store ---- */

static err add_to_part(data__out *o, int what, const void *bytes, size_t n) {
    part_writer *w = &o->part[what];
    XXH3_128bits_update(w->hash, bytes, n);
    w->bytes += (int64_t)n;
    return file_write(w->w, bytes, n);
}

static err finish_shard(data__out *o) {
    if (!o->shard) return ERR_OK;
    o->m->shards[o->m->n_shards - 1].bytes = o->shard_bytes;
    o->shard_bytes = 0;
    return file_commit(&o->shard);
}

static err add_to_store(data__out *o, data__entry *e, const uint8_t *bytes, size_t n) {
    data__manifest *m = o->m;
    if (o->shard && o->shard_bytes + (int64_t)n > o->shard_most) TRY(finish_shard(o));
    if (!o->shard) {
        char path[PATH_MAX];
        TRY(data__store_path(path, sizeof path, o->store->dir, DATA__PARTS, m->next_shard));
        TRY(mem_grow(&m->shards, &m->shards_cap, m->n_shards + 1, sizeof *m->shards));
        TRY(file_writer_open(&o->shard, path));
        m->shards[m->n_shards++] = (data__shard){.number = m->next_shard++};
    }
    e->shard = (uint32_t)m->n_shards - 1;
    e->offset = (uint64_t)o->shard_bytes;
    o->shard_bytes += (int64_t)n;
    TRY(file_write(o->shard, bytes, n));
    return add_to_part(o, DATA__DOCUMENTS, e, sizeof *e);
}

/* An old shard while its documents are copied. */
typedef struct moving {
    file_map map;
    size_t shard;
    uint64_t let_go; /* bytes behind: not kept in memory */
} moving;

static err move_to_shard(data__out *o, moving *v, size_t shard) {
    if (v->map.data && v->shard == shard) return ERR_OK;
    file_map_close(&v->map);
    *v = (moving){.map = {.fd = -1}, .shard = shard};
    return data__store_map_shard(o->store, shard, &v->map);
}

static err move_document(data__out *o, moving *v, data__entry e, int64_t id) {
    const size_t n = data__document_bytes(e.n);
    TRY(move_to_shard(o, v, e.shard));
    const uint8_t *bytes = v->map.data + e.offset;
    if (!data__is_whole(&e, bytes))
        return data__damaged(o->store->dir, o->store->m.shards[e.shard].number, id,
                             o->set->paths[e.file], e.line);
    const uint64_t behind = e.offset / LET_GO * LET_GO;
    TRY(add_to_store(o, &e, bytes, n));
    if (behind > v->let_go) {
        madvise((void *)(uintptr_t)v->map.data, behind, MADV_DONTNEED);
        v->let_go = behind;
        TRY(data__pulse_beat(o->pulse));
    }
    return ERR_OK;
}

/* The index as it was, but for documents whose shard does not stay. */
static err copy_documents(data__out *o, const file_map *old) {
    moving v = {.map = {.fd = -1}};
    err e = ERR_OK;
    for (size_t i = 0; i < old->size / sizeof(data__entry) && !e; i++) {
        data__entry entry;
        memcpy(&entry, old->data + i * sizeof entry, sizeof entry);
        if (!data__store_holds(&o->store->m, &entry))
            e = data__store_lost(o->store, (int64_t)i);
        else if (entry.shard < o->keep)
            e = add_to_part(o, DATA__DOCUMENTS, &entry, sizeof entry);
        else
            e = move_document(o, &v, entry, (int64_t)i);
    }
    file_map_close(&v.map);
    return e;
}

/* Opens the next generation's part and copies what this one holds. */
static err open_part(data__out *o, int what) {
    char path[PATH_MAX];
    part_writer *w = &o->part[what];
    w->hash = XXH3_createState();
    if (!w->hash) return err_set(ERR_MEMORY, "no memory to prepare training rows");
    XXH3_128bits_reset(w->hash);
    TRY(data__store_path(path, sizeof path, o->store->dir, what, o->m->generation));
    TRY(file_writer_open(&w->w, path));
    if (!o->m->n_files) return ERR_OK;
    file_map old;
    TRY(data__store_map_part(o->store, what, &old));
    err e = what == DATA__DOCUMENTS && o->keep < o->store->m.n_shards
                ? copy_documents(o, &old)
                : add_to_part(o, what, old.data, old.size);
    file_map_close(&old);
    return e;
}

static err finish_part(data__out *o, int what) {
    part_writer *w = &o->part[what];
    data__part *part = &o->m->part[what];
    const XXH128_hash_t h = XXH3_128bits_digest(w->hash);
    part->bytes = w->bytes;
    snprintf(part->digest, sizeof part->digest, "%016" PRIx64 "%016" PRIx64, h.high64, h.low64);
    return file_commit(&w->w);
}

/* ---- both ---- */

err data__out_open(data__out **out, data_set *s, const data__store *st, data__manifest *m,
                   size_t keep, data__pulse *p) {
    data__out *o;
    *out = NULL;
    TRY(mem_new(1, sizeof *o, &o));
    o->set = s;
    o->store = st->dir ? st : NULL;
    o->m = m;
    o->keep = m->n_shards = keep;
    o->pulse = p;
    o->shard_most = data__shard_most(p->cfg);
    err e = ERR_OK;
    for (int i = 0; o->store && i < DATA__PARTS && !e; i++) e = open_part(o, i);
    if (e)
        data__out_close(o);
    else
        *out = o;
    return e;
}

err data__out_line(data__out *o, uint64_t hash) {
    return o->store ? add_to_part(o, DATA__LINES, &hash, sizeof hash) : ERR_OK;
}

err data__out_document(data__out *o, data__entry e, const uint8_t *bytes) {
    const size_t n = data__document_bytes(e.n);
    if (o->store) return add_to_store(o, &e, bytes, n);
    if (!o->set->again) return add_to_memory(o, &e, bytes, n);
    e.shard = DATA__LET_GO;
    return add_to_index(o->set, &e);
}

err data__out_rejected(data__out *o, const data__rejected *r) {
    return o->store ? add_to_part(o, DATA__REJECTED_LINES, r, sizeof *r) : ERR_OK;
}

err data__out_finish(data__out *o) {
    if (!o->store) return ERR_OK;
    TRY(finish_shard(o));
    for (int i = 0; i < DATA__PARTS; i++) TRY(finish_part(o, i));
    return ERR_OK;
}

void data__out_close(data__out *o) {
    if (!o) return;
    file_abort(&o->shard);
    for (int i = 0; i < DATA__PARTS; i++) {
        file_abort(&o->part[i].w);
        XXH3_freeState(o->part[i].hash);
    }
    mem_free(o);
}
