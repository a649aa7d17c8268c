/* pace.c - how fast a store may send: one rate for all its connections, and others at times of day.
 *
 * A bucket of tokens, one per byte, filled at the rate and at most BURST_NS deep; who takes more
 * than there are waits for the rest, in turns. Windows are of the local time; the first that fits
 * counts. A rate of 0 there means that nothing is sent: what is under way stops between two pieces,
 * until the window ends. */
#include "storage/bucket/bucket.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SECOND_NS UINT64_C(1000000000)
#define BURST_NS (SECOND_NS / 10)
#define LOOK_NS (SECOND_NS / 5) /* at the clock, while nothing may be sent */
#define DAY_MINUTES (24 * 60)

struct pace {
    int64_t rate;
    char windows[sizeof((struct storage_bucket *)0)->windows];
    pthread_mutex_t mutex; /* guards free_ns */
    uint64_t free_ns;      /* when what was taken will have been sent */
};

struct window {
    int begin, end; /* minutes of the day */
    int64_t rate;   /* 0: nothing */
};

/* Bytes per second with a suffix, from *text on, which moves behind it. -1: no such number. */
static int64_t read_rate(const char **text)
{
    static const char *const suffixes[] = {"", "KiB", "MiB", "GiB"};
    char *end;
    if (**text < '0' || **text > '9')
        return -1;
    int64_t value = (int64_t)strtoll(*text, &end, 10);
    for (int i = 3; i > 0; i--)
        if (strncmp(end, suffixes[i], 3) == 0 && value < INT64_MAX >> (10 * i)) {
            *text = end + 3;
            return value << (10 * i);
        }
    *text = end;
    return value;
}

/* The next of "22:00-06:00=0,...". False: there is none, or it cannot be read, where *text stays.
 */
static bool next_window(struct window *out, const char **text)
{
    int hours[2], minutes[2], used = 0;
    const char *at = *text;
    if (sscanf(at, "%2d:%2d-%2d:%2d=%n", &hours[0], &minutes[0], &hours[1], &minutes[1], &used) !=
            4 ||
        used == 0)
        return false;
    at += used;
    out->rate = read_rate(&at);
    for (int i = 0; i < 2; i++)
        if (hours[i] < 0 || hours[i] > 24 || minutes[i] < 0 || minutes[i] > 59)
            return false;
    out->begin = hours[0] * 60 + minutes[0];
    out->end = hours[1] * 60 + minutes[1];
    if (out->rate < 0 || (*at != ',' && *at != '\0'))
        return false;
    *text = *at == ',' ? at + 1 : at;
    return true;
}

int64_t pace_rate_at(int64_t rate, const char *windows, int minute)
{
    struct window window;
    while (next_window(&window, &windows)) {
        bool is_over_night = window.end <= window.begin;
        bool is_in = is_over_night ? minute >= window.begin || minute < window.end
                                   : minute >= window.begin && minute < window.end;
        if (is_in)
            return window.rate > 0 ? window.rate : -1;
    }
    return rate;
}

int pace_open(struct pace **out, int64_t rate, const char *windows)
{
    struct window window;
    const char *rest = windows;
    while (next_window(&window, &rest))
        continue;
    if (*rest != '\0')
        return report_error(ERR_INVALID, "write 22:00-06:00=0,12:00-13:00=1MiB",
                            "windows = \"%s\" cannot be read from \"%s\" on", windows, rest);
    struct pace *pace = calloc(1, sizeof *pace);
    if (pace == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a rate");
    pace->rate = rate;
    snprintf(pace->windows, sizeof pace->windows, "%s", windows);
    pthread_mutex_init(&pace->mutex, NULL);
    *out = pace;
    return 0;
}

void pace_close(struct pace *pace)
{
    if (pace == NULL)
        return;
    pthread_mutex_destroy(&pace->mutex);
    free(pace);
}

static void wait_ns(uint64_t ns)
{
    struct timespec left = {(time_t)(ns / SECOND_NS), (long)(ns % SECOND_NS)};
    while (nanosleep(&left, &left) != 0)
        continue;
}

static int64_t rate_now(const struct pace *pace)
{
    struct tm local;
    time_t now = time(NULL);
    if (pace->windows[0] == '\0')
        return pace->rate;
    localtime_r(&now, &local);
    return pace_rate_at(pace->rate, pace->windows, local.tm_hour * 60 + local.tm_min);
}

void pace_take(void *user, size_t bytes)
{
    struct pace *pace = user;
    int64_t rate;
    while ((rate = rate_now(pace)) < 0)
        wait_ns(LOOK_NS);
    if (rate == 0)
        return;
    pthread_mutex_lock(&pace->mutex);
    uint64_t now = bucket_now_ns();
    uint64_t from = pace->free_ns + BURST_NS > now ? pace->free_ns : now - BURST_NS;
    pace->free_ns = from + (uint64_t)((double)bytes / (double)rate * (double)SECOND_NS);
    uint64_t until = pace->free_ns;
    pthread_mutex_unlock(&pace->mutex);
    if (until > now)
        wait_ns(until - now);
}
