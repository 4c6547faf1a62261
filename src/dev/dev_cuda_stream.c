/* Streams and events of a CUDA device: see dev_cuda.h.
 *
 * Streams do not wait for the legacy default stream, which nothing here uses. Events keep times, so that spans on the
 * device can be told; waiting for one puts the host's thread to sleep where the driver can. */
#include "core/arena.h"
#include "dev/dev_cuda.h"
#include "dev/dev_cuda_private.h"
#include "dev/dev_private.h"

enum { NON_BLOCKING = 1, BLOCKING_SYNC = 1 };

struct dev_event {
    dev *d;
    cuda_event event;
};

err dev_stream_create(dev_stream **out, dev *d) {
    dev_stream *s;
    *out = NULL;
    TRY(dev_cuda__enter(d));
    TRY(mem_new(1, sizeof *s, &s));
    s->d = d;
    int rc = d->cuda->driver->stream_create(&s->stream, NON_BLOCKING);
    if (rc) {
        mem_free(s);
        return dev_cuda__check(d, rc, "cuStreamCreate", NULL);
    }
    *out = s;
    return ERR_OK;
}

void dev_stream_destroy(dev_stream *s) {
    if (!s) return;
    if (!dev_cuda__enter(s->d)) {
        s->d->cuda->driver->stream_wait(s->stream);
        s->d->cuda->driver->stream_destroy(s->stream);
    }
    mem_free(s);
}

err dev_stream_wait(dev_stream *s) {
    TRY(dev_cuda__enter(s->d));
    return dev_cuda__check(s->d, s->d->cuda->driver->stream_wait(s->stream), "cuStreamSynchronize",
                           NULL);
}

dev *dev_stream_device(const dev_stream *s) { return s->d; }

err dev_event_create(dev_event **out, dev *d) {
    dev_event *e;
    *out = NULL;
    TRY(dev_cuda__enter(d));
    TRY(mem_new(1, sizeof *e, &e));
    e->d = d;
    int rc = d->cuda->driver->event_create(&e->event, BLOCKING_SYNC);
    if (rc) {
        mem_free(e);
        return dev_cuda__check(d, rc, "cuEventCreate", NULL);
    }
    *out = e;
    return ERR_OK;
}

void dev_event_destroy(dev_event *e) {
    if (!e) return;
    if (!dev_cuda__enter(e->d)) e->d->cuda->driver->event_destroy(e->event);
    mem_free(e);
}

err dev_event_record(dev_event *e, dev_stream *s) {
    TRY(dev_cuda__enter(s->d));
    return dev_cuda__check(s->d, s->d->cuda->driver->event_record(e->event, s->stream),
                           "cuEventRecord", NULL);
}

err dev_event_hold(dev_stream *s, const dev_event *e) {
    TRY(dev_cuda__enter(s->d));
    return dev_cuda__check(s->d, s->d->cuda->driver->stream_hold(s->stream, e->event, 0),
                           "cuStreamWaitEvent", NULL);
}

err dev_event_wait(dev_event *e) {
    TRY(dev_cuda__enter(e->d));
    return dev_cuda__check(e->d, e->d->cuda->driver->event_wait(e->event), "cuEventSynchronize",
                           NULL);
}

err dev_event_ms(const dev_event *from, const dev_event *to, double *out) {
    float ms = 0;
    TRY(dev_cuda__enter(to->d));
    int rc = to->d->cuda->driver->event_ms(&ms, from->event, to->event);
    *out = ms;
    return dev_cuda__check(to->d, rc, "cuEventElapsedTime", NULL);
}
