/* Log lines for people.
 *
 * One sink for the process (allow-listed state), stderr by default; set once at start by the program. A run adds its file.
 * Lines below the level are dropped. Thread safe; one write per line. */
#ifndef CORE_LOG_H
#define CORE_LOG_H
#include "core/err.h"
#include <stddef.h>

typedef enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR } log_level;
typedef void (*log_sink)(void *ctx, log_level level, const char *line);
void log_set_sink(log_sink sink, void *ctx); /* NULL: stderr */
void log_set_level(log_level level);
int log_parse_level(const char *name, log_level *out); /* debug, info, warn, error; 1 if known */
/* Lines go to a file too, each with its UTC time, whatever the sink: path, which is continued, and when it has reached max_bytes it becomes
 * path.1, path.1 becomes path.2 and so on; files are kept in all, of max_bytes at most. One file a process: ERR_REFUSED for a second. */
MUST_CHECK err log_file_open(const char *path, size_t max_bytes, int files);
void log_file_close(void); /* none open: fine */
/* To the file alone: what whoever started the run is told anyway. Nowhere when no file is open. */
void log_file_line(log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);
void log_line(log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* A text of several lines, each as a line of its own: no bound on the whole. */
void log_lines(log_level level, const char *text);
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)
#define log_info(...)  log_line(LOG_INFO, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)

#endif
