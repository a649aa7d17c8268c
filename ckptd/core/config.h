/* config.h - the settings of ckptd; see config.c. */
#ifndef HOLDFAST_CKPTD_CORE_CONFIG_H
#define HOLDFAST_CKPTD_CORE_CONFIG_H

#include "ckptd/core/policy.h"
#include "ckptd/machines/members.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define CONFIG_CHANGED_BYTES 1024u

struct config {
    int argc; /* arguments of config_load(); borrowed */
    char **argv;
    char config_file[256];
    char listen[128];                         /* "unix:/path" */
    char tls_listen[280], tls_directory[256]; /* "host:port"; "": none */
    char tls_bulk[280];                       /* as tls_listen */
    char tls_bulk_advertise[280];             /* as tls_listen; "": the address of tls_bulk */
    bool tls_bulk_plain;
    char store[512];
    bool store_must_exist, make_store, check;
    char log[256];
    char access_uids[256], access_operators[256];
    int64_t pool_bytes, segment_bytes;
    char huge_pages[16];
    int64_t queue_depth, block_bytes;
    char engine[16], saves_replicas[16];
    bool verify_after_write;
    double usable_fraction;
    int64_t threads_workers;
    int64_t limit_sessions, limit_runs, limit_checkpoints;
    int64_t limit_request_bytes;
    int64_t limit_private_bytes; /* 0: no alarm */
    /* 0: ckptd does not shut down for it. */
    int64_t limit_exit_private_bytes;
    int64_t limit_identity_saves, limit_identity_arena_bytes; /* 0: no limit */
    int64_t limit_identity_disk_bytes;                        /* likewise */
    int64_t limit_identity_rate;
    int64_t limit_describe_ms, limit_connect_ms, limit_load_wait_ms;
    int64_t limit_takeover_ms, limit_silent_ms, limit_hang_ms;
    int64_t limit_drain_ms, limit_last_save_ms, limit_look_ms, limit_reopen_ms;
    int64_t pace_cpu_nice;
    int64_t pace_write_rate; /* bytes per second; 0: no limit */
    bool pace_quiet;
    int64_t pace_quiet_wait_ms;
    struct policies policies; /* as read at the start */
    char metrics_file[256];
    int64_t metrics_every_ms;
    char http_listen[280]; /* "host:port"; "": none */
    bool http_public;
    int64_t http_request_ms;
    char tier_store[512]; /* "": no far tier */
    char tier_attempts[8];
    int64_t tier_every;                                   /* 0: only the newest */
    int64_t tier_part_bytes, tier_connections, tier_rate; /* bytes per second; 0: no limit */
    bool tier_quiet;
    int64_t tier_wait_ms, tier_retry_ms, tier_look_ms, tier_lease_ms;
    char nodes_name[33], nodes_domain[33], nodes_attempts[16];
    char nodes_peers[32768];    /* 128 bytes for each */
    char nodes_replicas_in[16]; /* "disk", "memory": where copies from other nodes are kept */
    int64_t nodes_memory_bytes; /* for "memory", beside the pool */
    int64_t nodes_replicas, nodes_rate, nodes_wait_ms, nodes_silent_ms;
    int64_t nodes_look_ms, nodes_lost_ms;
    struct members members;                           /* nodes.peers, parsed */
    int64_t scrub_rate, scrub_period, scrub_start_ms; /* bytes per second, 0: none; seconds */
};
/* Defaults, then the file named by --config, then the other arguments. ERR_INVALID. With --help,
 * *out_help is set and nothing else is checked. */
int config_load(struct config *out, int argc, char **argv, bool *out_help);
/* The keys that differ and cannot change while ckptd serves, separated by commas. */
void config_changed(char out[CONFIG_CHANGED_BYTES], const struct config *a, const struct config *b);
void config_print_help(void);
/* Is the user in access.uids or access.operators? In the latter? */
bool config_allows_uid(const struct config *config, uid_t uid);
bool config_is_operator(const struct config *config, uid_t uid);

#endif
