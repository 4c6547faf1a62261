/* Writes the tiny target of tests/support/chat_gguf.h to a file, for test scripts:
 * make_tiny OUT.gguf [SEED]. The same seed gives the same bytes everywhere.
 * It is a tool of the tests, not a test. */
#include "support/chat_gguf.h"
#include <stdlib.h>

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    chat_gguf_write(argv[1], &(chat_gguf){.seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 11});
    return 0;
}
