/* Runs the program under test: see run.h. Output goes through a temporary file, so a child that prints
 * a lot cannot block. A child that a signal ends has the code 128 + signal. There is no time limit here:
 * the test runner has one. */
#include "support/run.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void child(const char *const *env, const char *const *args, int out) {
    const char *program = getenv("PACELINE_PROGRAM");
    const char *argv[128] = {program && *program ? program : "build/paceline"};
    for (int i = 0; args[i] && i < 126; i++) argv[i + 1] = args[i];
    for (int i = 0; env && env[i]; i++) putenv((char *)(unsigned long)env[i]);
    if (dup2(out, 1) < 0 || dup2(out, 2) < 0) _exit(126);
    if (!freopen("/dev/null", "r", stdin)) _exit(126);
    execv(argv[0], (char *const *)(unsigned long)argv);
    _exit(127);
}

static int code_of(int status) {
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

pid_t run_start(const char *const *env, const char *const *args, const char *output) {
    int out = open(output, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (out < 0) abort();
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) abort();
    if (pid == 0) child(env, args, out);
    close(out);
    return pid;
}

int run_wait(pid_t pid, int ms) {
    int status;
    for (int waited = 0; waited < ms; waited++) {
        if (waitpid(pid, &status, WNOHANG) == pid) return code_of(status);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    return -1;
}

void run_read(run_result *r, const char *output) {
    FILE *f = fopen(output, "r");
    if (!f) abort();
    r->text[fread(r->text, 1, sizeof r->text - 1, f)] = 0;
    fclose(f);
}

void run_program(run_result *r, const char *const *env, const char *const *args) {
    int status = 0;
    FILE *out = tmpfile();
    if (!out) abort();
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) abort();
    if (pid == 0) child(env, args, fileno(out));
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    r->code = code_of(status);
    rewind(out);
    r->text[fread(r->text, 1, sizeof r->text - 1, out)] = 0;
    fclose(out);
}
