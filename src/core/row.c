/* Metric rows: a JSON object built in one buffer and appended with one write.
 *
 * Failures while a row is built (memory) are kept and returned by row_end, so building reads plainly.
 * Reals are printed with the fewest of 15, 16 or 17 digits that read back to the same value.
 * Reading rows is the business of the report; here is only the little scanning that mending and
 * trimming need: line ends, and one integer field at the top level of a row. */
#include "core/row.h"
#include "core/arena.h"
#include "core/file.h"
#include "core/str.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct row_file {
    int fd;
    int fields;
    err failed; /* first failure while the present row was built */
    char *path;
    str line;
};

/* Cuts the file behind byte `size`. */
static err cut_file(const char *path, size_t size) {
    if (truncate(path, (off_t)size) != 0) return err_errno("the end of %s cannot be cut off", path);
    return ERR_OK;
}

/* Bytes up to and with the last line end. */
static size_t whole_lines(const char *data, size_t size) {
    while (size && data[size - 1] != '\n') size--;
    return size;
}

static err mend(const char *path) {
    char *data;
    size_t size;
    TRY(file_read(path, &data, &size));
    size_t whole = whole_lines(data, size);
    mem_free(data);
    return whole == size ? ERR_OK : cut_file(path, whole);
}

err row_open(row_file **out, const char *path) {
    *out = NULL;
    row_file *f;
    TRY(mem_new(1, sizeof *f, &f));
    f->fd = -1;
    err e;
    TRY_GOTO(mem_new(strlen(path) + 1, 1, &f->path), failed);
    memcpy(f->path, path, strlen(path) + 1);
    f->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (f->fd < 0) {
        e = err_errno("%s cannot be opened for writing", path);
        goto failed;
    }
    struct stat st;
    if (fstat(f->fd, &st) == 0 && S_ISREG(st.st_mode)) TRY_GOTO(mend(path), failed);
    *out = f;
    return ERR_OK;
failed:
    row_close(f);
    return e;
}

void row_close(row_file *f) {
    if (!f) return;
    if (f->fd >= 0) close(f->fd);
    str_free(&f->line);
    mem_free(f->path);
    mem_free(f);
}

void row_begin(row_file *f) {
    str_clear(&f->line);
    f->fields = 0;
    f->failed = str_add(&f->line, "{", 1);
}

static void add(row_file *f, const char *text) {
    if (!f->failed) f->failed = str_add(&f->line, text, strlen(text));
}

static void add_string(row_file *f, const char *s) {
    add(f, "\"");
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (f->failed) return;
        if (c == '"' || c == '\\')
            f->failed = str_printf(&f->line, "\\%c", c);
        else if (c < 0x20)
            f->failed = str_printf(&f->line, "\\u%04x", c);
        else
            f->failed = str_add(&f->line, s, 1);
    }
    add(f, "\"");
}

static void add_real(row_file *f, double v) {
    if (f->failed) return;
    if (isnan(v)) {
        add(f, "\"NaN\"");
    } else if (isinf(v)) {
        add(f, v > 0 ? "\"Infinity\"" : "\"-Infinity\"");
    } else {
        char text[40];
        for (int digits = 15; digits <= 17; digits++) {
            snprintf(text, sizeof text, "%.*g", digits, v);
            if (strtod(text, NULL) == v) break; /* 17 digits always do */
        }
        add(f, text);
        if (!strpbrk(text, ".e")) add(f, ".0"); /* stays a real for strict readers */
    }
}

static void key(row_file *f, const char *name) {
    if (f->fields++) add(f, ", ");
    add_string(f, name);
    add(f, ": ");
}

void row_int(row_file *f, const char *k, int64_t v) {
    key(f, k);
    if (!f->failed) f->failed = str_printf(&f->line, "%lld", (long long)v);
}

void row_real(row_file *f, const char *k, double v) {
    key(f, k);
    add_real(f, v);
}

void row_text(row_file *f, const char *k, const char *v) {
    key(f, k);
    add_string(f, v);
}

void row_reals(row_file *f, const char *k, const double *v, int n) {
    key(f, k);
    add(f, "[");
    for (int i = 0; i < n; i++) {
        if (i) add(f, ", ");
        add_real(f, v[i]);
    }
    add(f, "]");
}

err row_end(row_file *f) {
    add(f, "}\n");
    if (f->failed) return err_context(f->failed, "%s: ", f->path);
    return file_write_fd(f->fd, f->line.s, f->line.n, f->path);
}

/* Past the string that starts at line[i] == '"'. */
static size_t skip_string(const char *line, size_t n, size_t i) {
    for (i++; i < n && line[i] != '"'; i++)
        if (line[i] == '\\') i++;
    return i + 1;
}

/* Finds the integer field `name` at the top level of one row; 1 if it is there. */
static int find_int(const char *line, size_t n, const char *name, int64_t *out) {
    size_t length = strlen(name);
    int depth = 0;
    for (size_t i = 0; i < n;) {
        char c = line[i];
        if (c == '{' || c == '[') depth++;
        if (c == '}' || c == ']') depth--;
        if (c != '"') {
            i++;
            continue;
        }
        size_t end = skip_string(line, n, i), at = end;
        int match = depth == 1 && end <= n && end - i == length + 2 &&
                    memcmp(line + i + 1, name, length) == 0;
        i = end;
        while (at < n && (line[at] == ' ' || line[at] == '\t')) at++;
        if (!match || at >= n || line[at] != ':') continue;
        char *stop;
        errno = 0;
        long long v =
            strtoll(line + at + 1, &stop, 10); /* ends at the line's own '\n' at the latest */
        if (errno || stop == line + at + 1 || *stop == '.' || *stop == 'e') return 0;
        *out = v;
        return 1;
    }
    return 0;
}

err row_trim(const char *path, const char *k, int64_t max) {
    if (!file_exists(path)) return ERR_OK;
    char *data;
    size_t size;
    TRY(file_read(path, &data, &size));
    size_t cut = whole_lines(data, size);
    for (size_t end = cut; end;) {
        size_t start = whole_lines(data, end - 1);
        int64_t v;
        if (find_int(data + start, end - start, k, &v)) {
            if (v <= max) break;
            cut = start; /* rows without the field between two removed ones go with them */
        }
        end = start;
    }
    mem_free(data);
    return cut == size ? ERR_OK : cut_file(path, cut);
}
