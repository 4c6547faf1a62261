/* Log lines for people.
 *
 * One sink for the process (allow-listed state), stderr by default; set once at start by the program.
 * Lines below the level are dropped. Thread safe; one write per line. */
#ifndef CORE_LOG_H
#define CORE_LOG_H
#include "core/err.h"

typedef enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR } log_level;
typedef void (*log_sink)(void *ctx, log_level level, const char *line);
void log_set_sink(log_sink sink, void *ctx); /* NULL: stderr */
void log_set_level(log_level level);
int log_parse_level(const char *name, log_level *out); /* debug, info, warn, error; 1 if known */
void log_line(log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)
#define log_info(...)  log_line(LOG_INFO, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)

#endif
