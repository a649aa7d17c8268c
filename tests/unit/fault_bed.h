/* fault_bed.h - an object of BYTES on a faulty store, for the tests of that store. */
#ifndef HOLDFAST_TESTS_FAULT_BED_H
#define HOLDFAST_TESTS_FAULT_BED_H

#include "tests/fault/storage_fault.h"
#include "tests/unit/storage_bed.h"
#include "tests/unit/suite.h"

#define PAGE STORAGE_ALIGN
#define BYTES (16 * PAGE)
#define LEASE "run/leases/step-1.0123456789abcdef"

static inline struct storage *open_fault(const char *where)
{
    struct storage *storage;
    int error = storage_open(&storage, &storage_fault, where, NULL);
    if (error != 0)
        print_error("%s\n", report_line());
    assert_int_equal(error, 0);
    return storage;
}

static inline void write_object(struct storage *storage, struct storage_object **out,
                                const char *key, uint64_t number)
{
    unsigned char *data = bed_buffer(BYTES);
    bed_fill(data, BYTES, number);
    assert_int_equal(storage_object_create(storage, out, key, BYTES), 0);
    assert_int_equal(storage_transfer(storage, STORAGE_WRITE, *out, 0, data, BYTES), 0);
    free(data);
}

static inline unsigned char *read_object(struct storage *storage, const char *key)
{
    void *data;
    size_t bytes;
    assert_int_equal(storage_fetch_all(storage, key, BYTES, &data, &bytes), 0);
    assert_int_equal(bytes, BYTES);
    return data;
}

static inline int sync_object(struct storage *storage, struct storage_object *object)
{
    return storage_transfer(storage, STORAGE_SYNC, object, 0, NULL, 0);
}

static inline bool is_all(const unsigned char *data, size_t bytes, unsigned char value)
{
    for (size_t i = 0; i < bytes; i++)
        if (data[i] != value)
            return false;
    return true;
}

static inline struct storage *open_over(const char *directory, const char *settings)
{
    char where[2 * BED_PATH_BYTES];
    snprintf(where, sizeof(where), "%s:local:%s", settings, directory);
    return open_fault(where);
}

#endif
