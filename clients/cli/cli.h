/* cli.h - what the files of ckpt-cli share.
 *
 * main.c holds the table of commands and reads the command line into struct cli; each command is
 * one function of a file of its own. Offline commands read a store directory through store.c (which
 * checkpoints there are) and shard.c (their bytes, every block verified before anything looks at
 * it).
 *
 * Everything read from a store is hostile: numbers are checked before use, text is made printable
 * before it reaches a terminal. Memory does not grow with the size of a checkpoint's tensors. */
#ifndef HOLDFAST_CLIENTS_CLI_H
#define HOLDFAST_CLIENTS_CLI_H

#include "proto/checksum.h"
#include "proto/layout.h"
#include "proto/manifest.h"
#include "proto/report.h"
#include "storage/storage.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Exit codes of ckpt-cli; sysexits.h where it has a fitting one. In the README and in --help. */
enum cli_exit {
    CLI_FINE = 0,
    CLI_DIFFERS = 1,      /* verify found damage, diff found a difference */
    CLI_USAGE = 2,        /* wrong command line */
    CLI_VERSION = 65,     /* a format or protocol that this build does not know */
    CLI_NOT_FOUND = 66,   /* no such run or checkpoint */
    CLI_UNAVAILABLE = 69, /* the server cannot be reached or did not answer in time */
    CLI_INTERNAL = 70,    /* out of memory, or a bug */
    CLI_IO = 74           /* reading or writing failed, permissions and full disks included */
};

struct cli {
    char store[4096];
    char server[160];
    char output[4096];
    char dtype[8];
    bool is_json, is_weights_only, is_forced, is_help;
    const char *args[2];
    int num_args;
};

/* Every command returns 0, a negative code of report.h, or CLI_DIFFERS. */
int cli_list(const struct cli *cli);
int cli_show(const struct cli *cli);
int cli_verify(const struct cli *cli);
int cli_diff(const struct cli *cli);
int cli_export(const struct cli *cli);
int cli_status(const struct cli *cli);
int cli_health(const struct cli *cli);

/* ---- text.c: what reaches the user ---- */

/* A JSON string with its quotes; bytes that are no UTF-8 become U+FFFD. */
void text_json(FILE *out, const char *text);
/* Replaces what is not printable ASCII by '?', cuts to `size`. */
const char *text_safe(char *out, size_t size, const char *text);
/* "3.21 GiB". */
const char *text_bytes(char *out, size_t size, uint64_t bytes);
/* "[4096,512]" for a shape. */
const char *text_shape(char *out, size_t size, const struct tensor_meta *tensor);

/* A bar on stderr; silent when stderr is not a terminal. `total` 0: nothing is shown. */
struct progress {
    const char *verb; /* "verify" */
    uint64_t total, done;
    uint64_t begin_ns, shown_ns;
    bool is_shown;
};
void progress_begin(struct progress *progress, const char *verb, uint64_t total);
void progress_add(struct progress *progress, uint64_t bytes);
void progress_end(struct progress *progress);

/* ---- store.c: which checkpoints there are ---- */

/* RUN[@STEP[-aATTEMPT]] */
struct selection {
    char run[128];
    int64_t step;     /* -1: the newest */
    uint64_t attempt; /* 0: the newest that has the step */
};
int selection_parse(struct selection *out, const char *text);

struct catalog_entry {
    struct manifest_summary summary; /* run, step and attempt are those of the directory's name */
    char damage[160];                /* why the manifest could not be read; "" when it could */
};
struct catalog {
    struct catalog_entry *entries; /* by run; newest first */
    uint32_t count, room;
};
int store_open(struct storage **out, const struct cli *cli);
/* Reads the summaries of one run, or of all with run "". */
int catalog_read(struct catalog *out, struct storage *store, const char *run);
void catalog_free(struct catalog *catalog);

#define CHECKPOINT_FILES_MAX 16u /* shards of one checkpoint open at a time */

/* An open checkpoint: its manifest and a few of its shards. */
struct checkpoint {
    struct storage *store;
    struct manifest *manifest;
    char *text; /* the manifest's bytes */
    size_t text_bytes;
    char name[200]; /* "run@1000-a3" */
    struct shard_file *files;
    uint64_t clock;       /* for the oldest of `files` */
    unsigned char *reads; /* aligned room for shard_read */
};
/* Finds and reads the manifest, sha256 and all. ERR_NOT_FOUND, ERR_CORRUPT, ERR_VERSION. */
int checkpoint_open(struct checkpoint *out, struct storage *store, const char *text);
void checkpoint_close(struct checkpoint *checkpoint);

/* ---- shard.c: their bytes ---- */

/* A shard file whose size and checksum table agree with the manifest. */
struct shard_file {
    struct storage_object *object; /* NULL: this place is free */
    uint32_t shard;
    uint64_t used; /* checkpoint.clock at the last use */
    uint64_t identity;
    struct shard_geometry geometry;
    uint64_t *hashes; /* per block */
};
int shard_file_open(struct shard_file *out, struct checkpoint *checkpoint, uint32_t shard);
void shard_file_close(struct shard_file *file, struct storage *store);

/* A walk over one shard, in file order, a few blocks at a time with read-ahead. */
struct shard_scan {
    void *user;
    /* Which tensors (indices of the table) are of interest; blocks without any are not read. NULL:
     * all, and the header too. */
    bool (*wants)(void *user, uint32_t tensor);
    /* `count` elements of the slice `box` of a tensor, from its element `first` on in row-major
     * order. Only from blocks that verify. */
    int (*elements)(void *user, uint32_t tensor, const struct box *box, uint64_t first,
                    uint64_t count, const void *data);
    /* A block that does not verify; non-zero stops. */
    int (*damaged)(void *user, uint64_t block, uint64_t start, uint64_t bytes);
    /* (optional) The header, verified. */
    int (*header)(void *user, const void *data, uint64_t bytes, uint64_t file_bytes);
    struct progress *progress;
};
int shard_scan(struct checkpoint *checkpoint, struct shard_file *file,
               const struct shard_scan *scan);

/* Consecutive elements of a box as runs of the global row-major order; see box_runs. */
void slice_runs(const struct box *box, const struct tensor_meta *tensor, uint64_t first,
                uint64_t count,
                void (*run)(void *user, uint64_t global, uint64_t count, uint64_t element),
                void *user);

/* The box of at most `elements_max` consecutive elements of a tensor that begins at global element
 * `first`; returns how many elements it has. */
uint64_t chunk_at(struct box *out, const struct tensor_meta *tensor, uint64_t first,
                  uint64_t elements_max);
#define GATHER_BYTES_MAX (4u << 20)
/* The elements of a chunk_at() box, at most GATHER_BYTES_MAX, put together from the shards. */
int checkpoint_gather(struct checkpoint *checkpoint, void *out, uint32_t tensor,
                      const struct box *chunk);

/* ---- convert.c: element types ---- */

/* Converts between F64, F32, F16 and BF16 with round to nearest, ties to even; NaN stays NaN. */
bool convert_is_float(enum dtype dtype);
void convert_elements(void *out, enum dtype to, const void *in, enum dtype from, uint64_t count);
/* Any dtype as a double. */
double convert_to_double(const void *in, enum dtype from, uint64_t index);

#endif
