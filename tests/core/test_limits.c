/* Memory that is left, from folders that look like /proc and /sys: machine, control groups of both versions, and none.
 *
 * Every figure is put into a file and the answer is computed by hand. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/limits.h"
#include "support/files.h"

static void put(files_dir *d, const char *name, const char *text) {
    char path[700], *slash;
    snprintf(path, sizeof path, "%s/%s", d->path, name);
    slash = strrchr(path, '/');
    *slash = 0;
    files_must(!file_make_dirs(path), err_text());
    files_text(d, name, text);
}

static limits_memory look(files_dir *d) {
    limits_memory m;
    limits_get_memory(d->path, &m);
    return m;
}

static void the_machine_alone(void **s) {
    (void)s;
    files_dir d = files_begin();
    assert_true(look(&d).room < 0);
    put(&d, "proc/meminfo", "MemTotal:  2000 kB\nMemAvailable:   1000 kB\nMemFree: 7 kB\n");
    assert_true(look(&d).room == 1000 * 1024.0 && look(&d).group_room < 0);
    put(&d, "proc/self/cgroup", "0::/\n");
    put(&d, "sys/fs/cgroup/memory.max", "max\n");
    assert_true(look(&d).room == 1000 * 1024.0);
    files_end(&d);
}

static void the_tightest_group_of_version_2_counts(void **s) {
    (void)s;
    files_dir d = files_begin();
    put(&d, "proc/meminfo", "MemAvailable: 1000000 kB\n");
    put(&d, "proc/self/cgroup", "0::/outer/inner\n");
    put(&d, "sys/fs/cgroup/outer/memory.max", "900000\n");
    put(&d, "sys/fs/cgroup/outer/memory.current", "500000\n");
    put(&d, "sys/fs/cgroup/outer/memory.stat", "anon 1\ninactive_file 100000\nfile 3\n");
    put(&d, "sys/fs/cgroup/outer/inner/memory.max", "600000\n");
    put(&d, "sys/fs/cgroup/outer/inner/memory.current", "10000\n");
    /* outer: 900,000 - (500,000 - 100,000); inner: 590,000 */
    assert_true(look(&d).room == 500000);
    put(&d, "sys/fs/cgroup/outer/inner/memory.max", "60000\n");
    assert_true(look(&d).room == 50000);
    put(&d, "sys/fs/cgroup/outer/inner/memory.current", "70000\n");
    assert_true(look(&d).room == 0);
    files_end(&d);
}

static void version_1_and_the_root_of_a_container(void **s) {
    (void)s;
    files_dir d = files_begin();
    put(&d, "proc/meminfo", "MemAvailable: 1000000 kB\n");
    put(&d, "proc/self/cgroup", "4:memory:/host/name\n0::/\n");
    put(&d, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_true(look(&d).room == 1000000 * 1024.0);
    put(&d, "sys/fs/cgroup/memory/memory.limit_in_bytes", "800000\n");
    put(&d, "sys/fs/cgroup/memory/memory.usage_in_bytes", "300000\n");
    put(&d, "sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 200000\n");
    assert_true(look(&d).room == 700000);
    files_end(&d);
}

static void this_machine_has_some(void **s) {
    (void)s;
    limits_memory m;
    limits_get_memory("", &m);
    assert_true(m.room > 0 && m.room <= m.available);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_machine_alone),
        cmocka_unit_test(the_tightest_group_of_version_2_counts),
        cmocka_unit_test(version_1_and_the_root_of_a_container),
        cmocka_unit_test(this_machine_has_some),
    };
    return cmocka_run_group_tests_name("limits", tests, NULL, NULL);
}
