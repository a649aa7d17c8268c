/* json.h - jansson, with a lack of memory told from a bad text.
 *
 * jansson says NULL for both, and where it is short of memory for a token it goes on with a part
 * of one: a whole checkpoint then reads as a damaged one. From the first use of this file on its
 * memory is taken by functions that note when there was none. */
#ifndef HOLDFAST_PROTO_BASE_JSON_H
#define HOLDFAST_PROTO_BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* 0; ERR_CORRUPT, with the reason in `out_reason` and no text set; ERR_MEMORY. Duplicate keys are
 * refused. *out is NULL after an error. */
int json_read(json_t **out, const char *text, size_t bytes, json_error_t *out_reason);
/* What a manifest keeps of other people's JSON: an object of at most JSON_DEPTH_MAX levels, itself
 * the first. jansson reads 2048, but each text around it takes one of them (a manifest, an attempt,
 * an answer of ckpt-cli): what came in at the limit could not be read any more. So every door asks
 * here, and so does who writes. ERR_INVALID names `name`; ERR_MEMORY. */
#define JSON_DEPTH_MAX 100u
int json_read_object(json_t **out, const char *text, const char *name);
/* Objects and arrays of a text, and commas outside of its strings: a short text can have millions
 * of them and would take the host's memory, so they are counted before anything is built. jansson
 * takes some 220 bytes for "{}" and some 50 for a number. `depth`: how many lie in one another. */
struct json_count {
    size_t containers, commas, depth;
};
struct json_count json_count(const char *text, size_t bytes);
/* `at` is the opening quote of a string; returns the place behind the closing one. */
size_t json_skip_string(const char *text, size_t at, size_t end);
/* The members of the object that `text` is, as they are written: what jansson has read it prints in
 * another form, 0.1 as 0.10000000000000001. Keys are without their quotes. */
struct json_member {
    const char *key, *value;
    size_t key_bytes, value_bytes;
};
size_t json_first_member(const char *text, size_t bytes);
/* The member at *at, which moves behind its comma. False: there is none. Of a text that is no JSON
 * the places may be any within it. */
bool json_next_member(struct json_member *out, const char *text, size_t *at, size_t bytes);
bool json_member_is(const struct json_member *member, const char *name);
/* Copies of the objects that so many members are, to be freed by the caller, also after an error:
 * *outs[i], NULL before, of the member names[i]. ERR_CORRUPT: *out_bad names one that is missing,
 * no object, or there twice; ERR_MEMORY. Both without a report. */
int json_copy_objects(char **const outs[], const char *const names[], int count, const char *text,
                      size_t bytes, const char **out_bad);
/* A flag for json_dumps(): the fewest digits, from 15 on, with which every number in `value` is
 * read back as the same. Without it 1e-06 is written as 9.9999999999999995e-7. */
size_t json_shortest(const json_t *value);
/* What lies there by a path such as "disk.bytes_left"; NULL: nothing does. Borrowed from `item`. */
const json_t *json_at(const json_t *item, const char *path);
/* Tells of each place where two values differ: its dotted name, and what is there, NULL where there
 * is nothing. What is an object on both sides, or on the only one that has it, is gone into; names
 * are cut at JSON_PLACE_MAX. Ends with what `tell` returns that is not 0. */
#define JSON_PLACE_MAX 512u
typedef int json_tell_fn(void *user, const char *place, const json_t *a, const json_t *b);
int json_compare(const json_t *a, const json_t *b, json_tell_fn *tell, void *user);
/* Around other uses of jansson by this thread: false when memory was short in between. */
void json_begin(void);
bool json_end(void);

#endif
