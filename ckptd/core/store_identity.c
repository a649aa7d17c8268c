/* store_identity.c - identifies a far tier by 32 random digits in it, not by its name.
 *
 * A bucket may be deleted and created again with the same name, and another server may answer at
 * its address. Then everything there counts as removed: retention takes missing checkpoints for old
 * ones, ckptd drops local copies that exist nowhere else, and used attempt numbers are free again.
 * So the first ckptd that opens a far tier publishes an identity in it, exclusively. Each ckptd
 * notes the one it found in its own store, under the text of tier.store. If the tier later has
 * another identity, or none, it is refused as long as the note exists: ckptd sends nothing, removes
 * nothing, and keeps new checkpoints on its disk.
 *
 * The identity is checked when the tier is opened, and by each refresh, transfer, and retention
 * plan of it. A node that has lost its own store has no note, and accepts the identity that it
 * finds. */
#include "ckptd/core/store_identity.h"
#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "proto/format/manifest.h"
#include "storage/storage.h"

#include <stdio.h>
#include <string.h>

#define OBJECT "tier-identity" /* in the root of the far tier */
/* In the local store, with the hash of the text of tier.store. */
#define NOTE "tier-identity.%016llx"
#define OWN "store-identity" /* in the local store: its own identity */
#define DIGITS (STORE_IDENTITY_BYTES - 1)

/* ERR_NOT_FOUND: there is none. */
static int read_identity(char out[STORE_IDENTITY_BYTES], struct storage *storage, const char *key)
{
    char text[STORE_IDENTITY_BYTES + 1] = "";
    uint64_t bytes = 0;
    ERR_TRY(storage_fetch(storage, key, text, sizeof text, &bytes));
    if (bytes != STORE_IDENTITY_BYTES || strspn(text, "0123456789abcdef") != DIGITS ||
        text[DIGITS] != '\n')
        return report_error(ERR_CORRUPT, NULL, "%s is not the identity of a store", key);
    memcpy(out, text, DIGITS);
    out[DIGITS] = '\0';
    return 0;
}

static int publish_identity(struct storage *storage, const char *key, const char *identity)
{
    char text[STORE_IDENTITY_BYTES + 1];
    snprintf(text, sizeof text, "%s\n", identity);
    return storage_publish(storage, key, text, strlen(text));
}

static int make_identity(char out[STORE_IDENTITY_BYTES], struct storage *storage, const char *key)
{
    ERR_TRY(manifest_new_nonce(out));
    int error = publish_identity(storage, key, out);
    return error == ERR_EXISTS ? read_identity(out, storage, key) : error;
}

int store_identity_of(char out[STORE_IDENTITY_BYTES], struct storage *local)
{
    int error = read_identity(out, local, OWN);
    return error == ERR_NOT_FOUND ? make_identity(out, local, OWN) : error;
}

static int refuse_identity(const char *place, const char *found, const char *identity,
                           const char *hint)
{
    return report_error(ERR_MISMATCH, hint,
                        "the far tier %s is not the store that was used before: %s%s, expected %s",
                        place, found[0] ? "identity " : "no identity", found, identity);
}

int store_identity_take(char out[STORE_IDENTITY_BYTES], struct storage *far, struct storage *local,
                        const char *place)
{
    char note[64], found[STORE_IDENTITY_BYTES] = "", hint[200];
    snprintf(note, sizeof note, NOTE, (unsigned long long)checksum_bytes(place, strlen(place)));
    int remembered = read_identity(out, local, note);
    if (remembered != 0 && remembered != ERR_NOT_FOUND)
        return remembered;
    int error = read_identity(found, far, OBJECT);
    if (error == ERR_NOT_FOUND && remembered == ERR_NOT_FOUND)
        error = make_identity(found, far, OBJECT);
    if (error != 0 && error != ERR_NOT_FOUND)
        return error;
    snprintf(hint, sizeof hint,
             "restore the previous far tier; or, to use this one, remove %s from the store and "
             "start ckptd again",
             note);
    if (remembered == 0)
        return strcmp(found, out) == 0 ? 0 : refuse_identity(place, found, out, hint);
    memcpy(out, found, STORE_IDENTITY_BYTES);
    return publish_identity(local, note, out);
}

int store_identity_check(struct storage *far, const char *identity, const char *place)
{
    char found[STORE_IDENTITY_BYTES] = "";
    int error = read_identity(found, far, OBJECT);
    if (error != 0 && error != ERR_NOT_FOUND)
        return error;
    return strcmp(found, identity) == 0
               ? 0
               : refuse_identity(place, found, identity,
                                 "restore the previous far tier, then restart ckptd");
}
