/* textfile.c - writes a run's numbers for Prometheus to a file (see textfile.h). */
#include "trainer/observe/textfile.h"
#include "proto/base/report.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_counter(const char *name)
{
    static const char end[] = "_total";
    size_t length = strlen(name);
    return length >= strlen(end) && strcmp(name + length - strlen(end), end) == 0;
}

/* In the format of exposition 0.0.4, which has names for numbers that are not finite. */
static void print_value(FILE *out, const char *run, const struct textfile_value *v)
{
    fprintf(out, "# HELP holdfast_trainer_%s %s\n# TYPE holdfast_trainer_%s %s\n", v->name, v->help,
            v->name, is_counter(v->name) ? "counter" : "gauge");
    fprintf(out, "holdfast_trainer_%s{run=\"%s\"} ", v->name, run);
    if (isfinite(v->value))
        fprintf(out, "%.17g\n", v->value);
    else
        fprintf(out, "%s\n", isnan(v->value) ? "NaN" : v->value > 0 ? "+Inf" : "-Inf");
}

static int fail(const char *path)
{
    return report_errno(ERR_IO, "could not write metrics.prometheus_file", path);
}

int textfile_write(const char *path, const char *run, const struct textfile_value *values,
                   size_t num)
{
    char *next = NULL;
    if (asprintf(&next, "%s.next", path) < 0)
        return report_error(ERR_MEMORY, NULL, "no memory for the name of a file");
    FILE *out = fopen(next, "w");
    for (size_t i = 0; out != NULL && i < num; i++)
        print_value(out, run, &values[i]);
    bool is_whole = out != NULL && !ferror(out);
    int rc =
        out != NULL && fclose(out) == 0 && is_whole && rename(next, path) == 0 ? 0 : fail(path);
    if (rc != 0)
        unlink(next);
    free(next);
    return rc;
}
