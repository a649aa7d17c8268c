/* fault.h - private to fault: the wrapper and its requests under way.
 *
 * fault.c has the calls and the crash, requests.c the requests and the pages that they write,
 * holds.c the holds; names.h keeps the names that are not durable, settings.h the wrapper's
 * settings. */
#ifndef HOLDFAST_TESTS_FAULT_FAULT_H
#define HOLDFAST_TESTS_FAULT_FAULT_H

#include "storage/engine/engine.h"
#include "tests/fault/names.h"
#include "tests/fault/settings.h"

#include <pthread.h>

struct fault_object {
    struct storage_base base;
    struct fault_object *next;
    struct storage_object *inner;
    uint64_t bytes;
    /* Of created objects only; guarded by the wrapper's mutex. */
    unsigned char *written, *durable;
    uint64_t *stamps;
    uint64_t num_dirty;
    bool closed; /* by the caller; kept for the crash because it is not clean */
    bool dead;   /* opened before a crash */
};

/* A small object that its holder keeps locked. */
struct fault_hold {
    struct fault_hold *next;
    struct storage_hold *inner; /* NULL: the power went while it was held */
    char key[STORAGE_KEY_MAX + 1];
};

struct fault_io; /* a request on its way */

struct fault {
    struct storage_base base;
    struct fault_settings settings;
    struct storage *inner;
    char text[512];
    pthread_t thread;
    pthread_mutex_t names_mutex; /* guards names and holds; taken before `mutex` */
    struct fault_names names;
    struct fault_hold *holds;
    pthread_mutex_t mutex; /* guards all below, and the images of objects */
    pthread_cond_t wake;   /* the thread has something to do */
    pthread_cond_t idle;   /* no request is on its way */
    uint64_t random;
    uint64_t num_operations;
    uint64_t clock; /* counts completions, so that stamps are ordered */
    struct fault_object *objects;
    struct fault_io *steps; /* by due_us, then first come first served */
    struct fault_io *spare;
    uint64_t num_on_the_way;
    bool crashing, stop;
};

static inline struct fault *fault_of(struct storage *storage)
{
    return (struct fault *)storage;
}

/* Counts an operation and returns its injected error, or 0. Call without a mutex. */
int fault_begin(struct fault *fault, const char *what, const char *key);

/* ---- chance; the mutex is held ---- */

uint64_t fault_draw(struct fault *fault);
bool fault_chance(struct fault *fault, double rate);
/* Counts an operation of the name `what` on that key ("": no key); true when it fails. */
bool fault_operation_fails(struct fault *fault, const char *what, const char *key);

/* ---- requests ---- */

void fault_submit(struct storage *storage, struct storage_request *request);
/* The wrapper's thread, until `stop`; `argument` is the wrapper. */
void *fault_run(void *argument);
/* Frees the blocks that are kept for later requests. */
void fault_free_requests(struct fault *fault);
/* A power loss: decides which unsynced pages are on the disk. Call with the mutex held. */
int fault_crash_pages(struct fault *fault, struct fault_object *object);

/* ---- holds ---- */

int fault_hold(struct storage *storage, struct storage_hold **out, const char *key,
               const void *data, size_t bytes);
void fault_release(struct storage *storage, struct storage_hold *base, bool stays);
int fault_find_holder(struct storage *storage, const char *key);
int fault_sweep(struct storage *storage, const char *prefix, struct storage_sweep *sweep);
/* A power loss, which ends the holders, too. The list of names decides whether their files stay.
 * Both mutexes are held. */
int fault_crash_holds(struct fault *fault);

#endif
