/* config.c - the settings of ckptd and their limits, in one table.
 *
 * This table is authoritative; deploy/ckptd.conf documents it. Precedence: defaults, the TOML file
 * named by --config, other arguments. Relations between keys are checked here once, so that other
 * code may rely on them: a write block is whole checksum blocks, a segment is whole write blocks,
 * the pool is whole segments. */
#include "ckptd/core/config.h"
#include "ckptd/core/policy.h"
#include "ckptd/machines/throttle.h"
#include "proto/base/address.h"
#include "proto/base/checksum.h"
#include "proto/base/options.h"
#include "proto/base/report.h"
#include "proto/base/toml.h"
#include "proto/wire/rpc.h"
#include "storage/storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KIB 1024.0
#define MIB (1024.0 * KIB)
#define GIB (1024.0 * MIB)
#define TIB (1024.0 * GIB)
/* Areas of debug lines. */
#define LOG_AREAS                                                                           \
    "all, catalog, commit, door, drain, history, memory, restore, retain, scrub, session, " \
    "storage, tier, tls"

/* The texts of the table below. */
_Static_assert(RPC_BUDGET_PER_SECOND == 5000, "limits.identity_rate");

/* clang-format off */
static const struct option table[] = {
    OPTION_STRING(struct config, config_file, "config", "", "TOML file with these keys"),
    OPTION_STRING(struct config, listen, "listen", "",
                  "unix:/path of the socket; default unix:/tmp/holdfast-<uid>/ckptd.sock"),
    OPTION_STRING(struct config, tls_listen, "tls.listen", "",
                  "host:port, for clients with a certificate; empty: none"),
    OPTION_STRING(struct config, tls_bulk, "tls.bulk", "",
                  "host:port of the bulk plane, for ranks and peers on other nodes; empty: none"),
    OPTION_STRING(struct config, tls_bulk_advertise, "tls.bulk_advertise", "",
                  "host:port to send to clients instead of tls.bulk"),
    OPTION_BOOL(struct config, tls_bulk_plain, "tls.bulk_plain", "false",
                "without TLS: only tickets authenticate; only on a loopback address"),
    OPTION_STRING(struct config, tls_directory, "tls.directory", "/etc/holdfast/tls",
                  "certificate.pem, key.pem, authority.pem and, if any, revoked.pem"),
    OPTION_STRING(struct config, store, "store", "",
                  "directory of the checkpoints (or memory:<bytes>)"),
    OPTION_BOOL(struct config, check, "check", "false",
                "check configuration and store, print errors, start nothing"),
    OPTION_BOOL(struct config, store_must_exist, "store_must_exist", "false",
                "start only if a store exists: its disk may be unmounted"),
    OPTION_BOOL(struct config, make_store, "make_store", "false",
                "make the directory a store, and that of tier.store = dir:/path, then exit"),
    OPTION_STRING(struct config, log, "log", "",
                  "debug lines of these areas: " LOG_AREAS),
    OPTION_STRING(struct config, access_uids, "access.uids", "",
                  "further user ids that may connect, comma separated"),
    OPTION_STRING(struct config, access_operators, "access.operators", "",
                  "further user ids that may connect, and remove, free and add checkpoints"),
    OPTION_BYTES(struct config, pool_bytes, "memory.pool_bytes", "4GiB", MIB, 64 * TIB,
                 "memory for images, allocated at start"),
    OPTION_BYTES(struct config, segment_bytes, "memory.segment_bytes", "256MiB", MIB, GIB,
                 "unit in which the pool is lent"),
    OPTION_CHOICE(struct config, huge_pages, "memory.huge_pages", "auto", "auto,never",
                  "auto: pages of 2 MiB if the system has them"),
    OPTION_INT(struct config, queue_depth, "storage.queue_depth", 32, 1, 4096,
               "requests in flight on the disk"),
    OPTION_BYTES(struct config, block_bytes, "storage.block_bytes", "1MiB", MIB, 64 * MIB,
                 "bytes of one write or read"),
    OPTION_CHOICE(struct config, engine, "storage.engine", "auto", "auto,pwrite",
                  "auto: io_uring if the system allows it"),
    OPTION_BOOL(struct config, verify_after_write, "storage.verify_after_write", "false",
                "read each shard back before a save's commit; fail the save if it differs"),
    OPTION_CHOICE(struct config, saves_replicas, "saves.replicas", "warn", "warn,refuse",
                  "if ranks differ in the bytes of a part of a tensor: warn commits one rank's, "
                  "with an alarm; refuse fails the save"),
    OPTION_DOUBLE(struct config, usable_fraction, "storage.usable_fraction", 0.8, 0.01, 1.0,
                  "fraction of the file system that checkpoints may fill"),
    OPTION_INT(struct config, threads_workers, "threads.workers", 2, 1, 64,
               "threads that hash and wait for files"),
    OPTION_INT(struct config, limit_sessions, "limits.sessions", 1024, 1, 65536,
               "ranks and readers at once; more are refused"),
    OPTION_INT(struct config, limit_runs, "limits.runs", 1024, 1, 65536, "runs in the store"),
    OPTION_INT(struct config, limit_checkpoints, "limits.checkpoints", 65536, 1, 1 << 24,
               "checkpoints in the store"),
    OPTION_INT(struct config, limit_identity_saves, "limits.identity_saves", 0, 0, 1 << 20,
               "saves in progress of one user or certificate; 0: no limit"),
    OPTION_BYTES(struct config, limit_identity_arena_bytes, "limits.identity_arena_bytes", "0", 0,
                 64 * TIB, "pool bytes in saves of one user or certificate; 0: no limit"),
    OPTION_BYTES(struct config, limit_identity_disk_bytes, "limits.identity_disk_bytes", "0", 0,
                 1024 * TIB, "disk bytes, also of saves, of one user or certificate; 0: no limit"),
    OPTION_INT(struct config, limit_identity_rate, "limits.identity_rate", 5000,
               RPC_BUDGET_PER_SECOND / 10, 1 << 30,
               "cost limit of calls per second of one user or certificate, 6.5 times as much at "
               "once; a call costs 16"),
    OPTION_INT(struct config, limit_describe_ms, "limits.describe_ms", 60000, 1, 86400000,
               "timeout of the first rank's wait in describe"),
    OPTION_INT(struct config, limit_connect_ms, "limits.connect_ms", 60000, 1, 86400000,
               "timeout of a session's arena connection, and of any first request"),
    OPTION_BYTES(struct config, limit_request_bytes, "limits.request_bytes", "64MiB", 16 * MIB,
                 64 * GIB, "memory for unanswered requests; more are refused"),
    OPTION_BYTES(struct config, limit_private_bytes, "limits.private_bytes", "0", 0, 64 * TIB,
                 "private memory, without the pool, that raises an alarm; 0: never"),
    OPTION_BYTES(struct config, limit_exit_private_bytes, "limits.exit_private_bytes", "0", 0,
                 64 * TIB,
                 "private memory above which ckptd exits with 75, for a restart; 0: never"),
    OPTION_INT(struct config, limit_load_wait_ms, "limits.load_wait_ms", 30000, 0, 86400000,
               "timeout of a load for memory"),
    OPTION_INT(struct config, limit_reopen_ms, "limits.reopen_ms", 10000, 0, 86400000,
               "time after a start for readers of the previous ckptd to reopen loads"),
    OPTION_INT(struct config, limit_look_ms, "limits.look_ms", 1000, 10, 86400000,
               "interval between checks that the next saves fit"),
    OPTION_INT(struct config, limit_takeover_ms, "limits.takeover_ms", 10000, 0, 90000,
               "wait of a start until the run's ranks are gone; 0: take over at once"),
    OPTION_INT(struct config, limit_silent_ms, "limits.silent_ms", 60000, 1000, 86400000,
               "count a rank silent for this time as gone when another starts"),
    OPTION_INT(struct config, limit_hang_ms, "limits.hang_ms", 1800000, 1000, INT64_C(604800000),
               "alarm if a rank that announces steps is silent for this time"),
    OPTION_INT(struct config, limit_drain_ms, "limits.drain_ms", 30000, 0, 3600000,
               "time for running saves after SIGTERM"),
    OPTION_INT(struct config, limit_last_save_ms, "limits.last_save_ms", 5000, 0, 3600000,
               "time after SIGTERM for connected ranks to begin a save"),
    OPTION_INT(struct config, pace_cpu_nice, "pace.cpu_nice", 10, 0, 19,
               "niceness of the threads that hash"),
    OPTION_BYTES(struct config, pace_write_rate, "pace.write_rate", "0", 0,
                 (double)THROTTLE_RATE_MAX, "bytes per second of saves; 0: no limit"),
    OPTION_BOOL(struct config, pace_quiet, "pace.quiet", "false",
                "write in the trainers' quiet phases"),
    OPTION_INT(struct config, pace_quiet_wait_ms, "pace.quiet_wait_ms", 10000, 0, 3600000,
               "longest wait of a chunk for a quiet phase"),
    POLICY_RETENTION(struct config, policies.all.),
    OPTION_STRING(struct config, tier_store, "tier.store", "",
                  "the far tier: s3://bucket/prefix, or dir:/path (shared directory); empty: none"),
    OPTION_INT(struct config, tier_every, "tier.every", 1, 0, 1ll << 40,
               "upload steps that are multiples of N; 0: only the newest"),
    OPTION_CHOICE(struct config, tier_attempts, "tier.attempts", "far", "far,local",
                  "far: a start needs the far tier; local: a start does not, and its saves are "
                  "uploaded after its number is created there"),
    OPTION_BYTES(struct config, tier_part_bytes, "tier.part_bytes", "16MiB", MIB, GIB,
                 "bytes sent and verified at once"),
    OPTION_INT(struct config, tier_connections, "tier.connections", 4, 1, 32,
               "parts in flight"),
    OPTION_BYTES(struct config, tier_rate, "tier.rate", "256MiB", 0, (double)THROTTLE_RATE_MAX,
                 "bytes per second into the far tier; 0: no limit"),
    OPTION_BOOL(struct config, tier_quiet, "tier.quiet", "true",
                "send in the trainers' quiet phases, if they have any"),
    OPTION_INT(struct config, tier_wait_ms, "tier.wait_ms", 60000, 0, 3600000,
               "timeout of a start for a far tier that does not answer"),
    OPTION_INT(struct config, tier_retry_ms, "tier.retry_ms", 1000, 1, 3600000,
               "first pause before a retry of the far tier; doubles up to 64 times that"),
    OPTION_INT(struct config, tier_look_ms, "tier.look_ms", 60000, 0, 86400000,
               "lists and loads search others' checkpoints there if the last search is older"),
    OPTION_INT(struct config, tier_lease_ms, "tier.lease_ms", 2000, 0, 3600000,
               "interval between renewals of a training run's lease; 0: no leases"),
    OPTION_STRING(struct config, nodes_name, "nodes.name", "",
                  "name of this node, as in its certificate: holdfast://node/NAME"),
    OPTION_STRING(struct config, nodes_domain, "nodes.domain", "",
                  "failure domain of this node, lost as a whole; empty: its name"),
    OPTION_STRING(struct config, nodes_peers, "nodes.peers", "",
                  "NAME@DOMAIN=HOST:PORT, ...: the other nodes, at most 255; empty: none"),
    OPTION_INT(struct config, nodes_replicas, "nodes.replicas", 2, 1, 8,
               "failure domains to hold the newest checkpoint of a run"),
    OPTION_CHOICE(struct config, nodes_replicas_in, "nodes.replicas_in", "disk", "disk,memory",
                  "place of copies from other nodes"),
    OPTION_BYTES(struct config, nodes_memory_bytes, "nodes.memory_bytes", "4GiB", MIB, 64 * TIB,
                 "for copies in memory, beside memory.pool_bytes"),
    OPTION_CHOICE(struct config, nodes_attempts, "nodes.attempts", "majority", "majority,local",
                  "majority: a start needs most of the nodes; local: it does not, and two "
                  "disconnected nodes may train the same run"),
    OPTION_BYTES(struct config, nodes_rate, "nodes.rate", "256MiB", 0, (double)THROTTLE_RATE_MAX,
                 "bytes per second to each peer, and from all of them; 0: no limit"),
    OPTION_INT(struct config, nodes_wait_ms, "nodes.wait_ms", 30000, 0, 3600000,
               "timeout of a start for a majority of the nodes"),
    OPTION_INT(struct config, nodes_silent_ms, "nodes.silent_ms", 10000, 1000, 3600000,
               "a save fails if a node with ranks of it is silent for this time"),
    OPTION_INT(struct config, nodes_look_ms, "nodes.look_ms", 10000, 100, 3600000,
               "interval between checks of other nodes"),
    OPTION_INT(struct config, nodes_lost_ms, "nodes.lost_ms", 600000, 1000, 1ll << 40,
               "copies on a node without an answer for this time are recreated on others"),
    OPTION_BYTES(struct config, scrub_rate, "scrub.rate", "4MiB", 0, TIB,
                 "verified bytes per second; 0: none"),
    OPTION_INT(struct config, scrub_period, "scrub.period_s", 604800, 0, 1ll << 32,
               "from the end of a pass over a run to the next one"),
    OPTION_INT(struct config, scrub_start_ms, "scrub.start_ms", 60000, 0, 86400000,
               "from ckptd's start to the first read"),
    OPTION_STRING(struct config, metrics_file, "metrics.file", "",
                  "file for the numbers of Status, in Prometheus' text format; empty: none"),
    OPTION_INT(struct config, metrics_every_ms, "metrics.every_ms", 15000, 100, 3600000,
               "interval between writes"),
    OPTION_STRING(struct config, http_listen, "http.listen", "",
                  "host:port of the page for browsers, Prometheus and probes; empty: none"),
    OPTION_BOOL(struct config, http_public, "http.public", "false",
                "allow a public http.listen: every client can read the status"),
    OPTION_INT(struct config, http_request_ms, "http.request_ms", 30000, 100, 3600000,
               "longest time of a request, from its connection to the end of its answer"),
    OPTION_GONE("limits.identity_burst", "limits.identity_rate determines it"),
    OPTION_GONE("limits.lease_ms", "an idle load ends after 10 minutes"),
    OPTION_GONE("limits.loads", "as many as limits.sessions are allowed"),
    OPTION_GONE("limits.wait_ms", "clients ask again after 60 s in any case"),
    OPTION_GONE("nodes.connections", "ckptd sends two parts at once to each peer"),
    OPTION_GONE("pace.cpu_affinity", "set CPUAffinity= in the systemd unit, or use taskset(1)"),
    OPTION_GONE("pace.io_priority", "set IOSchedulingClass= in the systemd unit, or use ionice(1)"),
    OPTION_GONE("storage.threads", "ckptd has four, at most storage.queue_depth"),
    OPTION_GONE("threads.rpc", "ckptd has two, for hundreds of ranks"),
    OPTION_GONE("tier.cpu_nice", "threads that hash and send have niceness 19"),
    OPTION_GONE("tier.verify_age_s", "scrub.period_s limits the age of a verification"),
    OPTION_GONE("tier.what", "write tier.every: 1 for \"all\", 0 for \"last\""),
    OPTION_END,
};
/* clang-format on */

/* ---- users ---- */

/* Reads the first user id of a comma separated list, and returns the rest; NULL: not such a
 * list. */
static const char *read_uid(const char *list, uid_t *out)
{
    char *end;
    unsigned long one = strtoul(list, &end, 10);
    if (*list < '0' || *list > '9' || one >= (uid_t)-1 || (*end == ',' && end[1] == '\0'))
        return NULL;
    *out = (uid_t)one;
    return *end == ',' ? end + 1 : *end == '\0' ? end : NULL;
}

static bool names_uid(const char *list, uid_t uid)
{
    uid_t one = uid;
    for (const char *at = list; at != NULL && *at != '\0';) {
        at = read_uid(at, &one);
        if (at != NULL && one == uid)
            return true;
    }
    return false;
}

bool config_allows_uid(const struct config *config, uid_t uid)
{
    return names_uid(config->access_uids, uid) || config_is_operator(config, uid);
}

bool config_is_operator(const struct config *config, uid_t uid)
{
    return names_uid(config->access_operators, uid);
}

static int check_uids(const char *key, const char *list)
{
    uid_t one;
    const char *at = list;
    while (at != NULL && *at != '\0')
        at = read_uid(at, &one);
    return at != NULL ? 0
                      : report_error(ERR_INVALID, "write user ids as numbers, as 1000,1001",
                                     "%s = \"%s\" is not a list of user ids", key, list);
}

static int check_access(const struct config *config)
{
    ERR_TRY(check_uids("access.uids", config->access_uids));
    return check_uids("access.operators", config->access_operators);
}

/* Checks for words and commas, as log_setup() reads them. */
static int check_log(const char *list)
{
    for (const char *at = list; *at != '\0';) {
        char word[16];
        at += strspn(at, " ");
        at += *at == '-';
        size_t length = strcspn(at, ",");
        snprintf(word, sizeof word, " %.*s,", (int)length, at);
        if (length + 2 >= sizeof word || strstr(" " LOG_AREAS ",", word) == NULL)
            return report_error(ERR_INVALID, "the areas are " LOG_AREAS,
                                "log = \"%s\": there is no area \"%.*s\"", list, (int)length, at);
        at += length + (at[length] == ',');
    }
    return 0;
}

/* ---- relations ---- */

static int check_rate(const char *key, int64_t rate)
{
    if (rate == 0 || rate >= THROTTLE_RATE_MIN)
        return 0;
    return report_error(ERR_INVALID, "0 is no limit", "%s is below %lld bytes per second", key,
                        (long long)THROTTLE_RATE_MIN);
}

/* A ckptd under test uses stores of tests. */
static bool is_fault_store(const char *text)
{
    return strncmp(text, "fault:", 6) == 0;
}

static int check_store(const struct config *config)
{
    struct storage_where where;
    if (config->store[0] == '\0')
        return report_error(ERR_INVALID, "give --store DIRECTORY, or store = in the config file",
                            "no store was named");
    if (is_fault_store(config->store) || strncmp(config->store, "memory:", 7) == 0)
        return 0;
    if (storage_where_parse(&where, config->store) == 0 && where.ops == &storage_local &&
        !where.is_shared)
        return 0;
    return report_error(ERR_INVALID, "name a directory; a bucket can be the far tier, tier.store",
                        "store = \"%s\" is no directory of this machine", config->store);
}

/* A local disk is no far tier: a path without "dir:" is refused. */
static int check_tier_store(const struct config *config)
{
    struct storage_where where;
    if (config->tier_store[0] == '\0' || is_fault_store(config->tier_store))
        return 0;
    if (storage_where_parse(&where, config->tier_store) == 0 &&
        (where.ops == &storage_s3 || (where.is_shared && where.place[0] == '/')))
        return 0;
    return report_error(ERR_INVALID, "write s3://BUCKET/PREFIX, or dir:/PATH",
                        "tier.store = \"%s\" is no bucket and no shared directory",
                        config->tier_store);
}

static int check_tier(const struct config *config)
{
    ERR_TRY(check_tier_store(config));
    if (config->tier_part_bytes % CHECKSUM_BLOCK_BYTES != 0)
        return report_error(ERR_INVALID, NULL, "tier.part_bytes is not a multiple of 1 MiB");
    return check_rate("tier.rate", config->tier_rate);
}

static bool is_loopback(const struct address *address)
{
    return strcmp(address->host, "127.0.0.1") == 0 || strcmp(address->host, "::1") == 0;
}

static int check_bulk(const struct config *config)
{
    struct address address;
    if (config->tls_bulk[0] == '\0')
        return 0;
    if (address_parse(&address, config->tls_bulk) != 0 || address.kind != ADDRESS_TLS)
        return report_error(ERR_INVALID, "use HOST:PORT, as 0.0.0.0:7071",
                            "tls.bulk = \"%s\" is not an address and a port", config->tls_bulk);
    if (config->tls_listen[0] == '\0')
        return report_error(ERR_INVALID, "set tls.listen too",
                            "tls.bulk = \"%s\" is of no use: tickets for it come over tls.listen",
                            config->tls_bulk);
    if (config->tls_bulk_plain && !is_loopback(&address))
        return report_error(ERR_INVALID, "listen on 127.0.0.1 or [::1], or leave it off",
                            "tls.bulk_plain is for this machine alone, and tls.bulk is \"%s\"",
                            config->tls_bulk);
    if (config->tls_bulk_advertise[0] != '\0' &&
        (address_parse(&address, config->tls_bulk_advertise) != 0 || address.kind != ADDRESS_TLS))
        return report_error(ERR_INVALID, "use HOST:PORT",
                            "tls.bulk_advertise = \"%s\" is not an address and a port",
                            config->tls_bulk_advertise);
    return 0;
}

static int check_http(const struct config *config)
{
    struct address address;
    if (config->http_listen[0] == '\0')
        return 0;
    if (address_parse(&address, config->http_listen) != 0 || address.kind != ADDRESS_TLS)
        return report_error(ERR_INVALID, "use HOST:PORT, as 127.0.0.1:9464",
                            "http.listen = \"%s\" is not an address and a port",
                            config->http_listen);
    if (config->http_public || is_loopback(&address))
        return 0;
    return report_error(ERR_INVALID,
                        "listen on 127.0.0.1 or [::1], or set http.public = true: whoever reaches "
                        "it may then read the status",
                        "http.listen = \"%s\" is no loopback address, and http.public is false",
                        config->http_listen);
}

static int check_nodes(struct config *config)
{
    ERR_TRY(members_parse(&config->members, config->nodes_name, config->nodes_peers));
    if (config->members.count > 0 && config->nodes_name[0] == '\0')
        return report_error(ERR_INVALID, "set nodes.name",
                            "nodes.peers is set, and this node has "
                            "no name");
    if (config->members.count > 0 && config->tls_listen[0] == '\0')
        return report_error(ERR_INVALID, "set tls.listen",
                            "nodes.peers is set, and no peer can come to this node");
    if (config->nodes_domain[0] == '\0')
        snprintf(config->nodes_domain, sizeof config->nodes_domain, "%s", config->nodes_name);
    return check_rate("nodes.rate", config->nodes_rate);
}

static int check_addresses(const struct config *config)
{
    struct address address;
    if (address_parse(&address, config->listen) != 0 || address.kind != ADDRESS_UNIX ||
        strlen(address.path) + strlen(".arena") >= sizeof address.path)
        return report_error(ERR_INVALID, "use unix:/path, at most 100 bytes",
                            "listen = \"%s\" is not the path of a unix socket", config->listen);
    ERR_TRY(check_bulk(config));
    ERR_TRY(check_http(config));
    if (config->tls_listen[0] == '\0')
        return 0;
    if (address_parse(&address, config->tls_listen) != 0 || address.kind != ADDRESS_TLS)
        return report_error(ERR_INVALID, "use HOST:PORT, as 0.0.0.0:7070",
                            "tls.listen = \"%s\" is not an address and a port", config->tls_listen);
    return 0;
}

static int check_relations(struct config *config)
{
    ERR_TRY(check_store(config));
    if (config->listen[0] == 0)
        ERR_TRY(rpc_default_address(config->listen, sizeof config->listen));
    ERR_TRY(check_access(config));
    ERR_TRY(check_log(config->log));
    ERR_TRY(check_addresses(config));
    if (config->block_bytes % CHECKSUM_BLOCK_BYTES != 0)
        return report_error(ERR_INVALID, NULL, "storage.block_bytes is not a multiple of 1 MiB");
    if (config->segment_bytes % config->block_bytes != 0)
        return report_error(ERR_INVALID, NULL,
                            "memory.segment_bytes is not a multiple of storage.block_bytes");
    if (config->pool_bytes % config->segment_bytes != 0)
        return report_error(ERR_INVALID, NULL,
                            "memory.pool_bytes is not a multiple of memory.segment_bytes");
    if (config->limit_exit_private_bytes > 0 &&
        config->limit_exit_private_bytes < config->limit_private_bytes)
        return report_error(ERR_INVALID, "raise it: the alarm comes first",
                            "limits.exit_private_bytes is less than limits.private_bytes");
    ERR_TRY(check_tier(config));
    ERR_TRY(check_nodes(config));
    return check_rate("pace.write_rate", config->pace_write_rate);
}

/* The value of --config, which must be read before the arguments that override it. */
static const char *find_config_file(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--config") == 0 && i + 1 < argc)
            return argv[i + 1];
        if (strncmp(argv[i], "--config=", 9) == 0)
            return argv[i] + 9;
    }
    return NULL;
}

/* For keys that are not in the table: settings of one run. */
static int set_of_run(void *user, const char *key, const char *value, const char *where)
{
    return policy_set(&((struct config *)user)->policies, key, value, where);
}

static int load_from(struct config *out, int argc, char **argv, bool *out_help)
{
    uint32_t num_gone = 0;
    struct options options = {
        .table = table, .config = out, .set_other = set_of_run, .num_gone = &num_gone};
    *out_help = false;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            *out_help = true;
    int error = options_defaults(&options);
    if (error != 0 || *out_help)
        return error;
    const char *file = find_config_file(argc, argv);
    if (file)
        error = options_read_toml(&options, file);
    if (error == 0)
        error = options_read_args(&options, &argc, argv, NULL);
    if (error == 0)
        error = options_check_gone(&options);
    if (error == 0 && argc > 1)
        error =
            report_error(ERR_INVALID, "see --help", "the argument \"%s\" is not known", argv[1]);
    policy_inherit(&out->policies);
    return error == 0 ? check_relations(out) : error;
}

int config_load(struct config *out, int argc, char **argv, bool *out_help)
{
    char **arguments = calloc((size_t)argc + 1, sizeof *arguments); /* parsing reorders them */
    if (!arguments)
        return report_error(ERR_MEMORY, NULL, "no memory for the arguments");
    memcpy(arguments, argv, (size_t)argc * sizeof *arguments);
    memset(out, 0, sizeof *out);
    out->argc = argc;
    out->argv = argv;
    int error = load_from(out, argc, arguments, out_help);
    free(arguments);
    return error;
}

/* Does a reload apply this key at once? */
static bool is_policy(const char *key)
{
    return strncmp(key, "retention.", 10) == 0 || strncmp(key, "tier.keep_", 10) == 0;
}

void config_changed(char out[CONFIG_CHANGED_BYTES], const struct config *a, const struct config *b)
{
    size_t used = 0;
    out[0] = '\0';
    for (const struct option *option = table; option->key; option++) {
        if (is_policy(option->key) || memcmp((const char *)a + option->offset,
                                             (const char *)b + option->offset, option->size) == 0)
            continue;
        int bytes = snprintf(out + used, CONFIG_CHANGED_BYTES - used, "%s%s", used ? ", " : "",
                             option->key);
        used += (size_t)bytes < CONFIG_CHANGED_BYTES - used ? (size_t)bytes : 0;
    }
}

void config_print_help(void)
{
    static struct config defaults;
    struct options options = {.table = table, .config = &defaults};
    printf("ckptd - keeps the checkpoints of training runs\n\n"
           "    ckptd --store DIRECTORY [--config FILE] [--key value ...]\n\n"
           "SIGTERM, SIGINT, SIGHUP: finish running saves and the last ones of connected ranks,\n"
           "then exit. SIGUSR1: reload [retention] and [run.NAME], as `ckpt-cli server reload`.\n"
           "--check checks the configuration and the store, and starts nothing; 0 or 78.\n"
           "Exit codes: 0 ended on request, 75 start it again, 78 the operator must act.\n\n");
    if (options_defaults(&options) == 0)
        options_print_help(&options, stdout);
}
