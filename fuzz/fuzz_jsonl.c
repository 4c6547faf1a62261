/* Fuzzes the reader of training rows: any line gives a conversation or a sentence with a reason, never a crash.
 *
 * Several lines per input, so that memory reused from line to line is exercised. Tokenizing is left out: it takes
 * any bytes and has its own tests. */
#include "data/data_private.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    data__chat chat = {0};
    data__line l = {.path = "fuzz"};
    for (size_t at = 0; at < n; at += l.n + 1) {
        const uint8_t *newline = memchr(data + at, '\n', n - at);
        l.s = (const char *)data + at;
        l.n = newline ? (size_t)(newline - data) - at : n - at;
        l.offset = at;
        l.number++;
        data__reason reason = DATA__REASONS;
        err e = data__parse_line(&l, &chat, &reason);
        if (e == ERR_FORMAT &&
            (!data_reason_name((int)reason) || !strstr(err_text(), "fuzz: line ")))
            abort();
        if (e && e != ERR_FORMAT) abort();
        if (e == ERR_OK && chat.n < 1) abort();
        for (int i = 0; e == ERR_OK && i < chat.n; i++)
            if (!chat_role_known(chat.m[i].role) ||
                strlen(chat.m[i].content) != chat.m[i].content_len)
                abort();
    }
    data__chat_free(&chat);
    return 0;
}
