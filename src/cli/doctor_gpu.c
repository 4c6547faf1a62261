/* GPUs as findings and as device objects: see doctor_gpu.h.
 *
 * A machine without GPU and driver is a finding like any other, without a fix: the program runs on CPUs. */
#include "cli/doctor_gpu.h"
#include "cli/child_look.h"
#include "cli/doctor_finding.h"
#include "cli/doctor_memory.h"
#include "core/arena.h"
#include "core/str.h"
#include "core/sysfile.h"
#include "dev/cuda_libs.h"
#include "dev/cuda_system.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { DEVICES = 32 };

typedef struct answer {
    nvml_report report;
    err code;
    char why[700];
    /* Without NVML, what the CUDA driver tells, which is another library. */
    err driver_code;
    char driver_why[700];
    cuda_device devices[DEVICES];
    int n_devices;
} answer;

static void look_driver(answer *a) {
    shared_lib l;
    a->driver_code = cuda_libs_open(&l, CUDA_LIBS_DRIVER);
    if (!a->driver_code) {
        snprintf(a->report.cuda, sizeof a->report.cuda, "%.15s", l.version);
        shared_lib_close(&l);
        a->driver_code = cuda_system_here(a->devices, DEVICES, &a->n_devices);
    }
    if (a->driver_code) snprintf(a->driver_why, sizeof a->driver_why, "%s", err_text());
}

static void look(void *ctx, void *out) {
    answer *a = out;
    (void)ctx;
    a->code = nvml_read(&a->report);
    if (a->code) snprintf(a->why, sizeof a->why, "%s", err_text());
    if (a->code == ERR_IO) look_driver(a);
}

static const char to_container[] =
    "give the container the driver's libraries (docker: --gpus all, with "
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility), or take the driver's folder into LD_LIBRARY_PATH";

/* No NVML: the kernel's side may still be there, as in a container that was given devices and no driver files. */
static void say_absent(json_t *list, const doctor_roots *roots) {
    char version[256];
    if (sysfile_line(roots->proc, "driver/nvidia/version", "NVRM version:", version,
                     sizeof version))
        doctor_finding_say(
            list, "GPU", to_container,
            "the kernel has an NVIDIA driver (%s), and libnvidia-ml.so.1 is not found", version);
    else
        doctor_finding_add(list, "GPU", "no NVIDIA GPU and no driver here: runs use the CPU", NULL);
}

/* GPUs that can be computed on and whose memory nobody tells of, as in a container that was given "compute" alone. */
static void say_driver_alone(json_t *list, json_t *devices, const answer *a) {
    char name[24], bytes[24];
    doctor_finding_say(list, "GPU", to_container,
                       "the CUDA driver is here and libnvidia-ml.so.1 is not found, so who holds "
                       "the memory of GPUs is not known");
    if (a->driver_code) doctor_finding_error(list, "GPU", a->driver_why);
    for (int i = 0; i < a->n_devices; i++) {
        const cuda_device *d = &a->devices[i];
        snprintf(name, sizeof name, "cuda:%d", i);
        doctor_finding_say(list, name, NULL, "%s, compute capability %d.%d, %s", d->name, d->major,
                           d->minor, str_bytes((double)d->bytes, bytes));
        json_array_append_new(
            devices, json_pack("{s:s, s:s, s:n, s:I, s:n, s:n, s:[], s:n}", "name", name, "model",
                               d->name, "driver", "memory_total", (json_int_t)d->bytes,
                               "memory_used", "hidden_bytes", "holders", "peers"));
    }
}

static int can_be_seen(const doctor_roots *roots, unsigned pid) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%u/status", roots->proc, pid);
    return !access(path, R_OK);
}

static json_t *bytes_value(uint64_t v) {
    return v == NVML_UNKNOWN ? json_null() : json_integer((json_int_t)v);
}

static void say_holder(json_t *list, json_t *holders, const doctor_roots *roots,
                       const nvml_holder *h) {
    char command[120] = "", user[64] = "", a[24];
    int seen = can_be_seen(roots, h->pid);
    if (seen) {
        doctor_memory_command(roots, h->pid, command, sizeof command);
        doctor_memory_user(roots, h->pid, user, sizeof user);
    }
    if (!command[0]) snprintf(command, sizeof command, "%s", h->name[0] ? h->name : "?");
    doctor_finding_say(list, "holder", NULL, "%-9s pid %-7u %-9s %s%s",
                       h->bytes == NVML_UNKNOWN ? "?" : str_bytes((double)h->bytes, a), h->pid,
                       user, command, seen ? "" : " (not to be seen from here)");
    json_t *o = json_object();
    json_object_set_new(o, "pid", json_integer(h->pid));
    json_object_set_new(o, "user", json_string(user));
    json_object_set_new(o, "command", json_string(command));
    json_object_set_new(o, "bytes", bytes_value(h->bytes));
    json_array_append_new(holders, o);
}

static void say_hidden(json_t *list, const char *name, const nvml_device *d) {
    if (d->hidden == NVML_UNKNOWN)
        doctor_finding_say(
            list, name, NULL,
            "NVML does not tell the bytes of every process, so what is held by hidden "
            "ones is not known");
    else if (d->hidden)
        doctor_finding_say(list, name,
                           "look from the host (nvidia-smi there), end what is left over, or use "
                           "another device",
                           "%llu MiB are held by processes that this container cannot see",
                           (unsigned long long)(d->hidden >> 20));
}

static void look_device(json_t *list, json_t *devices, const doctor_roots *roots,
                        const nvml_report *r, int index) {
    const nvml_device *d = &r->devices[index];
    char name[24], a[24], b[24];
    json_t *o = json_object(), *holders = json_array();
    snprintf(name, sizeof name, "cuda:%d", index);
    json_object_set_new(o, "name", json_string(name));
    json_object_set_new(o, "model", json_string(d->name));
    if (d->fault[0]) {
        doctor_finding_say(list, name,
                           "look at the kernel's log (dmesg); a reset or a reboot may be needed",
                           "%s", d->fault);
    } else {
        doctor_finding_say(list, name, NULL, "%s, compute capability %d.%d, %s, %s in use", d->name,
                           d->major, d->minor, str_bytes((double)d->total, a),
                           str_bytes((double)d->used, b));
        for (int i = 0; i < d->n_holders; i++) say_holder(list, holders, roots, &d->holders[i]);
        say_hidden(list, name, d);
    }
    json_object_set_new(o, "driver", json_string(r->driver));
    json_object_set_new(o, "memory_total", bytes_value(d->total));
    json_object_set_new(o, "memory_used", bytes_value(d->used));
    json_object_set_new(o, "hidden_bytes", bytes_value(d->hidden));
    json_object_set_new(o, "holders", holders);
    json_t *peers = json_array();
    for (int i = 0; i < r->n_devices; i++)
        if (d->peers >> i & 1) json_array_append_new(peers, json_integer(i));
    json_object_set_new(o, "peers", r->knows_peers ? json_incref(peers) : json_null());
    json_decref(peers);
    json_array_append_new(devices, o);
}

/* All pairs, or the pairs that do not reach each other. */
static void say_peers(json_t *list, const nvml_report *r) {
    char text[512] = "";
    size_t at = 0;
    int pairs = 0, absent = 0;
    for (int i = 0; i < r->n_devices; i++)
        for (int j = i + 1; j < r->n_devices; j++) {
            int both = (r->devices[i].peers >> j & 1) && (r->devices[j].peers >> i & 1);
            pairs++;
            if (both || at > sizeof text - 32) continue;
            at +=
                (size_t)snprintf(text + at, sizeof text - at, "%s%d-%d", absent ? ", " : "", i, j);
            absent++;
        }
    if (!r->knows_peers || !pairs) return;
    if (absent)
        doctor_finding_say(
            list, "peers", NULL,
            "these pairs do not reach each other's memory, so features go through the host: %s",
            text);
    else
        doctor_finding_add(list, "peers", "every GPU reaches every other one's memory", NULL);
}

int doctor_gpu_look(json_t *list, json_t *devices, const doctor_roots *roots, char cuda[16]) {
    char fault[160];
    answer *a;
    cuda[0] = 0;
    if (mem_new(1, sizeof *a, &a)) {
        err_clear();
        return 0;
    }
    child_look(look, NULL, a, sizeof *a, fault);
    const nvml_report *r = &a->report;
    int driver = !fault[0] && (a->code != ERR_IO || a->driver_code != ERR_IO);
    if (fault[0]) {
        doctor_finding_say(
            list, "GPU", "reinstall the NVIDIA driver, or reboot if it was just updated",
            "asking the driver (libnvidia-ml.so.1, without it libcuda.so.1) %s", fault);
    } else if (a->code == ERR_IO && driver) {
        snprintf(cuda, 16, "%s", r->cuda);
        say_driver_alone(list, devices, a);
    } else if (a->code == ERR_IO) {
        say_absent(list, roots);
    } else if (a->code) {
        doctor_finding_error(list, "GPU", a->why);
    } else {
        snprintf(cuda, 16, "%s", r->cuda);
        doctor_finding_say(list, "driver", NULL, "%s, serves CUDA %s", r->driver, r->cuda);
        if (!r->n_devices)
            doctor_finding_add(list, "GPU", "there is a driver and no GPU: runs use the CPU", NULL);
        for (int i = 0; i < r->n_devices; i++) look_device(list, devices, roots, r, i);
        if (r->more)
            doctor_finding_say(list, "GPU", NULL, "and %d more that are not looked at", r->more);
        say_peers(list, r);
    }
    mem_free(a);
    return driver;
}
