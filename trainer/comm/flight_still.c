/* flight_still.c - finds a rank whose process stands still, by the rings of all ranks in the folder
 * of this one (see flight_ring.h).
 *
 * Each process notes twice a second in its ring that it runs (flight_beat_all). A process that has
 * not for seconds, while this one runs, is stopped, or its node is: other ranks wait for it in a
 * call that it, too, has begun, so calls do not tell. Rings of dead processes and of other hosts do
 * not count. */
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "trainer/comm/flight_ring.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

/* True: `name` is PREFIX, digits, ".ring". */
static bool is_ring_name(const char *name, const char *prefix)
{
    size_t length = strlen(prefix);
    if (strncmp(name, prefix, length) != 0)
        return false;
    size_t digits = strspn(name + length, "0123456789");
    return digits > 0 && strcmp(name + length + digits, ".ring") == 0;
}

static void look_at(struct flight_still *most, const char *path)
{
    struct flight_ring *ring;
    bool is_dead = false;
    if (flight_ring_read(&ring, &is_dead, path) != 0) {
        report_clear(); /* of another build, or being made */
        return;
    }
    int64_t still_ms = (int64_t)((uint64_t)clock_wall_ms() - (uint64_t)ring->alive_ms);
    bool is_here = ring->boot != 0 && ring->boot == flight_ring_boot();
    if (is_here && !is_dead && still_ms >= FLIGHT_STILL_MS &&
        1e-3 * (double)still_ms > most->seconds)
        *most = (struct flight_still){ring->rank, 1e-3 * (double)still_ms};
    flight_ring_free(ring, -1, NULL);
}

bool flight_find_still(struct flight_still *out, const char *folder, const char *prefix)
{
    char path[4096];
    const struct dirent *entry;
    *out = (struct flight_still){.seconds = 0};
    DIR *dir = folder[0] != '\0' ? opendir(folder) : NULL;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (!is_ring_name(entry->d_name, prefix))
            continue;
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        look_at(out, path);
    }
    if (dir != NULL)
        closedir(dir);
    return out->seconds > 0;
}
