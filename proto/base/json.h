/* json.h - jansson, with out-of-memory distinguished from a bad text.
 *
 * jansson returns NULL for both. Without memory for a token it continues with a part of the token,
 * so an intact checkpoint seems damaged. After the first use of this file jansson allocates by
 * functions that note a failed allocation. */
#ifndef HOLDFAST_PROTO_BASE_JSON_H
#define HOLDFAST_PROTO_BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* 0; ERR_CORRUPT, with the reason in `out_reason` and no text set; ERR_MEMORY. Duplicate keys are
 * refused. *out is NULL after an error. */
int json_read(json_t **out, const char *text, size_t bytes, json_error_t *out_reason);
/* Parses other programs' JSON for a manifest: an object of at most JSON_DEPTH_MAX levels, counting
 * itself. jansson reads 2048 levels, but each text around it uses one (a manifest, an attempt, an
 * answer of ckpt-cli), so an object at that limit could not be read back. Every receiver of such
 * JSON checks it by this function, and so does every writer. ERR_INVALID names `name`;
 * ERR_MEMORY. */
#define JSON_DEPTH_MAX 100u
int json_read_object(json_t **out, const char *text, const char *name);
/* Counts objects and arrays of a text, and commas outside of its strings. A short text can have
 * millions of them, which exhaust the host's memory, so the reader counts them before it parses.
 * jansson needs some 220 bytes for "{}" and some 50 for a number. `depth`: the levels of
 * nesting. */
struct json_count {
    size_t containers, commas, depth;
};
struct json_count json_count(const char *text, size_t bytes);
/* `at` is the opening quote of a string; returns the index after the closing one. */
size_t json_skip_string(const char *text, size_t at, size_t end);
/* A member of an object in its original spelling: jansson prints 0.1 as 0.10000000000000001. Keys
 * are without their quotes. */
struct json_member {
    const char *key, *value;
    size_t key_bytes, value_bytes;
};
size_t json_first_member(const char *text, size_t bytes);
/* The member at *at, which moves after its comma. False: there is none. In a text that is not JSON
 * the places may be anywhere within it. */
bool json_next_member(struct json_member *out, const char *text, size_t *at, size_t bytes);
bool json_member_is(const struct json_member *member, const char *name);
/* Copies `count` members that are objects; the caller frees them, also after an error. *outs[i],
 * NULL before, is member names[i]. ERR_CORRUPT: *out_bad names one that is missing, no object, or
 * there twice; ERR_MEMORY. Neither sets an error text. */
int json_copy_objects(char **const outs[], const char *const names[], int count, const char *text,
                      size_t bytes, const char **out_bad);
/* A flag for json_dumps(): the fewest digits, at least 15, with which every number in `value` reads
 * back equal. Without it json_dumps() writes 1e-06 as 9.9999999999999995e-7. */
size_t json_shortest(const json_t *value);
/* The value at a path such as "disk.bytes_left", or NULL. Borrowed from `item`. */
const json_t *json_at(const json_t *item, const char *path);
/* Calls `on_difference` for each place where two values differ, with its dotted name and both
 * values (NULL: absent). Descends into objects, also where only one side has one; names are cut at
 * JSON_PLACE_MAX. Stops at the first nonzero result of `on_difference` and returns it. */
#define JSON_PLACE_MAX 512u
typedef int json_difference_fn(void *user, const char *place, const json_t *a, const json_t *b);
int json_compare(const json_t *a, const json_t *b, json_difference_fn *on_difference, void *user);
/* Put these around other uses of jansson by this thread: json_end() is false when memory was short
 * in between. */
void json_begin(void);
bool json_end(void);

#endif
