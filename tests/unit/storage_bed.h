/* storage_bed.h - shared by the tests of storage/: a directory per process, aligned buffers with a
 * pattern, and requests that a test waits for by count. */
#ifndef HOLDFAST_TESTS_STORAGE_BED_H
#define HOLDFAST_TESTS_STORAGE_BED_H

#include "storage/storage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>
#include <ftw.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BED_PATH_BYTES 256

/* Skips a test where the system refuses io_uring. The check avoids our engine: it makes a call
 * without its argument, which fails for that reason where io_uring is permitted. */
static inline bool bed_has_io_uring(void)
{
    return syscall(SYS_io_uring_setup, 1, NULL) >= 0 || errno == EFAULT;
}

static inline void bed_skip_without_io_uring(void **state)
{
    (void)state;
    print_message("# the system refuses io_uring\n");
    skip();
}

static inline void bed_needs_io_uring(struct CMUnitTest *test)
{
    if (!bed_has_io_uring())
        *test = (struct CMUnitTest){test->name, bed_skip_without_io_uring, NULL, NULL, NULL};
}

/* A directory of this process below TMPDIR (a real disk: /tmp may be a tmpfs). */
static inline void bed_make_directory(char out[BED_PATH_BYTES])
{
    const char *parent = getenv("TMPDIR");
    snprintf(out, BED_PATH_BYTES, "%s/hf-storage-XXXXXX", parent ? parent : "/var/tmp");
    assert_non_null(mkdtemp(out));
}

static inline int bed_remove_one(const char *path, const struct stat *status, int type,
                                 struct FTW *walk)
{
    (void)status, (void)type, (void)walk;
    return remove(path);
}

static inline void bed_remove_directory(const char *path)
{
    assert_int_equal(nftw(path, bed_remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

static inline unsigned char *bed_buffer(size_t bytes)
{
    unsigned char *buffer = aligned_alloc(STORAGE_ALIGN, bytes);
    assert_non_null(buffer);
    memset(buffer, 0, bytes);
    return buffer;
}

/* Bytes that differ from page to page and from number to number, and are never zero. */
static inline void bed_fill(unsigned char *data, size_t bytes, uint64_t number)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(1 + (i * 31 + i / STORAGE_ALIGN * 7 + number * 131) % 251);
}

/* Counts callbacks, and detects two at once: `running` is a plain variable on purpose. */
struct bed_wait {
    pthread_mutex_t mutex;
    pthread_cond_t more;
    uint32_t num_done;
    int running;
    int overlaps;
};

static inline void bed_wait_init(struct bed_wait *wait)
{
    *wait = (struct bed_wait){0};
    pthread_mutex_init(&wait->mutex, NULL);
    pthread_cond_init(&wait->more, NULL);
}

static inline void bed_wait_deinit(struct bed_wait *wait)
{
    pthread_mutex_destroy(&wait->mutex);
    pthread_cond_destroy(&wait->more);
}

static inline void bed_count_done(struct storage_request *request)
{
    struct bed_wait *wait = request->user;
    wait->overlaps += wait->running++;
    pthread_mutex_lock(&wait->mutex);
    wait->running--;
    wait->num_done++;
    pthread_cond_broadcast(&wait->more);
    pthread_mutex_unlock(&wait->mutex);
}

static inline void bed_wait_for(struct bed_wait *wait, uint32_t count)
{
    pthread_mutex_lock(&wait->mutex);
    while (wait->num_done < count)
        pthread_cond_wait(&wait->more, &wait->mutex);
    pthread_mutex_unlock(&wait->mutex);
}

static inline struct storage_request bed_request(enum storage_op op, struct storage_object *object,
                                                 uint64_t offset, void *data, uint32_t bytes,
                                                 struct bed_wait *wait)
{
    return (struct storage_request){
        .op = op,
        .object = object,
        .offset = offset,
        .data = data,
        .bytes = bytes,
        .buffer = -1,
        .done = bed_count_done,
        .user = wait,
    };
}

/* Creates `key` with `bytes` of pattern `number`, written and synced; closed unless `out` is given.
 */
static inline void bed_put(struct storage *storage, struct storage_object **out, const char *key,
                           uint32_t bytes, uint64_t number)
{
    struct storage_object *object;
    unsigned char *data = bed_buffer(bytes);
    bed_fill(data, bytes, number);
    assert_int_equal(storage_object_create(storage, &object, key, bytes), 0);
    assert_int_equal(storage_transfer(storage, STORAGE_WRITE, object, 0, data, bytes), 0);
    assert_int_equal(storage_transfer(storage, STORAGE_SYNC, object, 0, NULL, 0), 0);
    free(data);
    if (out != NULL)
        *out = object;
    else
        storage_object_close(storage, object);
}

/* Asserts that `key` holds `bytes` of pattern `number`. */
static inline void bed_expect(struct storage *storage, const char *key, uint32_t bytes,
                              uint64_t number)
{
    struct storage_object *object;
    uint64_t size = 0;
    unsigned char *data = bed_buffer(bytes), *expected = bed_buffer(bytes);
    bed_fill(expected, bytes, number);
    assert_int_equal(storage_object_open(storage, &object, key, &size), 0);
    assert_int_equal(size, bytes);
    assert_int_equal(storage_transfer(storage, STORAGE_READ, object, 0, data, bytes), 0);
    assert_memory_equal(data, expected, bytes);
    storage_object_close(storage, object);
    free(data);
    free(expected);
}

static inline bool bed_exists(struct storage *storage, const char *key)
{
    uint64_t bytes;
    int error = storage_fetch(storage, key, NULL, 0, &bytes);
    assert_true(error == 0 || error == ERR_NOT_FOUND);
    return error == 0;
}

#endif
