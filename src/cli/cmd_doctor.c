/* paceline doctor: what this machine offers to the program: devices and who holds their memory, what a container takes
 * away, every library by the file that is really loaded and the version it reports; with --python, the CUDA packages of
 * a Python environment. Looks only: changes nothing, and ends with code 0 whatever it finds. */
#include "cli/command.h"
#include "cli/doctor_finding.h"
#include "cli/doctor_gpu.h"
#include "cli/doctor_libraries.h"
#include "cli/doctor_limits.h"
#include "cli/doctor_memory.h"
#include "cli/doctor_print.h"
#include "cli/doctor_python.h"
#include "core/env.h"
#include "core/pool.h"
#include "dev/dev.h"
#include <stdio.h>
#include <stdlib.h>

static const arg_spec spec[] = {
    {"--json", ARG_FLAG, NULL, "print one JSON object"},
    {"--python", ARG_TEXT, "DIR",
     "also the CUDA packages of a Python environment: its root or site-packages"},
    {"--run", ARG_TEXT, "DIR", "the folder whose disk a run would use (default: here)"},
    {"--threads", ARG_INT, "N", "CPU threads to look at (default: usable CPUs)"},
    {NULL, ARG_FLAG, NULL, NULL},
};

typedef struct parts {
    json_t *devices, *limits, *libraries, *switches, *packages; /* findings by topic */
    json_t *device_list, *facts, *library_list;                 /* what programs read */
} parts;

static void begin(parts *p) {
    *p = (parts){json_array(), json_array(), json_array(),  json_array(),
                 json_array(), json_array(), json_object(), json_array()};
}

/* Everything that forks, while there is one thread that computes. */
static err look_in_children(parts *p, const args *a) {
    const char *python = args_text(a, "--python", NULL);
    char cuda[16];
    if (python) TRY(doctor_python_look(p->packages, python));
    doctor_memory_look(p->devices, p->device_list, &doctor_roots_live, pool_cpus());
    int driver = doctor_gpu_look(p->devices, p->device_list, &doctor_roots_live, cuda);
    doctor_libraries_linked(p->libraries, p->library_list);
    doctor_libraries_cuda(p->libraries, p->library_list, driver, cuda);
    return ERR_OK;
}

static void look_switches(json_t *list) {
    for (int i = 0; i < ENV_COUNT; i++)
        if (env_get((env_key)i))
            doctor_finding_add(list, env_name((env_key)i), env_get((env_key)i), NULL);
    if (env_library_path()) doctor_finding_add(list, "LD_LIBRARY_PATH", env_library_path(), NULL);
    if (env_preload()) doctor_finding_add(list, "LD_PRELOAD", env_preload(), NULL);
}

static err look(parts *p, const args *a) {
    int64_t threads;
    dev *d;
    TRY(args_int(a, "--threads", 0, 0, 1024, &threads));
    TRY(look_in_children(p, a));
    doctor_limits_look(p->limits, p->facts, &doctor_roots_live, pool_cpus());
    doctor_limits_disk(p->limits, p->facts, args_text(a, "--run", "."));
    doctor_limits_clock_now(p->limits, &doctor_roots_live);
    look_switches(p->switches);
    err e = dev_open_cpu(&d, &(dev_config){.threads = (int)threads});
    if (e) { /* a named library that cannot be used is a finding here */
        doctor_finding_add(p->libraries, "matrices", err_text(),
                           "name a serial CBLAS in PACELINE_BLAS, or take the switch away");
        err_clear();
        return ERR_OK;
    }
    int slow = dev_get_isa(d) == DEV_ISA_PORTABLE;
    doctor_finding_say(p->devices, "kernels",
                       !slow                       ? NULL
                       : env_get(ENV_PACELINE_ISA) ? "take PACELINE_ISA out of the environment"
                                                   : "use a CPU with AVX2 or AVX-512",
                       "%s, on %d threads%s", dev_isa_name(dev_get_isa(d)), dev_threads(d),
                       slow ? ": expect low speed" : "");
    doctor_libraries_matrix(p->libraries, p->library_list, d);
    dev_close(d);
    return ERR_OK;
}

/* Moves the findings of a topic to the end of all; returns how many have a fix. */
static int join(json_t *all, const char *topic, json_t *list) {
    size_t i;
    json_t *f;
    int problems = 0;
    json_array_foreach(list, i, f) {
        json_object_set_new(f, "topic", json_string(topic));
        problems += json_object_get(f, "fix") != NULL;
    }
    json_array_extend(all, list);
    json_decref(list);
    return problems;
}

static void print_json(json_t *root) {
    char *text = json_dumps(root, JSON_INDENT(1));
    printf("%s\n", text ? text : "{}");
    free(text);
}

static err run(const args *a) {
    parts p;
    begin(&p);
    err e = look(&p, a);
    json_t *all = json_array(), *root = json_object();
    int problems = join(all, "Devices", p.devices);
    problems += join(all, "Limits", p.limits);
    problems += join(all, "Libraries", p.libraries);
    problems += join(all, "Environment", p.switches);
    problems += join(all, "Python packages", p.packages);
    if (!e && !args_has(a, "--json")) doctor_print(stdout, all, doctor_print_width(stdout));
    json_object_set_new(root, "problems", json_integer(problems));
    json_object_set_new(root, "devices", p.device_list);
    json_object_set_new(root, "limits", p.facts);
    json_object_set_new(root, "libraries", p.library_list);
    json_object_set_new(root, "findings", all);
    if (!e && args_has(a, "--json")) print_json(root);
    json_decref(root);
    return e;
}

const command command_doctor = {
    .name = "doctor",
    .usage = "doctor [--python DIR] [--run DIR] [--json]",
    .summary = "what this machine offers: devices, limits, libraries, Python packages; what to fix",
    .spec = spec,
    .run = run,
};
