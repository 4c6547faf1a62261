/* The supervisor of a trainer: start, wait, judge, start again: see supervise.h.
 *
 * The child is this program again with the same arguments and the option --supervisor PID, by fork and exec: it shares no state with a crashed
 * one. It stands in its own process group, so that a terminal's interrupt reaches it once, through here, and dies by SIGKILL when
 * this process does (PR_SET_PDEATHSIG; a parent that died before that was set is noticed by getppid). Why it failed is read from
 * the run folder: its last word and the update it was at; a new checkpoint is one with another time than before. A child that
 * failed and left no word never owned the folder, so it was refused before the run began. */
#include "cli/supervise.h"
#include "cli/run_folder.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/log.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    LOOK_MS = 20,
    PAUSE_MOST = 60,
    MAX_ARGV = ARGS_MAX_POSITIONAL + 2 * ARGS_MAX_SPECS + 2 * ARGS_MAX_MANY + 8
};

/* SIGTSTP stops both; the others are requests to the child. */
enum { REQUESTS = 3, SIGNALS = 4 };
static const int listened[SIGNALS] = {SIGINT, SIGTERM, SIGHUP, SIGTSTP};
/* Received and not yet passed on: set by the handler, cleared here. */
static volatile sig_atomic_t supervise_received[SIGNALS];

static void on_signal(int sig) {
    for (int i = 0; i < SIGNALS; i++)
        if (listened[i] == sig) supervise_received[i] = 1;
}

typedef struct keeper {
    const args *a;
    const char *run;
    int fresh;
    char *argv[MAX_ARGV]; /* of the child */
    char own_pid[24];
    sigset_t set, before; /* the signals listened to; this thread's mask */
    int ignored[SIGNALS]; /* from whoever started this: nohup */
    pid_t child;          /* 0: none */
    process_id id;
    int asked;       /* a request was passed on: no more starts */
    double saved_at; /* time of the newest checkpoint before this child; 0: none */
    live_end last;   /* the folder's last word before this child */
    int in_vain;     /* crashes in a row without a new checkpoint */
    char cause[640]; /* of the last crash, "" before the first */
    int64_t update;  /* it was at; -1: unknown */
} keeper;

/* ---- the child ---- */

static int add(keeper *k, int n, const char *word) {
    k->argv[n] = (char *)(uintptr_t)word; /* exec takes them writable and leaves them alone */
    return n + 1;
}

/* The same command for the child: what the parser took, without what is for this process. */
static void make_argv(keeper *k) {
    const args *a = k->a;
    int n = add(k, add(k, 0, "paceline"), "train");
    n = add(k, add(k, n, "--supervisor"), k->own_pid);
    for (int i = 0; a->spec[i].name; i++) {
        const char *name = a->spec[i].name;
        const int own = !strcmp(name, "--supervise") || !strcmp(name, "--supervisor") ||
                        (!strcmp(name, "--fresh") && !k->fresh);
        if (own || !a->value[i]) continue;
        n = add(k, n, name);
        if (a->spec[i].kind != ARG_FLAG) n = add(k, n, a->value[i]);
    }
    for (int j = 0; j < a->n_many; j++)
        n = add(k, add(k, n, a->spec[a->many_spec[j]].name), a->many[j]);
    n = add(k, n, "--");
    for (int i = 0; i < a->n_positional; i++) n = add(k, n, a->positional[i]);
    k->argv[n] = NULL;
}

/* Only what may be called after a fork of a process with threads. Signals are blocked until they have their default action. */
static void become_child(const keeper *k, pid_t parent) {
    setpgid(0, 0);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(127);
    for (int i = 0; i < SIGNALS; i++)
        if (!k->ignored[i]) signal(listened[i], SIG_DFL);
    pthread_sigmask(SIG_SETMASK, &k->before, NULL);
    execv("/proc/self/exe", k->argv);
    _exit(127);
}

static err start(keeper *k) {
    const pid_t parent = getpid();
    make_argv(k);
    pthread_sigmask(SIG_BLOCK, &k->set, &k->before);
    k->child = fork();
    if (k->child == 0) become_child(k, parent);
    err e = k->child < 0 ? err_errno("the trainer cannot be started") : ERR_OK;
    pthread_sigmask(SIG_SETMASK, &k->before, NULL);
    if (e) return e;
    setpgid(k->child, k->child); /* here as well: whoever comes first */
    return process_identify(k->child, &k->id);
}

/* The child has not been waited for, so its number is its own. */
static void pass_on(keeper *k) {
    for (int i = 0; i < REQUESTS; i++) {
        if (!supervise_received[i]) continue;
        supervise_received[i] = 0;
        k->asked = 1;
        if (k->child) kill(k->child, listened[i]);
    }
    if (!supervise_received[REQUESTS]) return;
    supervise_received[REQUESTS] = 0;
    if (k->child) kill(k->child, SIGSTOP);
    raise(SIGSTOP); /* until somebody continues this process */
    if (k->child) kill(k->child, SIGCONT);
}

static int wait_for_child(keeper *k) {
    int status = 0;
    for (;;) {
        const pid_t got = waitpid(k->child, &status, WNOHANG);
        if (got == k->child || (got < 0 && errno != EINTR)) break;
        pass_on(k);
        nanosleep(&(struct timespec){0, LOOK_MS * 1000000L}, NULL);
    }
    k->child = 0;
    pass_on(k);
    return status;
}

/* ---- why it ended ---- */

/* Time of the newest checkpoint, 0 when there is none. */
static double newest(const keeper *k) {
    run_folder f;
    double at = 0;
    if (run_folder_read(&f, k->run) == ERR_OK)
        for (int i = 0; i < f.n_saved; i++)
            if (f.saved[i].written > at) at = f.saved[i].written;
    run_folder_free(&f);
    return at;
}

/* The folder's last word, zeros when there is none. */
static void read_last_word(const keeper *k, live_end *out) {
    int found = 0;
    if (!file_is_dir(k->run) || live_read_end(k->run, out, &found)) err_clear();
    if (!found) *out = (live_end){0};
}

/* Whether the last word is this child's: a number may be given twice, as each container begins to count anew. */
static int is_childs(const keeper *k, const live_end *e) {
    return e->pid == k->id.pid && (e->pid != k->last.pid || strcmp(e->at, k->last.at) != 0);
}

/* A child that failed by itself: in words of its own that say so, or before it could leave any. */
static int was_refused(const keeper *k) {
    live_end e;
    read_last_word(k, &e);
    return !is_childs(k, &e) || !strcmp(e.how, "refused");
}

/* What the folder knows of the crash. A child that was killed gets its last word from here. */
static void learn(keeper *k, int status) {
    live_end e;
    char how[96];
    if (WIFSIGNALED(status))
        snprintf(how, sizeof how, "was ended by signal %d (%.60s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(how, sizeof how, "failed with exit code %d", WEXITSTATUS(status));
    snprintf(k->cause, sizeof k->cause, "%s", how);
    k->update = -1;
    if (file_is_dir(k->run) && live_bury(k->run, &k->id, how)) log_warn("%s", err_text());
    read_last_word(k, &e);
    if (!is_childs(k, &e)) return;
    k->update = e.update;
    if (strcmp(e.how, "killed") != 0)
        snprintf(k->cause, sizeof k->cause, "%s: %.500s", how, e.text);
}

/* "" where the update is not known. */
static const char *at_update(const keeper *k, char text[48]) {
    text[0] = 0;
    if (k->update >= 0) snprintf(text, 48, ", at update %lld", (long long)k->update);
    return text;
}

/* The child has said it in its own sentence. */
static err told(err e) {
    err_clear();
    return e;
}

/* After a crash: an error, which is the supervisor's own end, unless the trainer is to be started again. */
static err judge(keeper *k, int status, int64_t left) {
    char before[sizeof k->cause], where[48];
    const int64_t update_before = k->update;
    memcpy(before, k->cause, sizeof before);
    learn(k, status);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 1 && was_refused(k)) return told(ERR_REFUSED);
    const double saved_at = newest(k);
    const int gained = saved_at > 0 && saved_at != k->saved_at;
    k->in_vain = gained ? 0 : k->in_vain + 1;
    if (gained) k->saved_at = saved_at, k->fresh = 0; /* afresh would throw it away */
    const int request =
        WIFSIGNALED(status) &&
        (WTERMSIG(status) == SIGINT || WTERMSIG(status) == SIGTERM || WTERMSIG(status) == SIGHUP);
    if (k->asked || request) return err_set(ERR_REFUSED, "the trainer %s on request", k->cause);
    if (!gained && !strcmp(before, k->cause) && k->update == update_before)
        return err_set(
            ERR_REFUSED,
            "the trainer failed twice in the same way without a new checkpoint between, so "
            "it is not started again: it %s%s",
            k->cause, at_update(k, where));
    if (left <= 0) return err_set(ERR_REFUSED, "the trainer %s, and no restart is left", k->cause);
    return ERR_OK;
}

/* One second, doubled with every crash that gained nothing; a request ends the pause. */
static err pause_before(keeper *k, int64_t number, int64_t of) {
    double seconds = 1;
    for (int i = 1; i < k->in_vain && seconds < PAUSE_MOST; i++) seconds *= 2;
    if (seconds > PAUSE_MOST) seconds = PAUSE_MOST;
    char where[48];
    log_warn("the trainer %s%s; restart %lld of %lld follows in %.0f s", k->cause,
             at_update(k, where), (long long)number, (long long)of, seconds);
    const double end = clock_seconds() + seconds;
    while (!k->asked && clock_seconds() < end) {
        nanosleep(&(struct timespec){0, LOOK_MS * 1000000L}, NULL);
        pass_on(k);
    }
    if (!k->asked) return ERR_OK;
    return err_set(ERR_REFUSED, "the trainer %s, and a stop was asked for before its restart",
                   k->cause);
}

/* ---- the loop ---- */

static err keep(keeper *k, int64_t restarts) {
    for (int64_t done = 0;; done++) {
        read_last_word(k, &k->last);
        TRY(start(k));
        const int status = wait_for_child(k);
        const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        if (code == 0) return ERR_OK;
        if (code == 2) return told(ERR_USAGE);
        if (code == 3) return err_set(ERR_STOPPED, "the trainer stopped by request, state saved");
        TRY(judge(k, status, restarts - done));
        TRY(pause_before(k, done + 1, restarts));
    }
}

static void listen(keeper *k) {
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, old;
    sigemptyset(&sa.sa_mask);
    sigemptyset(&k->set);
    for (int i = 0; i < SIGNALS; i++) {
        sigaddset(&k->set, listened[i]);
        /* nohup's SIGHUP stays ignored, and a shell without job control ignores SIGTSTP. */
        k->ignored[i] = sigaction(listened[i], NULL, &old) == 0 && old.sa_handler == SIG_IGN &&
                        (listened[i] == SIGHUP || listened[i] == SIGTSTP);
        if (!k->ignored[i]) sigaction(listened[i], &sa, NULL);
    }
}

err supervise(const args *a, const char *run, int64_t restarts) {
    keeper k = {.a = a, .run = run, .fresh = args_has(a, "--fresh"), .update = -1};
    snprintf(k.own_pid, sizeof k.own_pid, "%ld", (long)getpid());
    k.saved_at = newest(&k);
    listen(&k);
    return keep(&k, restarts);
}
