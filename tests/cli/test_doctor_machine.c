/* doctor on machines that are folders: cgroups of both versions, /proc and /sys as files made here, a clock that is given.
 *
 * Each case states what the folder says and what must be found and advised. The live machine is looked at once, for the
 * names of the JSON. */
#include "cli/doctor_group.h"
#include "cli/doctor_limits.h"
#include "cli/doctor_memory.h"
#include "cli/doctor_print.h"
#include "support/files.h"
#include "support/run.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <sys/stat.h>
#include <unistd.h>

static files_dir dir;
static char proc[600], sys[600], cgroup[600];
static doctor_roots roots;
static json_t *list, *facts, *devices;

static void put(const char *name, const char *text) {
    char path[700];
    snprintf(path, sizeof path, "%s", files_at(&dir, name));
    *strrchr(path, '/') = 0;
    files_must(!file_make_dirs(path), path);
    files_text(&dir, name, text);
}

static int begin(void **state) {
    (void)state;
    dir = files_begin();
    snprintf(proc, sizeof proc, "%s", files_at(&dir, "proc"));
    snprintf(sys, sizeof sys, "%s", files_at(&dir, "sys"));
    snprintf(cgroup, sizeof cgroup, "%s", files_at(&dir, "cgroup"));
    roots = (doctor_roots){proc, sys, cgroup, dir.path};
    put("proc/self/fd/0", "");
    put("proc/self/fd/1", "");
    put("proc/1/stat", "1 (init)");
    put("proc/meminfo", "MemTotal:       65536000 kB\nMemFree: 1 kB\nMemAvailable:   32768000 kB\n"
                        "SwapTotal:             0 kB\nSwapFree:              0 kB\n");
    put("proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max address space         unlimited            unlimited            bytes     \n"
        "Max open files            1024                 1048576              files     \n");
    put("sys/devices/system/cpu/online", "0-7,16-23\n");
    list = json_array();
    facts = json_object();
    devices = json_array();
    return 0;
}

static int end(void **state) {
    (void)state;
    json_decref(list);
    json_decref(facts);
    json_decref(devices);
    files_end(&dir);
    return 0;
}

static void show(void) {
    char *text = json_dumps(list, JSON_INDENT(1));
    print_message("%s\n", text);
    free(text);
}

/* One finding of item holds text, and its fix holds fix (NULL: there is none). */
static void expect(const char *item, const char *text, const char *fix) {
    size_t i;
    json_t *f;
    int n = 0;
    json_array_foreach(list, i, f) {
        const char *advice = json_string_value(json_object_get(f, "fix"));
        n += !strcmp(json_string_value(json_object_get(f, "item")), item) &&
             strstr(json_string_value(json_object_get(f, "finding")), text) &&
             (fix ? advice && strstr(advice, fix) : !advice);
    }
    if (n != 1) show();
    if (n != 1)
        fail_msg("'%s: %s' with fix '%s' is there %d times", item, text, fix ? fix : "-", n);
}

static double fact(const char *key) {
    const json_t *v = json_object_get(facts, key);
    assert_non_null(v);
    return json_is_null(v) ? -1 : json_number_value(v);
}

static void look(int usable) { doctor_limits_look(list, facts, &roots, usable); }

static void no_limits(void **state) {
    (void)state;
    put("proc/self/cgroup", "0::/\n");
    look(4);
    expect("quota", "no CPU quota", NULL);
    expect("memory limit", "none from the container", NULL);
    expect("swap", "none", NULL);
    expect("processes", "all processes", NULL);
    expect("open files", "2 in use, soft limit 1024, hard limit 1048576", NULL);
    assert_true(fact("cpu_quota") < 0 && fact("memory_limit") < 0 && fact("open_files_used") == 2);
    assert_true(json_is_false(json_object_get(facts, "processes_hidden")));
}

static void version_2_container(void **state) {
    (void)state;
    put("proc/self/cgroup", "0::/\n");
    put("cgroup/cpu.max", "250000 100000\n");
    put("cgroup/cpu.stat", "usage_usec 1\nnr_periods 200\nnr_throttled 50\n");
    put("cgroup/memory.max", "8589934592\n");
    put("cgroup/memory.current", "4294967296\n");
    put("cgroup/memory.stat", "anon 5\ninactive_file 1073741824\n");
    put("cgroup/memory.events", "low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\n");
    put("cgroup/memory.swap.max", "0\n");
    put("cgroup/pids.max", "64\n");
    put("cgroup/pids.current", "40\n");
    look(16);
    expect("quota", "worth 2.5 CPUs, 16 are usable; it was used up in 25 %", "PACELINE_THREADS=2");
    expect("memory limit", "8.0 GiB from the container, 3.0 GiB of it in use", NULL);
    expect("memory limit", "2 processes were ended here", "run.tokens_per_row");
    expect("processes", "allows 64 processes and threads, 40 are there", "--pids-limit");
    assert_true(fact("memory_limit") == 8589934592.0 && fact("memory_used") == 3221225472.0);
    assert_true(fact("cpu_quota") == 2.5 && fact("processes_limit") == 64 &&
                fact("swap_limit") == 0);
}

/* The least limit on the way to the root holds, wherever it is. */
static void version_2_nested_groups(void **state) {
    (void)state;
    put("proc/self/cgroup", "0::/user.slice/job/step\n");
    put("cgroup/user.slice/job/step/cpu.max", "max 100000\n");
    put("cgroup/user.slice/job/step/memory.max", "max\n");
    put("cgroup/user.slice/job/cpu.max", "100000 100000\n");
    put("cgroup/user.slice/job/memory.max", "600000000\n");
    put("cgroup/user.slice/job/memory.current", "590000000\n");
    put("cgroup/user.slice/memory.max", "900000000\n");
    look(1);
    expect("quota", "worth 1.0 CPUs, 1 are usable", NULL);
    expect("memory limit", "572 MiB from the container", "less than 1 GB");
    assert_true(fact("memory_used") == 590000000);
}

static void version_1_container(void **state) {
    (void)state;
    put("proc/self/cgroup",
        "5:memory:/docker/abc\n4:pids:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n");
    /* Inside the container the mount is already the group's own. */
    put("cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n");
    put("cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put("cgroup/memory/memory.limit_in_bytes", "2147483648\n");
    put("cgroup/memory/memory.usage_in_bytes", "2100000000\n");
    put("cgroup/memory/memory.stat", "cache 1\ntotal_inactive_file 1000\n");
    put("cgroup/memory/memory.memsw.limit_in_bytes", "3221225472\n");
    put("cgroup/pids/pids.max", "max\n");
    look(2);
    expect("quota", "worth 0.5 CPUs", "PACELINE_THREADS=1");
    expect("memory limit", "2.0 GiB from the container", "more than 90 % are taken");
    assert_true(fact("swap_limit") == 1073741824.0 && fact("processes_limit") < 0);
    assert_true(fact("memory_used") == 2100000000.0 - 1000);
}

static void version_1_without_limits(void **state) {
    (void)state;
    put("proc/self/cgroup", "5:memory:/\n2:cpu:/\n");
    put("cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    put("cgroup/cpu/cpu.cfs_period_us", "100000\n");
    put("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    look(2);
    expect("quota", "no CPU quota", NULL);
    expect("memory limit", "none from the container", NULL);
}

static void hidden_processes_and_small_shared_memory(void **state) {
    (void)state;
    put("proc/self/mounts",
        "proc /proc proc rw,hidepid=2 0 0\nshm /dev/shm tmpfs rw,nosuid,size=65536k 0 0\n");
    assert_int_equal(unlink(files_at(&dir, "proc/1/stat")), 0);
    look(2);
    expect("processes", "hidepid", "administrator");
    expect("shared memory", "64 MiB", "--shm-size");
    assert_true(fact("shared_memory_total") == 67108864);
    assert_true(json_is_true(json_object_get(facts, "processes_hidden")));
    json_array_clear(list);
    put("proc/1/stat", "1 (bash)");
    files_must(!file_make_dirs(files_at(&dir, "proc/self/ns")), "ns");
    assert_int_equal(symlink("pid:[4026532300]", files_at(&dir, "proc/self/ns/pid")), 0);
    roots.shm = "/no/such/folder";
    look(2);
    expect("processes", "process namespace of its own", "from the host");
    expect("shared memory", "there is no /dev/shm", "--shm-size");
}

static void few_files_and_swapping(void **state) {
    (void)state;
    put("proc/self/limits",
        "Max open files            64                 128              files     \n"
        "Max address space         2147483648            unlimited            bytes     \n");
    put("proc/meminfo", "SwapTotal:       2097152 kB\nSwapFree:         104857 kB\n");
    look(2);
    expect("open files", "2 in use, soft limit 64, hard limit 128", "--ulimit nofile=1024");
    expect("address space", "limited to 2.0 GiB", "ulimit -v");
    expect("swap", "2.0 GiB, 1.9 GiB used", "memory is short");
    json_array_clear(list);
    put("proc/self/limits",
        "Max open files            64                 unlimited              files     \n");
    look(2);
    expect("open files", "soft limit 64", "ulimit -n 1024");
}

static void nothing_can_be_read(void **state) {
    (void)state;
    roots = (doctor_roots){"/no/proc", "/no/sys", "/no/cgroup", "/no/shm"};
    look(2);
    doctor_memory_look(list, devices, &roots, 2);
    expect("quota", "no CPU quota", NULL);
    expect("swap", "not told", NULL);
    expect("memory", "not told", NULL);
    expect("processor", "processor of unknown name: 2 of 2 CPUs usable, 1 NUMA node", NULL);
}

static void processor_memory_and_holders(void **state) {
    char name[64], text[200];
    (void)state;
    put("proc/cpuinfo",
        "processor\t: 0\nmodel name\t: Some CPU 9000\nprocessor\t: 1\nmodel name\t: Some CPU 9000\n");
    put("sys/devices/system/node/node0/meminfo", "");
    put("sys/devices/system/node/node1/meminfo", "");
    for (int i = 0; i < 9; i++) {
        snprintf(name, sizeof name, "proc/%d/status", 4100 + i);
        snprintf(text, sizeof text, "Name:\tworker%d\nUid:\t%d\t0\t0\t0\nVmRSS:\t%8d kB\n", i,
                 i == 3 ? 0 : 54321, (i * 5 % 9 + 1) * 1048576);
        put(name, text);
    }
    put("proc/4104/cmdline", "");
    files_write(&dir, "proc/4104/cmdline", "python\0train.py\0--x\033y", 22);
    put("proc/4200/status", "Name:\tkthread\nUid:\t0\n"); /* holds nothing */
    doctor_memory_look(list, devices, &roots, 6);
    expect("processor", "Some CPU 9000: 6 of 16 CPUs usable, 2 NUMA nodes", NULL);
    expect("memory", "available", NULL);
    expect("holder", "9.0 GiB   pid 4107", NULL);
    expect("holder", "pid 4103    root", NULL);
    const json_t *d = json_array_get(devices, 0), *h = json_object_get(d, "holders");
    assert_int_equal(json_array_size(h), DOCTOR_MEMORY_HOLDERS);
    double before = 1e30;
    for (size_t i = 0; i < json_array_size(h); i++) {
        double bytes = json_number_value(json_object_get(json_array_get(h, i), "bytes"));
        assert_true(bytes < before && bytes > 4.5 * 1073741824.0);
        before = bytes;
    }
    doctor_memory_command(&roots, 4104, text, sizeof text);
    assert_string_equal(text, "python train.py --x?y");
    json_array_clear(list);
    put("proc/meminfo", "MemTotal: 65536000 kB\nMemAvailable: 1000 kB\n");
    doctor_memory_look(list, devices, &roots, 6);
    expect("memory", "62 GiB, 1000 KiB available", "less than 1 GB");
}

static void clocks(void **state) {
    (void)state;
    const time_t now = 1796000000, program = 1795000000;
    put("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n");
    doctor_limits_clock(list, &roots, now, program, 1);
    expect("clock", "2026-11-", NULL);
    expect("clock", "source tsc", NULL);
    doctor_limits_clock(list, &roots, program - 10, program, 1);
    expect("clock", "earlier than the time of the program's own file", "set the clock");
    doctor_limits_clock(list, &roots, 60, program, 1);
    expect("clock", "1970-01-01T00:01:00Z, which no clock shows", "set the clock");
    doctor_limits_clock(list, &roots, (time_t)5e9, program, 1);
    expect("clock", "2128", "set the clock");
    doctor_limits_clock(list, &roots, now, program, 0);
    expect("clock", "2026", "stands still");
    json_array_clear(list);
    doctor_limits_clock_now(list, &doctor_roots_live);
    assert_int_equal(json_array_size(list), 1);
}

static void disk_of_a_folder_that_is_not_there_yet(void **state) {
    char path[700];
    (void)state;
    snprintf(path, sizeof path, "%s/runs/a/b", dir.path);
    doctor_limits_disk(list, facts, path);
    const char *text = json_string_value(json_object_get(json_array_get(list, 0), "finding"));
    assert_non_null(strstr(text, dir.path));
    assert_true(fact("disk_free") > 0);
    json_array_clear(list);
    doctor_limits_disk(list, facts, "/proc/self");
    assert_non_null(json_object_get(json_array_get(list, 0), "fix"));
}

static json_t *finding(const char *topic, const char *item, const char *text, const char *fix) {
    json_t *f = json_pack("{s:s, s:s, s:s}", "topic", topic, "item", item, "finding", text);
    if (fix) json_object_set_new(f, "fix", json_string(fix));
    return f;
}

static void printed_findings_are_aligned_and_broken(void **state) {
    (void)state;
    char *text = NULL;
    size_t n;
    json_array_append_new(list, finding("One", "short", "fine", NULL));
    json_array_append_new(list, finding("One", "short", "again", NULL));
    json_array_append_new(list, finding("One", "a-very-long-name-of-a-package", "words", NULL));
    json_array_append_new(
        list,
        finding("Two", "disk", "some words that are too long for one line of forty", "free it"));
    FILE *f = open_memstream(&text, &n);
    doctor_print(f, list, 50);
    fclose(f);
    const char *want = "One\n"
                       "  short                       fine\n"
                       "                              again\n"
                       "  a-very-long-name-of-a-package  \n"
                       "                              words\n"
                       "\nTwo\n"
                       "! disk          some words that are too long for\n"
                       "                one line of forty\n"
                       "                fix: free it\n"
                       "\n1 finding to look at, marked with '!'\n";
    if (strcmp(text, want)) fail_msg("got:\n%s\nwanted:\n%s", text, want);
    free(text);
}

/* The names of the JSON are a contract (docs/FORMATS.md). */
static void json_of_this_machine(void **state) {
    static run_result r;
    static const char *const keys[] = {
        "cpu_quota",        "memory_limit",    "memory_used",         "swap_total",
        "swap_free",        "swap_limit",      "shared_memory_total", "shared_memory_free",
        "processes_hidden", "processes_limit", "processes_used",      "open_files_soft",
        "open_files_hard",  "open_files_used", "disk_free",           "inodes_free"};
    json_error_t e;
    (void)state;
    run_program(&r, NULL, (const char *const[]){"doctor", "--json", "--run", dir.path, NULL});
    assert_int_equal(r.code, 0);
    json_t *root = json_loads(r.text, JSON_REJECT_DUPLICATES, &e);
    if (!root) fail_msg("%s:\n%s", e.text, r.text);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (!json_object_get(json_object_get(root, "limits"), keys[i])) fail_msg("no %s", keys[i]);
    assert_true(json_is_integer(json_object_get(root, "problems")));
    const json_t *cpu = json_array_get(json_object_get(root, "devices"), 0);
    assert_string_equal(json_string_value(json_object_get(cpu, "name")), "cpu:0");
    assert_true(json_array_size(json_object_get(root, "libraries")) > 7);
    size_t i;
    json_t *l;
    json_array_foreach(json_object_get(root, "libraries"), i,
                       l) for (const char *const *k =
                                   (const char *const[]){"name", "path", "version", "built",
                                                         "minimum", "usable", NULL};
                               *k; k++) if (!json_object_get(l, *k)) fail_msg("no %s", *k);
    json_decref(root);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)
int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(no_limits),
        CASE(version_2_container),
        CASE(version_2_nested_groups),
        CASE(version_1_container),
        CASE(version_1_without_limits),
        CASE(hidden_processes_and_small_shared_memory),
        CASE(few_files_and_swapping),
        CASE(nothing_can_be_read),
        CASE(processor_memory_and_holders),
        CASE(clocks),
        CASE(disk_of_a_folder_that_is_not_there_yet),
        CASE(printed_findings_are_aligned_and_broken),
        CASE(json_of_this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
