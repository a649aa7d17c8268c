/* textfile.h - writes a run's numbers for Prometheus to a file that its node_exporter reads.
 *
 * With metrics.prometheus_file rank 0 writes the numbers of each step line to that file. Its name
 * should end in ".prom", in the folder of --collector.textfile.directory. It is replaced as a
 * whole, so a reader never gets half of it. It is removed when the run ends. A killed run leaves
 * it, and holdfast_trainer_time_seconds shows its age. */
#ifndef HOLDFAST_TRAINER_TEXTFILE_H
#define HOLDFAST_TRAINER_TEXTFILE_H

#include <stdbool.h>
#include <stddef.h>

struct textfile_value {
    const char *name, *help; /* of a gauge; a name that ends in "_total" is a counter */
    double value;
};

/* Replaces the file. ERR_IO. */
int textfile_write(const char *path, const char *run, const struct textfile_value *values,
                   size_t num);

#endif
