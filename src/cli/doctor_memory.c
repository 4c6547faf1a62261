/* Processor, memory and its holders: see doctor_memory.h.
 *
 * One pass over /proc; processes that end meanwhile are left out. Kernel threads hold nothing and have no command. */
#include "cli/doctor_memory.h"
#include "cli/doctor_finding.h"
#include "core/file.h"
#include "core/str.h"
#include "core/sysfile.h"
#include <ctype.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COMMAND = 80 };

void doctor_memory_command(const doctor_roots *roots, unsigned pid, char *out, size_t n) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%u/cmdline", roots->proc, pid);
    FILE *f = fopen(path, "re");
    size_t got = f ? fread(out, 1, n - 1, f) : 0;
    if (f) fclose(f);
    while (got && (!out[got - 1] || isspace((unsigned char)out[got - 1]))) got--;
    for (size_t i = 0; i < got; i++) {
        unsigned char c = (unsigned char)out[i];
        out[i] = c == 0 ? ' ' : (char)(c < 0x20 || c > 0x7e ? '?' : c);
    }
    out[got] = 0;
}

void doctor_memory_user(const doctor_roots *roots, unsigned pid, char *out, size_t n) {
    char path[64], buffer[4096];
    struct passwd entry, *found = NULL;
    snprintf(path, sizeof path, "%u/status", pid);
    double uid = sysfile_field(roots->proc, path, "Uid:");
    out[0] = 0;
    if (uid < 0) return;
    if (!getpwuid_r((uid_t)uid, &entry, buffer, sizeof buffer, &found) && found)
        snprintf(out, n, "%s", found->pw_name);
    else
        snprintf(out, n, "%.0f", uid);
}

typedef struct holder {
    unsigned pid;
    double bytes;
} holder;

/* The largest holders, most first; returns how many. */
static int largest(const doctor_roots *roots, holder top[DOCTOR_MEMORY_HOLDERS]) {
    char **names, path[300];
    int count, n = 0;
    if (file_list(roots->proc, &names, &count)) {
        err_clear();
        return 0;
    }
    for (int i = 0; i < count; i++) {
        if (!isdigit((unsigned char)names[i][0])) continue;
        snprintf(path, sizeof path, "%.200s/status", names[i]);
        holder h = {(unsigned)strtoul(names[i], NULL, 10),
                    sysfile_field(roots->proc, path, "VmRSS:") * 1024};
        if (h.bytes <= 0 || h.pid == (unsigned)getpid()) continue;
        int at = n < DOCTOR_MEMORY_HOLDERS ? n++ : DOCTOR_MEMORY_HOLDERS;
        if (at == DOCTOR_MEMORY_HOLDERS && top[at - 1].bytes >= h.bytes) continue;
        if (at == DOCTOR_MEMORY_HOLDERS) at--;
        for (; at > 0 && top[at - 1].bytes < h.bytes; at--) top[at] = top[at - 1];
        top[at] = h;
    }
    file_names_free(names, count);
    return n;
}

/* All of them as objects; those that hold a thousandth of the memory or more as findings, too. */
static json_t *look_holders(json_t *list, const doctor_roots *roots, double memory) {
    holder top[DOCTOR_MEMORY_HOLDERS];
    json_t *holders = json_array();
    int n = largest(roots, top);
    for (int i = 0; i < n; i++) {
        char command[COMMAND], user[64], a[24], name[32], path[64];
        doctor_memory_command(roots, top[i].pid, command, sizeof command);
        doctor_memory_user(roots, top[i].pid, user, sizeof user);
        snprintf(path, sizeof path, "%u/status", top[i].pid);
        if (!command[0] && sysfile_line(roots->proc, path, "Name:", name, sizeof name))
            snprintf(command, sizeof command, "%s", name);
        if (top[i].bytes >= memory / 1000)
            doctor_finding_say(list, "holder", NULL, "%-9s pid %-7u %-9s %s",
                               str_bytes(top[i].bytes, a), top[i].pid, user, command);
        json_t *h = json_object();
        json_object_set_new(h, "pid", json_integer(top[i].pid));
        json_object_set_new(h, "user", json_string(user));
        json_object_set_new(h, "command", json_string(command));
        json_object_set_new(h, "bytes", json_integer((json_int_t)top[i].bytes));
        json_array_append_new(holders, h);
    }
    return holders;
}

static int count_nodes(const doctor_roots *roots) {
    char path[1024], **names;
    int count, n = 0;
    snprintf(path, sizeof path, "%s/devices/system/node", roots->sys);
    if (file_list(path, &names, &count)) {
        err_clear();
        return 1;
    }
    for (int i = 0; i < count; i++)
        n += !strncmp(names[i], "node", 4) && isdigit((unsigned char)names[i][4]);
    file_names_free(names, count);
    return n ? n : 1;
}

static int count_processors(const doctor_roots *roots) {
    char text[4096];
    int n = 0, from, to, used;
    /* "0-63,128-191" */
    if (!sysfile_line(roots->sys, "devices/system/cpu/online", "", text, sizeof text)) return 0;
    for (const char *c = text; *c; c += used + (c[used] == ',')) {
        if (sscanf(c, "%d-%d%n", &from, &to, &used) == 2)
            n += to - from + 1;
        else if (sscanf(c, "%d%n", &from, &used) == 1)
            n++;
        else
            return n;
    }
    return n;
}

void doctor_memory_look(json_t *list, json_t *devices, const doctor_roots *roots, int usable_cpus) {
    char model[128], a[24], b[24];
    double all = sysfile_field(roots->proc, "meminfo", "MemTotal:") * 1024;
    double left = sysfile_field(roots->proc, "meminfo", "MemAvailable:") * 1024;
    int online = count_processors(roots), nodes = count_nodes(roots);
    if (!sysfile_line(roots->proc, "cpuinfo", "model name", model, sizeof model))
        snprintf(model, sizeof model, "processor of unknown name");
    if (online < usable_cpus) online = usable_cpus;
    doctor_finding_say(list, "processor", NULL, "%s: %d of %d CPUs usable, %d NUMA node%s", model,
                       usable_cpus, online, nodes, nodes == 1 ? "" : "s");
    if (all < 0)
        doctor_finding_add(list, "memory", "not told: /proc/meminfo cannot be read", NULL);
    else
        doctor_finding_say(
            list, "memory",
            left < 1e9 ? "less than 1 GB is available: end what holds it (below)" : NULL,
            "%s, %s available", str_bytes(all, a), str_bytes(left < 0 ? 0 : left, b));
    json_t *d = json_object();
    json_object_set_new(d, "name", json_string("cpu:0"));
    json_object_set_new(d, "model", json_string(model));
    json_object_set_new(d, "cpus_usable", json_integer(usable_cpus));
    json_object_set_new(d, "cpus", json_integer(online));
    json_object_set_new(d, "numa_nodes", json_integer(nodes));
    json_object_set_new(d, "memory_total", all < 0 ? json_null() : json_integer((json_int_t)all));
    json_object_set_new(d, "memory_available",
                        left < 0 ? json_null() : json_integer((json_int_t)left));
    json_object_set_new(d, "holders", look_holders(list, roots, all));
    json_array_append_new(devices, d);
}
