/* Recipes, keys and targets of device kernels: see kernel.h.
 *
 * A recipe is text that a person can read: one line per fact, and before every free text its length, so that no two
 * different kernels write the same recipe. The house's options are part of it like all others. */
#include "dev/kernel.h"
#include "core/file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -default-device: helpers need no __device__. The resource report goes to the log and changes no code. */
static const char *const house_options[] = {"--std=c++17", "-default-device", "--ptxas-options=-v"};
enum { HOUSE_OPTIONS = sizeof house_options / sizeof house_options[0], OLDEST = 80 };
/* From where on architectures have instructions of their own (sm_90a), and families share some (sm_100f). */
enum { OWN = 90, FAMILIES = 100 };

const char *kernel_option(const kernel_spec *spec, int i) {
    if (i < HOUSE_OPTIONS) return house_options[i];
    i -= HOUSE_OPTIONS;
    return i < spec->n_options ? spec->options[i] : NULL;
}

err kernel_check_arch(const char *arch, int *number) {
    char *end = NULL;
    long n = strncmp(arch, "sm_", 3) ? -1 : strtol(arch + 3, &end, 10);
    int well = n > 0 && end > arch + 4 && arch[3] >= '1' && arch[3] <= '9' && n < 1000;
    if (well && *end) well = (*end == 'a' || *end == 'f') && !end[1];
    if (!well)
        return err_set(ERR_USAGE,
                       "'%s' is no GPU architecture; it is spelled like sm_80, sm_90a or sm_120",
                       arch);
    *number = (int)n;
    const char suffix = *end;
    if ((suffix == 'a' && n < OWN) || (suffix == 'f' && n < FAMILIES))
        return err_set(ERR_USAGE,
                       "there is no %s: the suffix %c exists from sm_%d%c on; leave it out", arch,
                       suffix, suffix == 'a' ? OWN : FAMILIES, suffix);
    if (n >= OLDEST) return ERR_OK;
    return err_set(
        ERR_REFUSED,
        "there are no kernels for %s: they need sm_%d (Ampere) or later; use a later GPU, "
        "or the CPU",
        arch, OLDEST);
}

int kernel_arch_shared(int number) {
    switch (number) {
    case 80:
    case 87: return 163 << 10;
    case 90:
    case 100:
    case 101:
    case 103:
    case 110: return 227 << 10;
    default: return 99 << 10; /* 8.6, 8.9, 12.x */
    }
}

err kernel_device_arch(int major, int minor, char out[KERNEL_ARCH]) {
    int number, hopper = major == 9 && minor == 0; /* whose own instructions need the suffix */
    snprintf(out, KERNEL_ARCH, "sm_%d%d%s", major, minor, hopper ? "a" : "");
    return kernel_check_arch(out, &number);
}

static err add_text(str *out, const char *what, const char *name, const char *text) {
    size_t n = strlen(text);
    TRY(str_printf(out, "%s %zu %zu %s\n", what, strlen(name), n, name));
    TRY(str_add(out, text, n));
    return str_add(out, "\n", 1);
}

err kernel_recipe(const kernel_spec *spec, const char *arch, const char *compiler, str *out) {
    TRY(str_printf(out, "paceline kernel recipe 1\ncompiler %zu %s\ntarget %zu %s\n",
                   strlen(compiler), compiler, strlen(arch), arch));
    for (int i = 0; kernel_option(spec, i); i++)
        TRY(str_printf(out, "option %zu %s\n", strlen(kernel_option(spec, i)),
                       kernel_option(spec, i)));
    for (int i = 0; i < spec->n_hooks; i++)
        TRY(add_text(out, "hook", spec->hooks[i].name, spec->hooks[i].text));
    for (int i = 0; i < spec->n_headers; i++)
        TRY(add_text(out, "header", spec->headers[i]->name, spec->headers[i]->text));
    return add_text(out, "source", spec->source->name, spec->source->text);
}

void kernel_key(const str *recipe, char out[KERNEL_KEY]) {
    file_hash_bytes(recipe->s, recipe->n, out);
}
