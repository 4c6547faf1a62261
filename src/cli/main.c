/* The program: finds the sub-command, parses its options, runs it, turns errors into one line and an
 * exit code. All work is in the commands (cmd_*.c) and the libraries below; nothing is computed
 * here. */
#include "cli/bus_error.h"
#include "cli/command.h"
#include "cli/linked.h"
#include "core/env.h"
#include "core/log.h"
#include "core/pool.h"
#include "core/thread.h"
#include "core/version.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static const command *const commands[] = {
    &command_train,      &command_plan,   &command_status, &command_stop,   &command_generate,
    &command_regenerate, &command_bench,  &command_probe,  &command_attend, &command_mask,
    &command_inspect,    &command_warmup, &command_cache,  &command_doctor,
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void print_help(FILE *f) {
    fprintf(f, "paceline " VERSION_TEXT
               ": trains DFlash drafters for speculative decoding and decodes with them\n\n"
               "usage: paceline COMMAND [options]\n\ncommands:\n");
    for (int i = 0; i < COMMANDS; i++)
        fprintf(f, "  %-11s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(f, "\n'paceline COMMAND --help' shows a command's options.\n\nenvironment:\n");
    for (int i = 0; i < ENV_COUNT; i++)
        fprintf(f, "  %-20s %s\n", env_name((env_key)i), env_help((env_key)i));
    fprintf(
        f,
        "\nexit codes: 0 done, 1 failed, 2 usage or recipe, 3 stopped by request with state saved\n");
}

static int exit_code(err e) {
    if (e == ERR_OK) return 0;
    if (e == ERR_USAGE || e == ERR_RECIPE || e == ERR_SYNTAX) return 2;
    return e == ERR_STOPPED ? 3 : 1;
}

/* An error without a text was told already, by the process that this one started (cli/supervise.h). */
static int fail(const char *name, err e) {
    fflush(stdout);
    if (err_text()[0])
        fprintf(stderr, "paceline%s%s: %s\n", name ? " " : "", name ? name : "", err_text());
    return exit_code(e);
}

/* A standard stream that the caller closed must not become a file of ours: its number is taken by
 * something that cannot be read or written as wanted, so using it is an error and nothing else. A file that
 * outgrows a limit is an error too, not the end of the process. */
static int prepare_process(void) {
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) != fd) return -1;
    bus_error_listen();
    return signal(SIGXFSZ, SIG_IGN) == SIG_ERR ? -1 : 0;
}

static int finish(const char *name) {
    if (!fflush(stdout) && !ferror(stdout)) return 0;
    fprintf(stderr, "paceline%s%s: standard output could not be written\n", name ? " " : "",
            name ? name : "");
    return 1;
}

static int command_help(const command *c) {
    str s = {0};
    err e = args_help(c->spec, &s);
    if (e) return fail(c->name, e);
    printf("%s\n\nusage: paceline %s\n\n%s", c->summary, c->usage, s.s ? s.s : "");
    if (c->details) printf("%s%s\n", s.s ? "\n" : "", c->details);
    str_free(&s);
    return finish(c->name);
}

static int run_command(const command *c, int argc, char **argv) {
    const char *level = env_get(ENV_PACELINE_LOG);
    log_level chosen;
    args a;
    if (level && !log_parse_level(level, &chosen))
        return fail(c->name,
                    err_set(ERR_USAGE,
                            "PACELINE_LOG is '%s'; it must be debug, info, warn or error", level));
    if (level) log_set_level(chosen);
    err e = args_parse(&a, c->spec, argc, argv, c->min_pos, c->max_pos);
    if (e) return fail(c->name, e);
    if (a.help) return command_help(c);
    e = c->run(&a);
    if (e) return fail(c->name, e);
    return finish(c->name);
}

/* Commands run on a thread whose stack is there from the start: the first one grows on demand, and where there is no
 * memory for that the process would die without a word. */
typedef struct call {
    const command *c;
    int argc;
    char **argv;
    int code;
} call;

static void *call_main(void *ctx) {
    call *x = ctx;
    x->code = run_command(x->c, x->argc, x->argv);
    return NULL;
}

static int run_on_own_stack(const command *c, int argc, char **argv) {
    call x = {c, argc, argv, 1};
    pthread_t id;
    const int failed = thread_start(&id, 2 * POOL_STACK, THREAD_SIGNALS, call_main, &x);
    if (failed) {
        errno = failed;
        return fail(c->name, err_errno("no memory for a stack of %d MiB", 2 * POOL_STACK >> 20));
    }
    pthread_join(id, NULL);
    return x.code;
}

static int unknown_command(const char *word) {
    const char *names[COMMANDS];
    for (int i = 0; i < COMMANDS; i++) names[i] = commands[i]->name;
    const char *near = str_nearest(word, names, COMMANDS);
    fprintf(stderr, "paceline: unknown command '%s'%s%s%s; 'paceline --help' lists the commands\n",
            word, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    return 2;
}

int main(int argc, char **argv) {
    if (prepare_process()) return 1;
    if (linked_check()) return fail(NULL, ERR_REFUSED);
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        print_help(stdout);
        return finish(NULL);
    }
    if (!strcmp(argv[1], "--version")) {
        printf("paceline " VERSION_TEXT "\n");
        return finish(NULL);
    }
    for (int i = 0; i < COMMANDS; i++)
        if (!strcmp(argv[1], commands[i]->name))
            return run_on_own_stack(commands[i], argc - 2, argv + 2);
    return unknown_command(argv[1]);
}
