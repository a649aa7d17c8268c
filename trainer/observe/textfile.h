/* textfile.h - a run's numbers for Prometheus, in a file that its node_exporter reads.
 *
 * With metrics.prometheus_file rank 0 puts the numbers of each step line into that file, which
 * should end in ".prom" and lie in the folder of --collector.textfile.directory. It is replaced as
 * a whole, so nobody reads half of it. When the run ends it goes; one that was killed leaves it,
 * and holdfast_trainer_time_seconds says how old it is. */
#ifndef HOLDFAST_TRAINER_TEXTFILE_H
#define HOLDFAST_TRAINER_TEXTFILE_H

#include <stdbool.h>
#include <stddef.h>

struct textfile_value {
    const char *name, *help; /* of a gauge; one that ends in "_total" is a counter */
    double value;
};

/* Replaces the file. ERR_IO. */
int textfile_write(const char *path, const char *run, const struct textfile_value *values,
                   size_t num);

#endif
