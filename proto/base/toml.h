/* toml.h - the leaves of a TOML document, for options.c; toml.cpp knows the library (toml++).
 *
 * Private to proto. Tables become dotted keys; a list of scalars becomes one comma separated text,
 * a list of such lists has semicolons between them;
 * the values arrive as text in the order of the file's lines. */
#ifndef HOLDFAST_PROTO_BASE_TOML_H
#define HOLDFAST_PROTO_BASE_TOML_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct toml_leaf {
    const char *key;   /* "training.steps"; borrowed during the callback */
    const char *value; /* text; borrowed likewise */
    uint32_t line;     /* of the key, 1-based */
};

enum toml_result {
    TOML_OK = 0,
    TOML_BAD = 1, /* no TOML, or a value that is neither a table, a scalar nor a list */
    TOML_MEMORY = 2
};

/* The place and the reason of a refusal. */
struct toml_fault {
    uint32_t line;
    char reason[200];
};

/* Calls `visit` for every leaf. A nonzero result of it stops the visit and is kept in *out_visit;
 * the result is TOML_OK. */
enum toml_result toml_visit(struct toml_fault *out_fault, int *out_visit, const char *text,
                            size_t bytes, int (*visit)(void *user, const struct toml_leaf *leaf),
                            void *user);

#ifdef __cplusplus
}
#endif
#endif
