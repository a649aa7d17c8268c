/* environment.c - describes the hosts and programs of an attempt's ranks (see environment.h).
 *
 * Each rank writes its findings to a text, without its host and command. The hashes of the texts
 * are gathered. For each text other than rank 0's, the lowest rank with it sends it. So the traffic
 * does not grow with the number of equal ranks. */
#include "trainer/record/environment.h"
#include "proto/base/checksum.h"
#include "proto/base/process.h"
#include "proto/base/report.h"
#include "trainer/comm/comm.h"
#include "trainer/parallel/parallel.h"

#include <gnu/libc-version.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#define BUILD_DIGITS 16u
#define RANKS_TEXT_MAX 128u

/* ---- findings of one rank ---- */

/* Sets a text without bytes that are not UTF-8, cut to the limit. */
static void set_text(json_t *object, const char *key, const char *text)
{
    char cut[ENVIRONMENT_VALUE_MAX];
    snprintf(cut, sizeof(cut), "%s", text);
    if (strlen(text) >= sizeof(cut))
        strcpy(cut + sizeof(cut) - 4, "...");
    json_t *value = json_string(cut);
    if (value == NULL)
        for (char *at = cut; *at != '\0'; at++)
            *at = (unsigned char)*at < 128 ? *at : '?';
    json_object_set_new(object, key, value != NULL ? value : json_string(cut));
}

/* Sets the rest of the line of a file after `label`; with "" the first line. */
static void set_line(json_t *object, const char *key, const char *path, const char *label)
{
    char line[512];
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return;
    while (fgets(line, sizeof(line), file) != NULL) {
        char *at = line + strlen(label);
        if (strncmp(line, label, strlen(label)) != 0)
            continue;
        at += strspn(at, " \t:");
        at[strcspn(at, "\n")] = '\0';
        set_text(object, key, at);
        break;
    }
    fclose(file);
}

/* Finds the build id in one part of a file: notes of a head, a name and a content each. */
static void find_note(char out[BUILD_DIGITS + 1], const char *notes, const ElfW(Phdr) * part)
{
    size_t align = part->p_align == 8 ? 8 : 4, at = 0, next;
    for (; at + sizeof(ElfW(Nhdr)) < part->p_memsz; at = next) {
        const ElfW(Nhdr) *note = (const void *)(notes + at);
        size_t id = at + sizeof(*note) + (note->n_namesz + align - 1) / align * align;
        next = id + (note->n_descsz + align - 1) / align * align;
        if (note->n_type != NT_GNU_BUILD_ID || id + note->n_descsz > part->p_memsz)
            continue;
        for (uint32_t i = 0; i < BUILD_DIGITS / 2 && i < note->n_descsz; i++)
            snprintf(out + 2 * (size_t)i, 3, "%02x", (unsigned char)notes[id + i]);
    }
}

/* The first digits of the build id; "": none. */
static void find_build(char out[BUILD_DIGITS + 1], const struct dl_phdr_info *info)
{
    out[0] = '\0';
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_NOTE)
            find_note(out, (const char *)(uintptr_t)(info->dlpi_addr + part->p_vaddr), part);
    }
}

/* Libraries that compute, then libraries that transport. */
static const char *const library_names[] = {
    "libdnnl",     "libm",        "libc",     "libgomp",   "libtbb",     "libmkl_core",
    "libcublas",   "libcublasLt", "libcudnn", "libcudart", "libcuda",    "libmpi",
    "libopen-pal", "libpmix",     "libucp",   "libfabric", "libibverbs", "libnccl"};

static bool is_named(const char *file)
{
    size_t length = strcspn(file, ".");
    for (size_t i = 0; i < sizeof(library_names) / sizeof(library_names[0]); i++)
        if (strlen(library_names[i]) == length && strncmp(file, library_names[i], length) == 0)
            return true;
    return false;
}

static const char *file_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* The program has no name and comes first. */
static int add_library(struct dl_phdr_info *info, size_t size, void *user)
{
    char build[BUILD_DIGITS + 1], key[64], text[256];
    json_t *record = user;
    const char *name = file_of(info->dlpi_name);
    (void)size;
    bool is_program = info->dlpi_name[0] == '\0' && json_object_get(record, "program") == NULL;
    if (!is_program && !is_named(name))
        return 0;
    find_build(build, info);
    if (is_program) {
        set_text(record, "program", build);
        return 0;
    }
    char *path = realpath(info->dlpi_name, NULL);
    snprintf(key, sizeof(key), "%.*s", (int)strcspn(name, "."), name);
    snprintf(text, sizeof(text), "%.200s, build %s", path != NULL ? file_of(path) : name, build);
    set_text(json_object_get(record, "libraries"), key, text);
    free(path);
    return 0;
}

static bool begins_with_one(const char *name, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strncmp(name, list[i], strlen(list[i])) == 0)
            return true;
    return false;
}

/* Excludes variables that always differ between ranks of a node or between two starts: those that a
 * launcher sets. */
static bool is_of_interest(const char *name)
{
    static const char *const taken[] = {
        "OMP_",    "GOMP_",     "MKL_",       "DNNL_",           "ONEDNN_",   "NCCL_",
        "CUDA_",   "CUBLAS",    "CUDNN",      "NVIDIA_TF32",     "OMPI_MCA_", "UCX_",
        "MALLOC_", "GLIBC_TUN", "LD_PRELOAD", "LD_LIBRARY_PATH", "HOLDFAST_"};
    static const char *const left[] = {"OMPI_MCA_orte_",
                                       "OMPI_MCA_ess",
                                       "OMPI_MCA_pmix",
                                       "OMPI_MCA_initial_wdir",
                                       "OMPI_MCA_mpi_oversubscribe",
                                       "OMPI_MCA_rmaps_base",
                                       "OMPI_MCA_shmem_RUNTIME",
                                       "OMPI_MCA_prte_",
                                       "CUDA_VISIBLE_DEVICES",
                                       "HOLDFAST_LAUNCH_",
                                       "HOLDFAST_JOB_END_TIME",
                                       "HOLDFAST_SAVED_FILE"};
    return begins_with_one(name, taken, sizeof(taken) / sizeof(taken[0])) &&
           !begins_with_one(name, left, sizeof(left) / sizeof(left[0]));
}

static bool may_be_secret(const char *name, const char *value)
{
    static const char *const words[] = {"KEY", "SECRET", "TOKEN", "PASS", "CREDENTIAL", "AUTH"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcasestr(name, words[i]) != NULL)
            return true;
    const char *address = strstr(value, "://"); /* an address with a password */
    return address != NULL && strchr(address, '@') != NULL;
}

static void add_left_out(json_t *record, json_int_t more)
{
    const json_t *before = json_object_get(record, "left_out");
    if (more > 0)
        json_object_set_new(record, "left_out", json_integer(json_integer_value(before) + more));
}

static void add_variables(json_t *record)
{
    json_t *variables = json_object();
    json_int_t left_out = 0;
    size_t bytes = 0;
    for (char **at = environ; at != NULL && *at != NULL; at++) {
        char name[128];
        size_t length = strcspn(*at, "=");
        if (length >= sizeof(name) || (*at)[length] == '\0')
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)length, *at);
        const char *value = *at + length + 1;
        size_t more = length + strnlen(value, ENVIRONMENT_VALUE_MAX);
        if (!is_of_interest(name) || may_be_secret(name, value))
            continue;
        if (bytes + more > ENVIRONMENT_VARIABLES_MAX) {
            left_out++;
            continue;
        }
        bytes += more;
        set_text(variables, name, value);
    }
    json_object_set_new(record, "variables", variables);
    add_left_out(record, left_out);
}

/* The record that is compared between ranks. NULL: no memory. */
static json_t *collect_facts(const char *kernels)
{
    struct utsname system;
    char text[256];
    json_begin();
    json_t *record = json_object();
    set_text(record, "kernels", kernels);
    json_object_set_new(record, "libraries", json_object());
    dl_iterate_phdr(add_library, record);
    set_line(record, "cpu", "/proc/cpuinfo", "model name");
    set_line(record, "driver", "/sys/module/nvidia/version", "");
    if (uname(&system) == 0) {
        snprintf(text, sizeof(text), "%s %s", system.sysname, system.release);
        set_text(record, "kernel", text);
    }
    snprintf(text, sizeof(text), "glibc %s", gnu_get_libc_version());
    set_text(record, "libc", text);
    add_variables(record);
    if (json_end())
        return record;
    json_decref(record);
    return NULL;
}

/* The arguments, separated by blanks. */
static void set_command(json_t *record)
{
    char text[ENVIRONMENT_COMMAND_MAX];
    FILE *file = fopen("/proc/self/cmdline", "re");
    size_t bytes = file != NULL ? fread(text, 1, sizeof(text) - 1, file) : 0;
    if (file != NULL)
        fclose(file);
    for (size_t i = 0; i < bytes; i++)
        text[i] = text[i] == '\0' ? ' ' : (unsigned char)text[i] < 128 ? text[i] : '?';
    while (bytes > 0 && text[bytes - 1] == ' ')
        bytes--;
    text[bytes] = '\0';
    json_object_set_new(record, "command", json_string(text));
}

/* ---- all ranks ---- */

struct head {
    char host[64];
    uint64_t hash, bytes; /* of the rank's text, with its end */
};

struct gathering {
    struct comm *world;
    const char *text;   /* this rank's */
    struct head *heads; /* [size] */
    size_t *bytes, *at; /* [size] each */
    char *texts;        /* of the ranks that send one: */
    uint32_t kinds[ENVIRONMENT_OTHERS_MAX], num_kinds;
};

static int gather_heads(struct gathering *g)
{
    struct head own = {.hash = checksum_bytes(g->text, strlen(g->text)),
                       .bytes = strlen(g->text) + 1};
    process_host(own.host, sizeof(own.host));
    for (uint32_t i = 0; i < g->world->size; i++) {
        g->bytes[i] = sizeof(own);
        g->at[i] = i * sizeof(own);
    }
    return comm_all_gather_v(g->world, &own, sizeof(own), g->heads, g->bytes, g->at);
}

static bool begins_kind(const struct gathering *g, uint32_t rank)
{
    bool is_new = g->heads[rank].hash != g->heads[0].hash;
    for (uint32_t i = 0; i < g->num_kinds; i++)
        is_new = is_new && g->heads[rank].hash != g->heads[g->kinds[i]].hash;
    return is_new;
}

/* The number of ranks unlike rank 0 without a text. */
static json_int_t count_untold(const struct gathering *g)
{
    json_int_t untold = 0;
    for (uint32_t i = 1; i < g->world->size; i++) {
        bool is_told = g->heads[i].hash == g->heads[0].hash;
        for (uint32_t kind = 0; kind < g->num_kinds && !is_told; kind++)
            is_told = g->heads[i].hash == g->heads[g->kinds[kind]].hash;
        untold += !is_told;
    }
    return untold;
}

/* Gathers one text of each kind, except rank 0's. */
static int gather_texts(struct gathering *g)
{
    size_t all = 0;
    uint32_t me = g->world->rank;
    for (uint32_t i = 0; i < g->world->size; i++) {
        bool sends = g->num_kinds < ENVIRONMENT_OTHERS_MAX && begins_kind(g, i);
        if (sends)
            g->kinds[g->num_kinds++] = i;
        g->bytes[i] = sends ? g->heads[i].bytes : 0;
        g->at[i] = all;
        all += g->bytes[i];
    }
    if (all == 0)
        return 0;
    g->texts = malloc(all);
    int rc = g->texts != NULL ? 0 : report_error(ERR_MEMORY, NULL, "no memory for environments");
    ERR_TRY(parallel_agree(g->world, rc));
    return comm_all_gather_v(g->world, g->text, g->bytes[me], g->texts, g->bytes, g->at);
}

/* "0-3,7": the ranks from `first` on on the same host or with the same hash. */
static void list_ranks(char out[RANKS_TEXT_MAX], const struct gathering *g, uint32_t first,
                       bool by_host)
{
    size_t used = 0;
    for (uint32_t i = first, end; i < g->world->size; i = end) {
        for (end = i; end < g->world->size; end++)
            if (by_host ? strcmp(g->heads[end].host, g->heads[first].host) != 0
                        : g->heads[end].hash != g->heads[first].hash)
                break;
        if (end == i) {
            end++;
            continue;
        }
        char range[32];
        snprintf(range, sizeof(range), end - i > 1 ? "%s%u-%u" : "%s%u", used > 0 ? "," : "", i,
                 end - 1);
        bool fits = used + strlen(range) + 4 < RANKS_TEXT_MAX;
        used += (size_t)snprintf(out + used, RANKS_TEXT_MAX - used, "%s", fits ? range : ",...");
        if (!fits)
            return;
    }
}

static json_t *list_hosts(const struct gathering *g)
{
    json_t *hosts = json_object();
    char ranks[RANKS_TEXT_MAX];
    for (uint32_t i = 0; i < g->world->size; i++) {
        if (json_object_get(hosts, g->heads[i].host) != NULL ||
            json_object_size(hosts) == ENVIRONMENT_HOSTS_MAX)
            continue;
        list_ranks(ranks, g, i, true);
        json_object_set_new(hosts, g->heads[i].host, json_string(ranks));
    }
    return hosts;
}

/* ---- differences ---- */

struct differences {
    json_t *found; /* NULL: not kept */
    char *line;    /* ENVIRONMENT_LINE_MAX bytes */
    size_t used;
    const char *is, *was; /* the words before the values of `a` and `b` */
};

static void add_text(struct differences *d, const char *before, const char *text)
{
    if (d->used < ENVIRONMENT_LINE_MAX - 1)
        d->used += (size_t)snprintf(d->line + d->used, ENVIRONMENT_LINE_MAX - d->used, "%s%.200s",
                                    before, text);
}

static void add_value(struct differences *d, const char *before, const json_t *value)
{
    const char *text = json_string_value(value);
    add_text(d, before, text != NULL ? "\"" : "nothing");
    if (text != NULL) {
        add_text(d, "", text);
        add_text(d, "\"", "");
    }
}

/* "cpu was "A", now "B"; ..." */
static void add_to_line(struct differences *d, const char *place, const json_t *a, const json_t *b)
{
    add_text(d, d->used > 0 ? "; " : "", place);
    add_value(d, d->was, b);
    add_value(d, d->is, a);
}

static int note_difference(void *user, const char *place, const json_t *a, const json_t *b)
{
    struct differences *d = user;
    json_object_set_new(d->found, place,
                        b != NULL ? json_incref((json_t *)(uintptr_t)b) : json_null());
    add_to_line(d, place, a, b);
    return 0;
}

static void add_others(json_t *record, const struct gathering *g)
{
    json_t *others = json_object();
    json_error_t reason;
    char ranks[RANKS_TEXT_MAX];
    for (uint32_t kind = 0; kind < g->num_kinds; kind++) {
        char line[ENVIRONMENT_LINE_MAX] = "";
        struct differences d = {json_object(), line, 0, ", on rank 0 ", " is "};
        uint32_t i = g->kinds[kind];
        json_t *theirs = NULL;
        (void)json_read(&theirs, g->texts + g->at[i], g->bytes[i] - 1, &reason);
        (void)json_compare(record, theirs, note_difference, &d);
        list_ranks(ranks, g, i, false);
        json_object_set_new(others, ranks, d.found);
        json_decref(theirs);
        log_warn("train", "not the same as on rank 0: of ranks %s %s", ranks, line);
    }
    if (json_object_size(others) > 0)
        json_object_set(record, "ranks", others);
    json_decref(others);
    json_int_t untold = count_untold(g);
    if (untold > 0)
        log_warn("train", "not the same as on rank 0, either: %lld more ranks", (long long)untold);
    add_left_out(record, untold);
}

static int write_all(char **out, json_t *record, const struct gathering *g)
{
    json_begin();
    add_others(record, g);
    set_command(record);
    json_object_set_new(record, "hosts", list_hosts(g));
    json_object_del(record, "kernels"); /* they are part of the identity */
    *out = json_dumps(record, JSON_COMPACT);
    bool is_whole = json_end() && *out != NULL;
    return is_whole ? 0 : report_error(ERR_MEMORY, NULL, "no memory for the environment");
}

static int gather(char **out, struct gathering *g, json_t *record)
{
    uint32_t size = g->world->size;
    g->heads = calloc(size, sizeof(*g->heads));
    g->bytes = calloc(size, sizeof(*g->bytes));
    g->at = calloc(size, sizeof(*g->at));
    bool has_all = g->text != NULL && g->heads != NULL && g->bytes != NULL && g->at != NULL;
    int rc = has_all ? 0 : report_error(ERR_MEMORY, NULL, "no memory for the environment");
    ERR_TRY(parallel_agree(g->world, rc));
    ERR_TRY(gather_heads(g));
    ERR_TRY(gather_texts(g));
    return g->world->rank == 0 ? write_all(out, record, g) : 0;
}

int environment_gather(char **out, struct comm *world, const char *kernels)
{
    json_t *record = collect_facts(kernels);
    char *text = record != NULL ? json_dumps(record, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    struct gathering g = {.world = world, .text = text};
    *out = NULL;
    int rc = gather(out, &g, record);
    free(g.heads);
    free(g.bytes);
    free(g.at);
    free(g.texts);
    free(text);
    json_decref(record);
    return rc;
}

/* ---- changes since a checkpoint ---- */

static int add_change(void *user, const char *place, const json_t *ours, const json_t *theirs)
{
    static const char *const may_change_bits[] = {"cpu",
                                                  "driver",
                                                  "libc",
                                                  "libraries.",
                                                  "variables.DNNL_",
                                                  "variables.ONEDNN_",
                                                  "variables.MKL_",
                                                  "variables.CUBLAS",
                                                  "variables.CUDNN",
                                                  "variables.NVIDIA_",
                                                  "variables.NCCL_",
                                                  "variables.LD_",
                                                  "variables.GLIBC_"};
    bool is_known = strncmp(place, "variables.", 10) == 0 || (ours != NULL && theirs != NULL);
    if (is_known && begins_with_one(place, may_change_bits,
                                    sizeof(may_change_bits) / sizeof(may_change_bits[0])))
        add_to_line(user, place, ours, theirs);
    return 0;
}

bool environment_changes(char out[ENVIRONMENT_LINE_MAX], const json_t *own, const json_t *stored)
{
    struct differences d = {NULL, out, 0, ", now ", " was "};
    out[0] = '\0';
    if (json_is_object(own) && json_is_object(stored))
        (void)json_compare(own, stored, add_change, &d);
    return d.used > 0;
}
