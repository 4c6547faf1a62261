/* SIGBUS: a mapped file was cut, or its disk failed, while it was read.
 *
 * The process cannot go on, and ends by the signal as it would have; but the file is named first, on standard error. It neither repairs
 * nor hides anything. */
#ifndef CLI_BUS_ERROR_H
#define CLI_BUS_ERROR_H

void bus_error_listen(void);

#endif
