/* Printing findings: see doctor_print.h.
 *
 * The column of names is as wide as the longest name of its section, within bounds. Breaks are at blanks; a word that is
 * longer than a line, as a path may be, stays whole. */
#include "cli/doctor_print.h"
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { NARROW = 12, WIDE = 26, LEAST_TEXT = 30 };

int doctor_print_width(FILE *f) {
    struct winsize w;
    int fd = fileno(f);
    if (!isatty(fd) || ioctl(fd, TIOCGWINSZ, &w) || !w.ws_col) return 0;
    return w.ws_col;
}

static const char *get(const json_t *f, const char *key) {
    const char *v = json_string_value(json_object_get(f, key));
    return v ? v : "";
}

/* Text from column indent on, lines broken before width. */
static void put(FILE *f, const char *text, int indent, int width) {
    int room = width - indent, first = 1;
    while (*text) {
        size_t n = strlen(text);
        if (width && room >= LEAST_TEXT && n > (size_t)room) {
            size_t at = (size_t)room;
            while (at && text[at] != ' ') at--;
            if (!at) at = strcspn(text, " ");
            n = at;
        }
        fprintf(f, "%*s%.*s\n", first ? 0 : indent, "", (int)n, text);
        text += n + strspn(text + n, " ");
        first = 0;
    }
}

/* Longest name of the section that begins at i. */
static int column(const json_t *findings, size_t i) {
    int widest = NARROW;
    const char *topic = get(json_array_get(findings, i), "topic");
    for (; i < json_array_size(findings); i++) {
        const json_t *f = json_array_get(findings, i);
        int n = (int)strlen(get(f, "item"));
        if (strcmp(get(f, "topic"), topic)) break;
        if (n > widest) widest = n < WIDE ? n : WIDE;
    }
    return widest;
}

void doctor_print(FILE *f, const json_t *findings, int width) {
    const char *topic = "", *item = "";
    int names = 0, problems = 0;
    for (size_t i = 0; i < json_array_size(findings); i++) {
        const json_t *one = json_array_get(findings, i);
        const char *fix = get(one, "fix"), *here = get(one, "item");
        if (strcmp(topic, get(one, "topic"))) {
            topic = get(one, "topic");
            fprintf(f, "%s%s\n", i ? "\n" : "", topic);
            names = column(findings, i);
            item = "";
        }
        int same = !strcmp(item, here);
        fprintf(f, "%c %-*s  ", *fix ? '!' : ' ', names, same ? "" : here);
        if (!same && (int)strlen(here) > names) fprintf(f, "\n%*s", names + 4, "");
        put(f, get(one, "finding"), names + 4, width);
        if (*fix) {
            problems++;
            fprintf(f, "%*sfix: ", names + 4, "");
            put(f, fix, names + 9, width);
        }
        item = here;
    }
    if (problems)
        fprintf(f, "\n%d finding%s to look at, marked with '!'\n", problems,
                problems == 1 ? "" : "s");
    else
        fprintf(f, "\nnothing to mend\n");
}
