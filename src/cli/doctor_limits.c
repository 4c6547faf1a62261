/* Limits of containers and of the system, each with its fix: see doctor_limits.h.
 *
 * A fix is given when a run would meet the limit: the figures below are what a small run needs. What a given run needs
 * is said by `paceline plan`. */
#include "cli/doctor_limits.h"
#include "cli/doctor_finding.h"
#include "cli/doctor_group.h"
#include "core/file.h"
#include "core/str.h"
#include "core/sysfile.h"
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Number of the first process namespace of a Linux kernel (PROC_PID_INIT_INO). */
#define FIRST_PID_NAMESPACE "pid:[4026531836]"
#define GB                  1e9

static void fact(json_t *facts, const char *key, double v) {
    json_object_set_new(facts, key, v < 0 ? json_null() : json_integer((json_int_t)v));
}

static void look_quota(json_t *list, json_t *facts, const doctor_group *g, int usable) {
    char fix[160] = "", slowed[80] = "";
    json_object_set_new(facts, "cpu_quota", g->cpus < 0 ? json_null() : json_real(g->cpus));
    if (g->cpus < 0) {
        doctor_finding_add(list, "quota", "no CPU quota", NULL);
        return;
    }
    if (g->cpus < usable)
        snprintf(fix, sizeof fix, "set PACELINE_THREADS=%d, or raise the container's CPU quota",
                 g->cpus < 1 ? 1 : (int)g->cpus);
    if (g->throttled > 0.01)
        snprintf(slowed, sizeof slowed, "; it was used up in %.0f %% of its periods",
                 100 * g->throttled);
    doctor_finding_say(list, "quota", fix, "the CPU quota is worth %.1f CPUs, %d are usable%s",
                       g->cpus, usable, slowed);
}

static void look_memory(json_t *list, json_t *facts, const doctor_group *g) {
    char a[24], b[24], used[64] = "";
    fact(facts, "memory_limit", g->memory);
    fact(facts, "memory_used", g->memory < 0 ? -1 : g->memory_used);
    if (g->memory_used >= 0)
        snprintf(used, sizeof used, ", %s of it in use", str_bytes(g->memory_used, b));
    if (g->memory < 0)
        doctor_finding_add(list, "memory limit", "none from the container", NULL);
    else
        doctor_finding_say(list, "memory limit",
                           g->memory < GB ? "the container allows less than 1 GB: raise its "
                                            "memory limit (docker: --memory)"
                           : g->memory_used > 0.9 * g->memory
                               ? "more than 90 % are taken: end what holds it, or "
                                 "raise the limit (docker: --memory)"
                               : NULL,
                           "%s from the container%s", str_bytes(g->memory, a), used);
    if (g->killed > 0)
        doctor_finding_say(list, "memory limit",
                           "raise the limit, or train with a smaller run.tokens_per_row ('paceline "
                           "plan' states the bytes)",
                           "%.0f processes were ended here for want of memory", g->killed);
}

static void look_swap(json_t *list, json_t *facts, const doctor_roots *roots,
                      const doctor_group *g) {
    char a[24], b[24], limit[24];
    double all = sysfile_field(roots->proc, "meminfo", "SwapTotal:") * 1024;
    double left = sysfile_field(roots->proc, "meminfo", "SwapFree:") * 1024;
    fact(facts, "swap_total", all);
    fact(facts, "swap_free", left);
    fact(facts, "swap_limit", g->swap);
    if (all <= 0) {
        doctor_finding_add(list, "swap", all < 0 ? "not told" : "none", NULL);
        return;
    }
    doctor_finding_say(list, "swap",
                       left < all / 2 && all - left > GB / 4
                           ? "memory is short, and what swaps is slow: end other processes, or add "
                             "memory"
                           : NULL,
                       "%s, %s used%s%s", str_bytes(all, a), str_bytes(all - left, b),
                       g->swap < 0 ? "" : ", limit of the container ",
                       g->swap < 0 ? "" : str_bytes(g->swap, limit));
}

/* "64m", "65536k" as mounts have it; -1 when there is none. */
static double mount_size(const doctor_roots *roots) {
    char text[64], *end;
    if (!doctor_roots_mount(roots->proc, "/dev/shm", "size=", text, sizeof text)) return -1;
    double v = strtod(text, &end);
    double unit = *end == 'k' || *end == 'K' ? 1024.0 : 1.0;
    if (*end == 'm' || *end == 'M') unit = 1048576.0;
    if (*end == 'g' || *end == 'G') unit = 1073741824.0;
    return end == text || *end == '%' ? -1 : v * unit;
}

static void look_shared_memory(json_t *list, json_t *facts, const doctor_roots *roots) {
    struct statvfs s;
    char a[24], b[24];
    if (statvfs(roots->shm, &s)) {
        fact(facts, "shared_memory_total", -1);
        fact(facts, "shared_memory_free", -1);
        doctor_finding_add(list, "shared memory", "there is no /dev/shm",
                           "mount one (docker: --shm-size=1g): NCCL needs it for several GPUs");
        return;
    }
    double size = (double)s.f_blocks * (double)s.f_frsize, told = mount_size(roots);
    double unused = (double)s.f_bavail * (double)s.f_frsize;
    if (told >= 0) size = told;
    if (unused > size) unused = size;
    fact(facts, "shared_memory_total", size);
    fact(facts, "shared_memory_free", unused);
    doctor_finding_say(list, "shared memory",
                       unused < GB / 4
                           ? "less than 256 MB: NCCL may fail on several GPUs; raise it "
                             "(docker: --shm-size=1g) or free it"
                           : NULL,
                       "/dev/shm has %s, %s free", str_bytes(size, a), str_bytes(unused, b));
}

static void look_processes(json_t *list, json_t *facts, const doctor_roots *roots,
                           const doctor_group *g, int usable) {
    char space[64] = "", path[1024], hide[32];
    snprintf(path, sizeof path, "%s/self/ns/pid", roots->proc);
    ssize_t n = readlink(path, space, sizeof space - 1);
    int own = n > 0 && strcmp(space, FIRST_PID_NAMESPACE);
    int told = doctor_roots_mount(roots->proc, "/proc", "hidepid=", hide, sizeof hide) &&
               strcmp(hide, "0") && strcmp(hide, "off");
    snprintf(path, sizeof path, "%s/1/stat", roots->proc);
    int hidden = access(path, R_OK) != 0 || (told && geteuid() != 0);
    json_object_set_new(facts, "processes_hidden", json_boolean(own || hidden));
    if (own)
        doctor_finding_add(
            list, "processes",
            "this is a process namespace of its own: processes outside it are hidden, "
            "also those that hold a GPU's memory",
            "when memory is held by nobody you can see, look from the host");
    else if (hidden)
        doctor_finding_add(list, "processes",
                           "processes of other users are hidden (hidepid), also those that hold a "
                           "GPU's memory",
                           "when memory is held by nobody you can see, ask the administrator");
    else
        doctor_finding_add(list, "processes", "all processes of this machine can be seen", NULL);
    fact(facts, "processes_limit", g->pids);
    fact(facts, "processes_used", g->pids < 0 ? -1 : g->pids_used);
    if (g->pids < 0) return;
    double left = g->pids - (g->pids_used > 0 ? g->pids_used : 0);
    doctor_finding_say(list, "processes",
                       left < 2 * usable + 16
                           ? "a run may not get its threads: raise the limit (docker: --pids-limit)"
                           : NULL,
                       "the container allows %.0f processes and threads, %.0f are there", g->pids,
                       g->pids_used < 0 ? 0 : g->pids_used);
}

static double count_files(const doctor_roots *roots) {
    char path[1024], **names;
    int n;
    snprintf(path, sizeof path, "%s/self/fd", roots->proc);
    if (file_list(path, &names, &n)) {
        err_clear();
        return -1;
    }
    file_names_free(names, n);
    return n;
}

/* Soft and hard limit of a line of limits; infinity for unlimited, -1 for not told. */
static void limits_of(const doctor_roots *roots, const char *line, double *soft, double *hard) {
    char text[256], a[64] = "", b[64] = "";
    *soft = *hard = -1;
    if (!sysfile_line(roots->proc, "self/limits", line, text, sizeof text)) return;
    if (sscanf(text, "%63s %63s", a, b) != 2) return;
    *soft = strcmp(a, "unlimited") ? atof(a) : INFINITY;
    *hard = strcmp(b, "unlimited") ? atof(b) : INFINITY;
}

static void look_files(json_t *list, json_t *facts, const doctor_roots *roots) {
    double soft, hard, used = count_files(roots), wanted = 1024;
    char fix[160] = "";
    limits_of(roots, "Max open files", &soft, &hard);
    fact(facts, "open_files_soft", isinf(soft) ? -1 : soft);
    fact(facts, "open_files_hard", isinf(hard) ? -1 : hard);
    fact(facts, "open_files_used", used);
    if (soft < 0) return;
    if (soft < 256 || used > soft - 64)
        snprintf(fix, sizeof fix,
                 hard >= wanted ? "raise the limit: ulimit -n %.0f"
                                : "have the hard limit raised (docker: --ulimit nofile=%.0f)",
                 wanted);
    if (isinf(soft))
        doctor_finding_say(list, "open files", NULL, "%.0f in use, no limit", used);
    else
        doctor_finding_say(list, "open files", fix, "%.0f in use, soft limit %.0f, hard limit %.0f",
                           used, soft, isinf(hard) ? soft : hard);
    limits_of(roots, "Max address space", &soft, &hard);
    char a[24];
    if (soft >= 0 && !isinf(soft))
        doctor_finding_say(list, "address space",
                           "lift the limit (ulimit -v unlimited): models are mapped whole",
                           "limited to %s", str_bytes(soft, a));
}

void doctor_limits_look(json_t *list, json_t *facts, const doctor_roots *roots, int usable_cpus) {
    doctor_group g;
    doctor_group_read(roots, &g);
    look_quota(list, facts, &g, usable_cpus);
    look_memory(list, facts, &g);
    look_swap(list, facts, roots, &g);
    look_shared_memory(list, facts, roots);
    look_processes(list, facts, roots, &g, usable_cpus);
    look_files(list, facts, roots);
}

void doctor_limits_disk(json_t *list, json_t *facts, const char *dir) {
    struct statvfs s;
    char at[PATH_MAX], real[PATH_MAX], a[24], count[32], nodes[64] = "";
    snprintf(at, sizeof at, "%s", dir);
    while (statvfs(at, &s)) { /* a run's folder is made by the run */
        char *slash = strrchr(at, '/');
        if (!slash || slash == at)
            snprintf(at, sizeof at, "%s", slash ? "/" : ".");
        else
            *slash = 0;
    }
    double bytes = (double)s.f_bavail * (double)s.f_frsize;
    int counts = s.f_files > 0; /* some file systems make inodes as they need them */
    fact(facts, "disk_free", bytes);
    fact(facts, "inodes_free", counts ? (double)s.f_favail : -1);
    if (counts)
        snprintf(nodes, sizeof nodes, ", room for %s more files",
                 str_thousands((long long)s.f_favail, count));
    const char *fix =
        access(at, W_OK) ? "nothing can be written there: give another run.out, or its permission"
        : bytes < (double)(1 << 30)
            ? "less than 1 GiB is free: a run may not be able to save; free some, or "
              "give another run.out"
        : counts && s.f_favail < 1000
            ? "few files can still be made: remove small files, or give another run.out"
            : NULL;
    doctor_finding_say(list, "disk", fix, "%s free in %s%s%s", str_bytes(bytes, a),
                       realpath(at, real) ? real : at, nodes,
                       access(at, W_OK) ? ", not writable" : "");
}

/* A clock behind the program's own file is wrong, or the file came from the future: both spoil time stamps. */
void doctor_limits_clock(json_t *list, const doctor_roots *roots, time_t now, time_t program,
                         int ticking) {
    char text[32] = "beyond any calendar", source[64];
    struct tm parts;
    const time_t first = 1704067200, last = 4102444800; /* 2024 and 2100 begin */
    if (gmtime_r(&now, &parts)) strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    sysfile_line(roots->sys, "devices/system/clocksource/clocksource0/current_clocksource", "",
                 source, sizeof source);
    const char *what = now < first || now > last ? ", which no clock shows that was set"
                       : now < program ? ", earlier than the time of the program's own file"
                                       : "";
    doctor_finding_say(list, "clock",
                       !ticking ? "the monotonic clock stands still or goes back: rates and time "
                                  "limits cannot work; look at the virtual machine's clock"
                       : *what  ? "set the clock (NTP), or touch the program's file"
                                : NULL,
                       "%s%s%s%s", text, what, *source ? ", source " : "", source);
}

void doctor_limits_clock_now(json_t *list, const doctor_roots *roots) {
    struct stat s;
    struct timespec a, b;
    int ticking = 1;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (int i = 0; i < 1000 && ticking; i++) {
        clock_gettime(CLOCK_MONOTONIC, &b);
        ticking = b.tv_sec > a.tv_sec || (b.tv_sec == a.tv_sec && b.tv_nsec >= a.tv_nsec);
    }
    ticking = ticking && (b.tv_sec != a.tv_sec || b.tv_nsec != a.tv_nsec);
    doctor_limits_clock(list, roots, time(NULL), stat("/proc/self/exe", &s) ? 0 : s.st_mtime,
                        ticking);
}
