/* store_identity.c - a far tier is known by 32 random digits that lie in it, not by its name.
 *
 * A bucket may be deleted and made again under its name, and another server may answer at its
 * address. What was there counts as removed then: retention would take what is missing for old, the
 * disk would give up what is nowhere else, and a number that was taken could be taken again. So the
 * first ckptd that opens a far tier publishes an identity in it, once, whoever else does so at the
 * same time; each ckptd notes in its own store which one it found behind the text of tier.store.
 * Where another one is there later, or none, the tier is refused as long as the note is there:
 * nothing is sent, nothing removed, and what is saved stays on the disk.
 *
 * It is looked at when the tier is opened, and by each look at it, transfer, and plan of retention.
 * A node that has lost its own store has no note, and takes what it finds. */
#include "ckptd/core/store_identity.h"
#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "proto/format/manifest.h"
#include "storage/storage.h"

#include <stdio.h>
#include <string.h>

#define OBJECT "tier-identity"       /* in the far tier's root */
#define NOTE "tier-identity.%016llx" /* in the local store's, by the text of tier.store */
#define OWN "store-identity"         /* in the local store's, its own */
#define DIGITS (STORE_IDENTITY_BYTES - 1)

/* ERR_NOT_FOUND: there is none. */
static int read_identity(char out[STORE_IDENTITY_BYTES], struct storage *storage, const char *key)
{
    char text[STORE_IDENTITY_BYTES + 1] = "";
    uint64_t bytes = 0;
    ERR_TRY(storage_fetch(storage, key, text, sizeof text, &bytes));
    if (bytes != STORE_IDENTITY_BYTES || strspn(text, "0123456789abcdef") != DIGITS ||
        text[DIGITS] != '\n')
        return report_error(ERR_CORRUPT, NULL, "%s is no identity of a store", key);
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
                        "the far tier %s is another store than before: %s%s, not of %s", place,
                        found[0] ? "of identity " : "it has no identity", found, identity);
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
             "bring the one of before back; or, if this one is meant, remove %s from the store "
             "and start ckptd again",
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
               : refuse_identity(place, found, identity, "bring that back, then restart ckptd");
}
