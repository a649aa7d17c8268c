/* hold.c - claims a directory in another tier before the first byte of a transfer.
 *
 *   <run>/attempts/0003              exclusive: if two stores took one number independently,
 *                                    one drains and the other stops with an alarm
 *   <run>/leases/<step>.<nonce>      so that no gc removes the directory
 *   <run>/step-.../unfinished        the proof that it is unfinished work (proto/format/mark.h)
 *
 * In the local tier, where a copy is mended, this store has the number already, as its writer's
 * lock proves.
 *
 * The file of the number equals that of the local store; an attempt that was opened with the far
 * tier has it there already. Attempt files without a nonce (of older releases), and imported
 * checkpoints without an attempt, are claimed with a text whose nonce is derived from host and
 * store id. */
#include "ckptd/tiers/hold.h"
#include "ckptd/core/service.h"
#include "ckptd/core/store_key.h"
#include "ckptd/machines/sets.h"
#include "ckptd/memory/store_watch.h"
#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "proto/format/mark.h"
#include "proto/format/shard.h"
#include "storage/store/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ATTEMPT_TEXT_MAX (8u << 20)
#define NONCE_DIGITS 32
#define NONCE_KEY "\"nonce\":\""

/* At the beginning of the text, where tier_settle() searches. */
static bool find_nonce(char out[NONCE_DIGITS + 1], const char *text, size_t bytes)
{
    bytes = bytes < TIER_NONCE_BYTES ? bytes : TIER_NONCE_BYTES;
    const char *at = memmem(text, bytes, NONCE_KEY, strlen(NONCE_KEY));
    if (!at || (size_t)(at + strlen(NONCE_KEY) + NONCE_DIGITS - text) > bytes)
        return false;
    memcpy(out, at + strlen(NONCE_KEY), NONCE_DIGITS);
    out[NONCE_DIGITS] = '\0';
    return shard_nonce_is_valid(out);
}

static int make_claim_text(char **out, char nonce[NONCE_DIGITS + 1], const struct service *service,
                           const struct manifest_summary *summary)
{
    char whose[512], host[65] = "", sha256[CHECKSUM_SHA256_HEX];
    gethostname(host, sizeof host - 1);
    snprintf(whose, sizeof whose, "%s/%s/%s/%" PRIu64, host,
             service->store_watch ? service->store_watch->directory.id : "", summary->run,
             summary->attempt);
    ERR_TRY(checksum_sha256_hex(sha256, whose, strlen(whose)));
    memcpy(nonce, sha256, NONCE_DIGITS);
    nonce[NONCE_DIGITS] = '\0';
    if (asprintf(out,
                 "{\"format\":\"holdfast-claim\",\"version\":1,\"run\":\"%s\",\"attempt\":%" PRIu64
                 ",\"nonce\":\"%s\"}\n",
                 summary->run, summary->attempt, nonce) >= 0)
        return 0;
    *out = NULL;
    return report_error(ERR_MEMORY, NULL, "no memory to claim an attempt");
}

static enum publication claim_attempt(const struct hold *claim, const struct service *service,
                                      const struct manifest_summary *summary)
{
    char key[STORAGE_KEY_MAX], nonce[NONCE_DIGITS + 1];
    void *text = NULL;
    char *made = NULL;
    size_t bytes = 0;
    store_key_of_attempt(key, summary->run, summary->attempt);
    int error = storage_fetch_all(service->storage, key, ATTEMPT_TEXT_MAX, &text, &bytes);
    if (error == ERR_NOT_FOUND || (error == 0 && !find_nonce(nonce, text, bytes)))
        error = make_claim_text(&made, nonce, service, summary);
    else if (error == 0) /* its ranks save, so the attempt was answered: S3 of sets.c */
        error = sets_held_text(&made, text, bytes);
    enum publication outcome = PUBLICATION_UNKNOWN;
    if (error == 0)
        outcome = tier_publish(claim->storage, key, made, strlen(made), nonce);
    if (outcome == PUBLICATION_TAKEN)
        report_error(ERR_EXISTS, "give the run another name",
                     "another store has taken attempt %" PRIu64 " of run %s there",
                     summary->attempt, summary->run);
    free(text);
    free(made);
    return outcome;
}

/* The attempt is this store's, so another mark at a peer is of a save of this step that was given
 * up: its removal did not reach the peer. Replaces it. */
static enum publication claim_directory(struct hold *claim, const struct service *service,
                                        enum tier_index tier,
                                        const struct manifest_summary *summary)
{
    char key[STORAGE_KEY_MAX + 32], text[MARK_BYTES_MAX];
    struct shard_identity identity;
    manifest_identity(&identity, summary, 0);
    mark_write(text, &identity, service->boot_id);
    snprintf(key, sizeof key, "%s/" MARK_NAME, claim->prefix);
    if (!claim->lease &&
        store_lease(claim->storage, &claim->lease, claim->prefix, "ckptd drains it\n") != 0)
        return PUBLICATION_UNKNOWN;
    enum publication outcome =
        tier_publish(claim->storage, key, text, strlen(text), summary->nonce);
    if (outcome != PUBLICATION_TAKEN || !tier_is_peer(tier))
        return outcome;
    int error = storage_remove(claim->storage, key);
    return error == 0 || error == ERR_NOT_FOUND
               ? tier_publish(claim->storage, key, text, strlen(text), summary->nonce)
               : PUBLICATION_UNKNOWN;
}

enum publication hold_take(struct hold *claim, struct service *service, enum tier_index tier,
                           const struct manifest_summary *summary)
{
    claim->storage = service->tiers[tier].storage;
    if (shard_dir_key(claim->prefix, sizeof claim->prefix, summary->run, summary->step,
                      summary->attempt) != 0)
        return PUBLICATION_UNKNOWN;
    if (tier_reach(service, tier) != 0)
        return PUBLICATION_UNKNOWN;
    enum publication outcome =
        tier == TIER_LOCAL ? PUBLICATION_DURABLE : claim_attempt(claim, service, summary);
    if (outcome != PUBLICATION_DURABLE)
        return outcome;
    /* A peer handles its own tombstones. */
    if (!tier_is_peer(tier) && store_prepare_run(claim->storage, summary->run) != 0)
        return PUBLICATION_UNKNOWN;
    return claim_directory(claim, service, tier, summary);
}

void hold_end(struct hold *claim, bool is_held)
{
    char key[STORAGE_KEY_MAX + 32];
    if (!claim->storage)
        return;
    snprintf(key, sizeof key, "%s/" MARK_NAME, claim->prefix);
    if (is_held && storage_remove(claim->storage, key) != 0)
        log_debug("drain", "%s stays in the far tier: %s", key, report_line());
    storage_release(claim->storage, claim->lease);
    *claim = (struct hold){0};
}

void hold_leave(struct hold *claim)
{
    if (claim->lease)
        storage_leave(claim->storage, claim->lease);
    *claim = (struct hold){0};
}
