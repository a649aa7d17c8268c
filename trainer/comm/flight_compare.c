/* flight_compare.c - reads dumps of all ranks (see flight_compare.h). */
#include "trainer/comm/flight_compare.h"
#include "proto/base/json.h"
#include "proto/base/report.h"
#include "trainer/comm/flight.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct dump {
    json_t *json;
    uint32_t rank;
    bool is_ring; /* not a dump: a ring that its process writes, or wrote */
    bool is_dead;
    bool has_dump;
    double still_s;     /* its process did not run for that long while others did; 0: none */
    const json_t *call; /* the oldest that has not ended; NULL: the rank waits in no call */
    const json_t *last; /* the newest that has ended; NULL: none */
};

struct dumps {
    struct dump *of;
    uint32_t num, room;
    uint32_t num_ranks; /* of the world, if a call records it */
};

static const char *text_in(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "?";
}

static uint64_t number_in(const json_t *object, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(object, key));
}

static bool is_of_world(const json_t *call)
{
    return strcmp(text_in(call, "process_group"), "world") == 0;
}

/* ---- reading ---- */

static void find_calls(struct dumps *dumps, struct dump *dump)
{
    size_t i;
    const json_t *call;
    json_array_foreach(json_object_get(dump->json, "entries"), i, call)
    {
        bool has_ended = strcmp(text_in(call, "state"), "done") == 0;
        if (has_ended)
            dump->last = call;
        else if (dump->call == NULL)
            dump->call = call;
        if (is_of_world(call) && number_in(call, "group_size") > dumps->num_ranks)
            dumps->num_ranks = (uint32_t)number_in(call, "group_size");
    }
}

/* NULL: the file cannot be read. */
static json_t *load_ring(const char *path, bool *out_is_dead)
{
    struct flight *flight;
    char *text = NULL;
    size_t bytes = 0;
    json_error_t reason;
    json_t *json = NULL;
    if (flight_read(&flight, out_is_dead, path) != 0)
        return NULL;
    FILE *out = open_memstream(&text, &bytes);
    if (out != NULL) {
        flight_write(flight, "read from its ring", out);
        if (fclose(out) == 0)
            json = json_loadb(text, bytes, 0, &reason);
        free(text);
    }
    flight_free(flight);
    return json;
}

static struct dump *find_dump(struct dumps *dumps, uint32_t rank)
{
    for (uint32_t i = 0; i < dumps->num; i++)
        if (dumps->of[i].rank == rank)
            return &dumps->of[i];
    return NULL;
}

static int make_room(struct dumps *dumps)
{
    if (dumps->num < dumps->room)
        return 0;
    uint32_t room = 2 * dumps->room + 8;
    struct dump *of = realloc(dumps->of, room * sizeof(*of));
    if (of == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the dumps of %u ranks", room);
    dumps->of = of;
    dumps->room = room;
    return 0;
}

/* A ring is never older than the dump of its rank, and replaces it. */
static int add_dump(struct dumps *dumps, const char *path, bool is_ring)
{
    json_error_t reason;
    bool is_dead = false;
    json_t *json = is_ring ? load_ring(path, &is_dead) : json_load_file(path, 0, &reason);
    if (json == NULL || !json_is_array(json_object_get(json, "entries"))) {
        json_decref(json);
        return report_error(ERR_INVALID, "name a folder with files of comm.save_traces_folder only",
                            "%s is not a %s of a flight recorder", path, is_ring ? "ring" : "dump");
    }
    uint32_t rank = (uint32_t)number_in(json, "rank");
    struct dump *dump = find_dump(dumps, rank);
    if (dump != NULL && !is_ring) {
        dump->has_dump = true;
        json_decref(json);
        return 0;
    }
    if (dump != NULL) {
        json_decref(dump->json);
    } else if (make_room(dumps) != 0) {
        json_decref(json);
        return ERR_MEMORY;
    } else {
        dump = &dumps->of[dumps->num++];
        *dump = (struct dump){.rank = rank};
    }
    *dump = (struct dump){.json = json,
                          .rank = rank,
                          .is_ring = is_ring,
                          .is_dead = is_dead,
                          .has_dump = dump->has_dump || !is_ring};
    find_calls(dumps, dump);
    return 0;
}

/* Of the ranks of the same host, the newest sign of life; 0: none, or the host is unknown. */
static int64_t newest_beside(const struct dumps *dumps, const struct dump *dump)
{
    uint64_t boot = number_in(dump->json, "boot");
    int64_t newest = 0;
    for (uint32_t i = 0; i < dumps->num && boot != 0; i++) {
        int64_t alive = (int64_t)number_in(dumps->of[i].json, "alive_ms");
        if (number_in(dumps->of[i].json, "boot") == boot && alive > newest)
            newest = alive;
    }
    return newest;
}

/* A process that ended in order, and so left no ring, did not stand still. */
static void find_still(struct dumps *dumps)
{
    for (uint32_t i = 0; i < dumps->num; i++) {
        struct dump *dump = &dumps->of[i];
        int64_t alive = (int64_t)number_in(dump->json, "alive_ms");
        int64_t newest = newest_beside(dumps, dump);
        if (dump->is_ring && alive != 0 && newest - alive >= FLIGHT_STILL_MS)
            dump->still_s = 1e-3 * (double)(newest - alive);
    }
}

static bool is_named(const char *name, const char *prefix, const char *end)
{
    size_t length = strlen(prefix);
    if (strncmp(name, prefix, length) != 0)
        return false;
    size_t digits = strspn(name + length, "0123456789");
    return digits > 0 && strcmp(name + length + digits, end) == 0;
}

static int by_rank(const void *a, const void *b)
{
    uint32_t first = ((const struct dump *)a)->rank, second = ((const struct dump *)b)->rank;
    return first < second ? -1 : first > second;
}

static int read_dumps(struct dumps *dumps, const char *folder, const char *prefix)
{
    char path[4096];
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    int rc = 0;
    if (dir == NULL)
        return report_errno(ERR_NOT_FOUND, "could not read the folder of the dumps", folder);
    while (rc == 0 && (entry = readdir(dir)) != NULL) {
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        bool is_ring = is_named(entry->d_name, prefix, ".ring");
        if (is_ring || is_named(entry->d_name, prefix, ".json"))
            rc = add_dump(dumps, path, is_ring);
    }
    closedir(dir);
    if (rc == 0 && dumps->num == 0)
        rc = report_error(ERR_NOT_FOUND, "set comm.save_traces_folder for the run",
                          "%s has no dump of a flight recorder (%sRANK.json, %sRANK.ring)", folder,
                          prefix, prefix);
    if (rc == 0)
        qsort(dumps->of, dumps->num, sizeof(*dumps->of), by_rank);
    find_still(dumps);
    return rc;
}

/* ---- output ---- */

static void print_call(const json_t *call, FILE *out)
{
    fprintf(out, "%s %" PRIu64 " of %s, %" PRIu64 " bytes, at %s", text_in(call, "profiling_name"),
            number_in(call, "collective_seq_id"), text_in(call, "process_group"),
            number_in(call, "bytes"), text_in(call, "site"));
    if (json_object_get(call, "operation_name") != NULL)
        fprintf(out, ", in operation %" PRIu64 ", %s", number_in(call, "operation"),
                text_in(call, "operation_name"));
}

static void print_lanes(const struct dump *dump, FILE *out)
{
    size_t i;
    const json_t *lane;
    json_array_foreach(json_object_get(dump->json, "lanes"), i,
                       lane) if (json_object_get(lane, "operation_name") != NULL)
        fprintf(out, "; lane %s: operation %" PRIu64 ", %s", text_in(lane, "lane"),
                number_in(lane, "operation"), text_in(lane, "operation_name"));
}

static bool is_before(const json_t *a, const json_t *b)
{
    return number_in(a, "collective_seq_id") < number_in(b, "collective_seq_id");
}

/* The furthest call of the whole world; NULL: no rank waits in one. */
static const json_t *furthest(const struct dumps *dumps)
{
    const json_t *most = NULL;
    for (uint32_t i = 0; i < dumps->num; i++) {
        const json_t *call = dumps->of[i].call;
        if (call != NULL && is_of_world(call) && (most == NULL || is_before(most, call)))
            most = call;
    }
    return most;
}

static bool is_other(const json_t *call, const json_t *most)
{
    return is_of_world(call) && most != NULL &&
           (is_before(call, most) ||
            strcmp(text_in(call, "profiling_name"), text_in(most, "profiling_name")) != 0);
}

static bool is_same_group(const json_t *a, const json_t *b)
{
    return strcmp(text_in(a, "process_group"), text_in(b, "process_group")) == 0 &&
           strcmp(text_in(a, "lane"), text_in(b, "lane")) == 0;
}

/* The newest call of the group in the rank's ring is one before this. */
static bool is_behind(const struct dump *dump, const json_t *call)
{
    size_t i = json_array_size(json_object_get(dump->json, "entries"));
    while (i-- > 0) {
        const json_t *own = json_array_get(json_object_get(dump->json, "entries"), i);
        if (is_same_group(own, call))
            return is_before(own, call);
    }
    return false;
}

/* Another rank waits in a call of a group of all ranks which this one has not begun. */
static bool is_awaited(const struct dumps *dumps, const struct dump *dump)
{
    size_t k;
    const json_t *call;
    for (uint32_t i = 0; i < dumps->num; i++)
        json_array_foreach(json_object_get(dumps->of[i].json, "entries"), k, call)
        {
            if (strcmp(text_in(call, "state"), "done") != 0 && dumps->num_ranks > 1 &&
                number_in(call, "group_size") == dumps->num_ranks && is_behind(dump, call))
                return true;
        }
    return false;
}

static uint32_t print_missing(const struct dumps *dumps, FILE *out)
{
    uint32_t at = 0, missing = 0;
    for (uint32_t rank = 0; rank < dumps->num_ranks; rank++) {
        while (at < dumps->num && dumps->of[at].rank < rank)
            at++;
        if (at < dumps->num && dumps->of[at].rank == rank)
            continue;
        fprintf(out, "rank %u did not join: it left no dump\n", rank);
        missing++;
    }
    return missing;
}

/* Ends a line with the call that the rank waits in, or made last. */
static void print_where(const struct dump *dump, FILE *out)
{
    const json_t *where = dump->call != NULL ? dump->call : dump->last;
    fputs(dump->call != NULL ? "in " : "after ", out);
    if (where != NULL)
        print_call(where, out);
    else
        fputs("no call at all", out);
    print_lanes(dump, out);
    fputc('\n', out);
}

/* Prints the place of each dead process, unless all are dead: then they were ended together. */
static uint32_t print_dead(const struct dumps *dumps, FILE *out)
{
    uint32_t dead = 0;
    for (uint32_t i = 0; i < dumps->num; i++)
        dead += dumps->of[i].is_dead;
    if (dead == dumps->num) {
        fputs("the processes of all ranks are dead; this is where they were\n", out);
        return 0;
    }
    for (uint32_t i = 0; i < dumps->num; i++) {
        if (!dumps->of[i].is_dead)
            continue;
        fprintf(out, "rank %u is dead: its process ended ", dumps->of[i].rank);
        print_where(&dumps->of[i], out);
    }
    return dead;
}

/* Ranks whose processes stood still; without any, those that made no dump while others did, unless
 * they are among the `dead`, which were printed. */
static uint32_t print_still(const struct dumps *dumps, uint32_t dead, FILE *out)
{
    uint32_t still = 0, dumped = 0;
    for (uint32_t i = 0; i < dumps->num; i++) {
        still += dumps->of[i].still_s > 0;
        dumped += dumps->of[i].has_dump;
    }
    for (uint32_t i = 0; i < dumps->num; i++) {
        const struct dump *dump = &dumps->of[i];
        if (dump->still_s > 0)
            fprintf(out, "rank %u did not join: its process stood still for %.1f s, ", dump->rank,
                    dump->still_s);
        else if (still == 0 && dumped > 0 && !dump->has_dump && !(dump->is_dead && dead > 0))
            fprintf(out, "rank %u may have stood still: it made no dump, as others did, ",
                    dump->rank);
        else
            continue;
        print_where(dump, out);
    }
    return still > 0 ? still : dumped > 0 ? dumps->num - dumped : 0;
}

static uint32_t print_absent(const struct dumps *dumps, FILE *out)
{
    const json_t *most = furthest(dumps);
    uint32_t absent = print_missing(dumps, out), dead = print_dead(dumps, out);
    absent += print_still(dumps, dead, out);
    for (uint32_t i = 0; i < dumps->num; i++) {
        const struct dump *dump = &dumps->of[i];
        bool is_elsewhere =
            dump->call != NULL && (is_other(dump->call, most) || is_awaited(dumps, dump));
        if ((dump->call != NULL && !is_elsewhere) || (dump->is_dead && dead > 0) ||
            dump->still_s > 0)
            continue;
        absent++;
        fprintf(out, "rank %u did not join: it waits %s, ", dump->rank,
                is_elsewhere ? "elsewhere" : "for no other rank");
        print_where(dump, out);
    }
    return absent + dead;
}

int flight_compare(const char *folder, const char *prefix, FILE *out)
{
    struct dumps dumps = {0};
    int rc = read_dumps(&dumps, folder, prefix);
    if (rc == 0) {
        fprintf(out, "%u dumps of %u ranks\n", dumps.num,
                dumps.num_ranks > dumps.num ? dumps.num_ranks : dumps.num);
        if (print_absent(&dumps, out) == 0)
            fputs("all ranks joined: each waits in a call\n", out);
        for (uint32_t i = 0; i < dumps.num; i++) {
            if (dumps.of[i].call == NULL)
                continue;
            fprintf(out, "rank %u waits in ", dumps.of[i].rank);
            print_call(dumps.of[i].call, out);
            fputc('\n', out);
        }
    }
    for (uint32_t i = 0; i < dumps.num; i++)
        json_decref(dumps.of[i].json);
    free(dumps.of);
    return rc;
}
