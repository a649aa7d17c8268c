/* places.c - the user's cache folder, folders in it, and locks (see places.h). */
#include "trainer/corpus/places.h"

#include "proto/base/clock.h"
#include "proto/base/report.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOCK_POLL_NS 50000000L /* between two tries to get a lock */

int places_user_cache(char out[CORPUS_PATH_BYTES])
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length = -1;
    if (cache != NULL && cache[0] == '/')
        length = snprintf(out, CORPUS_PATH_BYTES, "%s/holdfast", cache);
    else if (home != NULL && home[0] == '/')
        length = snprintf(out, CORPUS_PATH_BYTES, "%s/.cache/holdfast", home);
    return length > 0 && length < (int)CORPUS_PATH_BYTES - 80
               ? 0
               : report_error(ERR_INVALID, "set HOME or XDG_CACHE_HOME",
                              "there is no cache folder of the user");
}

bool places_make_folder(const char *path)
{
    char part[CORPUS_PATH_BYTES];
    if (snprintf(part, sizeof part, "%s", path) >= (int)sizeof part)
        return false;
    for (char *slash = strchr(part + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(part, 0777);
        *slash = '/';
    }
    mkdir(part, 0777);
    return access(path, W_OK | X_OK) == 0;
}

int places_lock(int *out, const char *path, const volatile sig_atomic_t *want_stop)
{
    *out = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*out < 0)
        return report_errno(ERR_IO, "could not open the lock of a corpus", path);
    if (flock(*out, LOCK_EX | LOCK_NB) == 0)
        return 0;
    if (errno == EWOULDBLOCK)
        log_info("data", "waiting for another process that prepares the same data (%s)", path);
    bool stops = false;
    while (!stops && (errno == EWOULDBLOCK || errno == EINTR)) {
        clock_sleep_ns(LOCK_POLL_NS);
        if (flock(*out, LOCK_EX | LOCK_NB) == 0)
            return 0;
        stops = want_stop != NULL && *want_stop != 0;
    }
    int result = stops ? report_error(ERR_ABORTED, NULL, "the wait for %s was stopped", path)
                       : report_errno(ERR_IO, "could not lock a corpus", path);
    close(*out);
    return result;
}
