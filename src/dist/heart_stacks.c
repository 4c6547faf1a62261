/* Stacks of a heart's roles: a signal to each thread, whose handler writes its own stack into the role's slot.
 *
 * The signal carries the address of the slot and counts only when this process queued it, so nothing global is needed. The handler
 * does three things: it claims a slot that was asked for, unwinds, and says ready. Signals are queued under the heart's lock to
 * roles that have not left, so no thread that is gone is ever signalled; a role that leaves takes back what is still pending.
 * Reading symbols happens afterwards, in the asking thread. A thread that is stuck in the kernel cannot answer and is named so. */
#include "core/symbol.h"
#include "dist/heart_private.h"
#include <errno.h>
#include <execinfo.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { ANSWER_MS = 2000 };

static void answer(int sig, siginfo_t *info, void *context) {
    (void)sig;
    if (info->si_code != SI_QUEUE || info->si_pid != getpid()) return; /* somebody else's */
    heart_role *r = info->si_value.sival_ptr;
    int asked = HEART__ASKED;
    if (!atomic_compare_exchange_strong(&r->slot, &asked, HEART__WRITING)) return;
    const int saved = errno;
#if defined(__x86_64__)
    r->interrupted = (void *)((const ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    r->interrupted = (void *)((const ucontext_t *)context)->uc_mcontext.pc;
#else
    (void)context;
    r->interrupted = NULL;
#endif
    r->n_frames = backtrace(r->frames, HEART__FRAMES);
    errno = saved;
    atomic_store(&r->slot, HEART__READY);
}

/* A real-time signal that has its default action, from the top of the range: the low ones are in use by habit. */
err heart__take_signal(int *out) {
    void *first[4];
    backtrace(first, 4); /* loads the unwinder now: the handler must not */
    for (int sig = SIGRTMAX; sig >= SIGRTMIN; sig--) {
        struct sigaction now, mine = {.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK};
        mine.sa_sigaction = answer;
        sigemptyset(&mine.sa_mask);
        if (sigaction(sig, NULL, &now) != 0 || (now.sa_flags & SA_SIGINFO) ||
            now.sa_handler != SIG_DFL)
            continue;
        if (sigaction(sig, &mine, &now) != 0) continue;
        if (!(now.sa_flags & SA_SIGINFO) && now.sa_handler == SIG_DFL) {
            *out = sig;
            return ERR_OK;
        }
        sigaction(sig, &now, NULL); /* taken by another between the two calls */
    }
    return err_set(ERR_REFUSED, "all real-time signals of this process are in use; a run needs "
                                "one to tell where its threads stand");
}

void heart__give_signal(int sig) { signal(sig, SIG_DFL); }

void heart__open_to_signal(heart_role *r) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, r->h->signal);
    pthread_sigmask(SIG_UNBLOCK, &set, &r->mask_before);
}

void heart__close_to_signal(heart_role *r) {
    const struct timespec none = {0, 0};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, r->h->signal);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    while (sigtimedwait(&set, NULL, &none) > 0) {
    }
    pthread_sigmask(SIG_SETMASK, &r->mask_before, NULL);
}

static void ask(heart *h, heart_role *r) {
    atomic_compare_exchange_strong(&r->slot, &(int){HEART__READY}, HEART__IDLE);
    if (!atomic_compare_exchange_strong(&r->slot, &(int){HEART__IDLE}, HEART__ASKED)) return;
    pthread_mutex_lock(&h->lock);
    const int sent = !atomic_load(&r->left) &&
                     pthread_sigqueue(r->thread, h->signal, (union sigval){.sival_ptr = r}) == 0;
    pthread_mutex_unlock(&h->lock);
    if (!sent) atomic_compare_exchange_strong(&r->slot, &(int){HEART__ASKED}, HEART__IDLE);
}

static int unanswered(const heart *h, int n) {
    int k = 0;
    for (int i = 0; i < n; i++) {
        const int slot = atomic_load(&h->roles[i].slot);
        k += !atomic_load(&h->roles[i].left) && (slot == HEART__ASKED || slot == HEART__WRITING);
    }
    return k;
}

/* The frames from where the thread was: what lies before is the handler's own. */
static int first_frame(const heart_role *r) {
    for (int i = 0; i < r->n_frames; i++)
        if (r->interrupted && r->frames[i] == r->interrupted) return i;
    return 0;
}

static err print_stack(heart_role *r, symbol_table *names, str *out) {
    if (atomic_load(&r->left)) return ERR_OK;
    TRY(str_printf(out, "stack of %s:\n", r->name));
    if (atomic_load(&r->slot) != HEART__READY) {
        /* Withdrawn, so that a late answer does not write while somebody reads. */
        atomic_compare_exchange_strong(&r->slot, &(int){HEART__ASKED}, HEART__IDLE);
        return str_printf(out, "  the thread does not answer within %d s\n", ANSWER_MS / 1000);
    }
    const int first = first_frame(r);
    for (int i = first; i < r->n_frames; i++) {
        char text[SYMBOL_TEXT];
        /* What was called returns behind the call; the name is that of the call itself. */
        const uintptr_t at = (uintptr_t)r->frames[i] - (i > first);
        TRY(str_printf(out, "  %s\n", symbol_text(names, at, text)));
    }
    return ERR_OK;
}

err heart_stacks(heart *h, str *out) {
    symbol_table *names;
    TRY(symbol_open(&names));
    pthread_mutex_lock(&h->asking);
    const int n = atomic_load(&h->n_roles);
    for (int i = 0; i < n; i++)
        if (!atomic_load(&h->roles[i].left)) ask(h, &h->roles[i]);
    for (int ms = 0; ms < ANSWER_MS && unanswered(h, n); ms++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    err e = ERR_OK;
    for (int i = 0; i < n && !e; i++) e = print_stack(&h->roles[i], names, out);
    pthread_mutex_unlock(&h->asking);
    symbol_close(names);
    return e;
}
