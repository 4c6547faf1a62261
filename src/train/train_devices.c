/* Placement: which role runs on which device, by the recipe's lists or by a short measurement, and the device handles.
 *
 * Devices are cpu:0 to cpu:63, each a share of the CPU threads; a device that several roles name is opened once and they take turns on it.
 * With named drafters a common list devices.drafter is dealt out one each; a drafter with a list of its own is data parallel
 * over that list. GPUs are refused by name until this program has kernels for them: no role is moved elsewhere in silence. */
#include "train/train_parts.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The device of that spelling, added to the run's if it is new. Spelling was checked by the recipe. */
static err add_device(train *t, const char *where, const char *text, train_device **out) {
    const char *colon = strchr(text, ':');
    char *end = NULL;
    const long k = colon ? strtol(colon + 1, &end, 10) : 0;
    if (strncmp(text, "cpu", 3) != 0)
        return err_set(ERR_RECIPE,
                       "%s: device %s cannot be used: this program has no kernels for it yet; name "
                       "cpu:0 to cpu:%d",
                       where, text, TRAIN_MAX_CPUS - 1);
    if (k < 0 || k >= TRAIN_MAX_CPUS || (end && *end))
        return err_set(ERR_RECIPE, "%s: device %s does not exist; cpu:0 to cpu:%d do", where, text,
                       TRAIN_MAX_CPUS - 1);
    for (int i = 0; i < t->n_devices; i++) {
        *out = &t->device[i];
        if (t->device[i].index == (int)k) return ERR_OK;
    }
    *out = &t->device[t->n_devices++];
    (*out)->index = (int)k;
    snprintf((*out)->name, sizeof(*out)->name, "cpu:%ld", k);
    return ERR_OK;
}

static err add_list(train *t, const char *where, const char *const *items, int n,
                    train_device **out) {
    for (int i = 0; i < n; i++) {
        TRY(add_device(t, where, items[i], &out[i]));
        for (int j = 0; j < i; j++)
            if (out[j] == out[i])
                return err_set(ERR_RECIPE,
                               "%s: device %s is listed twice; a role runs on a device once", where,
                               out[i]->name);
    }
    return ERR_OK;
}

static err take_targets(train *t, train_device *const *on, int n) {
    TRY(arena_alloc(t->small, (size_t)n, sizeof *t->target, &t->target));
    t->n_targets = n;
    for (int i = 0; i < n; i++) {
        t->target[i].on = on[i];
        t->target[i].index = i;
        snprintf(t->target[i].role.name, sizeof t->target[i].role.name, "target on %s",
                 on[i]->name);
    }
    return ERR_OK;
}

static err take_ranks(train *t, train_drafter *d, train_device *const *on, int n) {
    if (n > GROUP_MAX_RANKS)
        return err_set(ERR_RECIPE, "%s: a drafter on %d devices is not possible; %d are the most",
                       recipe_where(d->r, RECIPE_devices_drafter), n, GROUP_MAX_RANKS);
    TRY(arena_alloc(t->small, (size_t)n, sizeof *d->rank, &d->rank));
    d->n_ranks = n;
    for (int i = 0; i < n; i++) {
        train_rank *k = &d->rank[i];
        k->of = d;
        k->rank = i;
        k->on = on[i];
        snprintf(k->role.name, sizeof k->role.name, "drafter%s%s on %s", d->name[0] ? " " : "",
                 d->name, on[i]->name);
    }
    return ERR_OK;
}

/* A drafter without a list of its own, among others: entry `at` of the `shared` drafters that share the common list. */
static err deal(train *t, train_drafter *d, const char *const *items, int n, int at, int shared) {
    train_device *on = NULL;
    if (n != shared)
        return err_set(ERR_RECIPE,
                       "%s: devices.drafter names %d devices for %d drafters without devices of "
                       "their own; name one for each, or write devices under each drafter",
                       recipe_where(t->r, RECIPE_devices_drafter), n, shared);
    TRY(add_device(t, recipe_where(t->r, RECIPE_devices_drafter), items[at], &on));
    return take_ranks(t, d, &on, 1);
}

/* Own list, not the one of all. */
static int has_own(const train *t, const train_drafter *d) {
    return d->r != t->r && !recipe_is_auto(d->r, RECIPE_devices_drafter) &&
           strcmp(recipe_where(d->r, RECIPE_devices_drafter),
                  recipe_where(t->r, RECIPE_devices_drafter)) != 0;
}

static err place_drafters(train *t, train_device *fallback) {
    const char *const *items = NULL;
    train_device *on[TRAIN_MAX_DEVICES];
    int shared = 0, at = 0;
    for (int i = 0; i < t->n_drafters; i++) shared += !has_own(t, &t->drafter[i]);
    for (int i = 0; i < t->n_drafters; i++) {
        train_drafter *d = &t->drafter[i];
        if (recipe_is_auto(d->r, RECIPE_devices_drafter)) {
            TRY(take_ranks(t, d, &fallback, 1));
            continue;
        }
        const int n = recipe_list(d->r, RECIPE_devices_drafter, &items);
        if (!has_own(t, d) && t->n_drafters > 1) {
            TRY(deal(t, d, items, n, at++, shared));
            continue;
        }
        if (n > TRAIN_MAX_DEVICES)
            return err_set(ERR_RECIPE, "%s: %d devices are named; %d are the most",
                           recipe_where(d->r, RECIPE_devices_drafter), n, TRAIN_MAX_DEVICES);
        TRY(add_list(t, recipe_where(d->r, RECIPE_devices_drafter), items, n, on));
        TRY(take_ranks(t, d, on, n));
    }
    return ERR_OK;
}

static int all_auto(const train *t) {
    int yes = recipe_is_auto(t->r, RECIPE_devices_target);
    for (int i = 0; i < t->n_drafters; i++)
        yes &= recipe_is_auto(t->drafter[i].r, RECIPE_devices_drafter);
    return yes;
}

static err check_limits(const train *t) {
    int ranks = 0;
    for (int i = 0; i < t->n_drafters; i++) ranks += t->drafter[i].n_ranks;
    if (t->n_targets + ranks > LIVE_ROLES || ranks > LIVE_RINGS)
        return err_set(
            ERR_RECIPE,
            "%s: the run has %d roles, %d of them drafters' ranks; %d and %d are the most",
            recipe_where(t->r, RECIPE_devices_target), t->n_targets + ranks, ranks, LIVE_ROLES,
            LIVE_RINGS);
    return ERR_OK;
}

/* Everything is auto: one device in turns, or the target on one and the drafters on another. */
err train__place_auto(train *t) {
    train_device *first = NULL, *second = NULL;
    int target_threads = 0;
    const int threads = dev_threads(t->loader);
    if (t->n_targets) return ERR_OK; /* placed by lists */
    TRY(add_device(t, "devices", "cpu:0", &first));
    if (threads > 1) TRY(train__measure_split(t, threads, &target_threads));
    if (target_threads) {
        TRY(add_device(t, "devices", "cpu:1", &second));
        first->threads = target_threads;
        second->threads = threads - target_threads;
    } else if (threads == 1) {
        snprintf(t->plan.placement, sizeof t->plan.placement,
                 "one thread, so target and drafter take turns on cpu:0");
    }
    TRY(take_targets(t, &first, 1));
    return place_drafters(t, second ? second : first);
}

/* By lists. With auto for everything nothing is placed yet. */
err train__place(train *t) {
    const char *const *items = NULL;
    train_device *on[TRAIN_MAX_DEVICES];
    const char *where = recipe_where(t->r, RECIPE_devices_target);
    /* A list adds each of its devices once, so their kinds bound the number of devices. */
    TRY(arena_alloc(t->small, TRAIN_MAX_CPUS, sizeof *t->device, &t->device));
    if (all_auto(t)) return ERR_OK;
    if (recipe_is_auto(t->r, RECIPE_devices_target)) {
        TRY(add_device(t, where, "cpu:0", &on[0]));
        TRY(take_targets(t, on, 1));
    } else {
        const int n = recipe_list(t->r, RECIPE_devices_target, &items);
        if (n > TRAIN_MAX_DEVICES)
            return err_set(ERR_RECIPE, "%s: %d devices are named; %d are the most", where, n,
                           TRAIN_MAX_DEVICES);
        TRY(add_list(t, where, items, n, on));
        TRY(take_targets(t, on, n));
    }
    TRY(place_drafters(t, t->target[0].on));
    snprintf(t->plan.placement, sizeof t->plan.placement, "as the recipe's lists say");
    return check_limits(t);
}

/* Ranks of a drafter must round alike, so all devices compute with the same build of the same library. */
static err check_libraries(const train *t) {
    library_record_list *lists;
    err e = ERR_OK;
    TRY(mem_new((size_t)t->n_devices, sizeof *lists, &lists));
    for (int i = 0; i < t->n_devices && !e; i++) e = dev_libraries(t->device[i].d, &lists[i]);
    if (!e) e = library_record_agree(lists, t->n_devices);
    mem_free(lists);
    return e;
}

/* Every device its share of the threads; the first ones one more where it does not come out even. */
err train__open_devices(train *t) {
    const int threads = dev_threads(t->loader), n = t->n_devices;
    t->threads = threads;
    if (n == 1) {
        t->device[0].threads = threads;
        t->device[0].d = t->loader;
        t->loader = NULL;
    }
    for (int i = 0; i < n; i++) {
        train_device *k = &t->device[i];
        if (!k->threads) k->threads = train__share(threads, n, i);
        const dev_config c = {.threads = k->threads};
        if (!k->d) TRY(dev_open_cpu(&k->d, &c));
        pthread_mutex_init(&k->turn, NULL);
    }
    if (t->loader) dev_close(t->loader);
    t->loader = NULL;
    return check_libraries(t);
}

void train__close_devices(train *t) {
    for (int i = 0; i < t->n_devices; i++) {
        if (!t->device[i].d) continue;
        dev_close(t->device[i].d);
        pthread_mutex_destroy(&t->device[i].turn);
    }
    if (t->loader) dev_close(t->loader);
}
