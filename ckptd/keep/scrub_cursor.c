/* scrub_cursor.c - where the scrub of a run stands, as a numbered object (storage.h) of the run:
 * the next ckptd goes on there. What the text says: proto/format/retain.h. */
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/service.h"
#include "ckptd/keep/scrub.h"
#include "proto/base/report.h"
#include "storage/storage.h"

#include <stdio.h>

/* The next number is the note's, whatever becomes of it. What a tool is bringing now this pass may
 * have passed by the time that it is there. */
void scrub_take_note(struct scrub_note *out, struct run *run)
{
    struct scrub_cursor cursor = run->scrubbed;
    cursor.missed |= run->adopting != 0 && run->service->scrub;
    snprintf(out->folder, sizeof out->folder, "%s/" SCRUB_FOLDER, run->name);
    scrub_cursor_write(out->text, &cursor);
    out->number = run->scrubbed.number++;
}

int scrub_keep(struct storage *storage, const struct scrub_note *note)
{
    return storage_publish_numbered(storage, note->folder, note->number, note->text);
}

int scrub_read_cursor(struct run *run)
{
    char folder[STORAGE_KEY_MAX], text[SCRUB_CURSOR_BYTES_MAX];
    uint64_t number;
    snprintf(folder, sizeof folder, "%s/" SCRUB_FOLDER, run->name);
    int error = storage_fetch_numbered(run->service->storage, folder, &number, text, sizeof text);
    if (error == ERR_MEMORY)
        return error;
    if (!scrub_cursor_read(&run->scrubbed, number, text) || error != 0)
        log_warn("scrub", "run %s: the cursor in %s cannot be read, the scrub begins again",
                 run->name, folder);
    return 0;
}
