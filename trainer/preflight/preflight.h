/* preflight.h - checks whether the ranks of a world, and their hosts, are fit to train.
 *
 * Each rank opens its device, copies to it and back, and multiplies small integers and matrices of
 * the model's shapes (products.c). The first rank of a host examines it: cores, limits, memory,
 * clock, versions (node.c), with debug.preflight_folder the disk (disk.c). If all can, each rank
 * sends to each other one (pairs.c). The ranks of a host sum and gather, then all ranks
 * (collectives.c): by NCCL, MPI or memory, as in training. Both go through all payloads. Then rates
 * are compared (judge.c, judge_pairs.c). No data, no weights and no ckptd are needed. */
#ifndef HOLDFAST_TRAINER_PREFLIGHT_PREFLIGHT_H
#define HOLDFAST_TRAINER_PREFLIGHT_PREFLIGHT_H

#include "kernels/device.h"
#include "trainer/run/rank.h"

#include <sched.h>

#define PREFLIGHT_TEXT_BYTES 384

/* Each four times the one before it, as in links.c. */
enum { PAYLOAD_16K, PAYLOAD_64K, PAYLOAD_256K, PAYLOAD_1M, PAYLOAD_4M, PREFLIGHT_PAYLOADS };

/* Bus rates of calls by payload, bytes/s, as in links.h; 0: not tried. */
struct call_rates {
    double sum[PREFLIGHT_PAYLOADS], gather[PREFLIGHT_PAYLOADS];
};

/* Bytes/s received from a peer, by round (preflight_offset) and payload; 0: not tried. */
#define PREFLIGHT_ROUNDS 63u
struct pair_rates {
    double of[PREFLIGHT_ROUNDS][PREFLIGHT_PAYLOADS];
};

/* The products of a matrix of the model, for all layers: forward and both halves of the backward.
 */
struct preflight_shape {
    uint32_t rows, in, out_dim;
    uint32_t count; /* of its matrices in a step of one micro-batch */
    double flops;   /* of their forward, also of what is not measured: the weight of `rate` */
    double rate;    /* floating-point operations/s */
};
/* The products of a micro-batch on one rank. At most a shape for each matrix of a layer, and one
 * for the output. */
#define PREFLIGHT_SHAPES 8u
struct preflight_products {
    uint32_t num;
    struct preflight_shape of[PREFLIGHT_SHAPES];
    double rate;       /* of all of them together; 0: not measured */
    double mean_flops; /* of one product */
    double peak;       /* of the device, by metrics.peak_tflops or its data sheet; 0: not known */
};

/* Bytes/s of files written one after the other, as by ckptd; 0: not tried. */
struct disk_facts {
    bool has_failed;
    bool is_stuck;               /* it did not answer in time */
    double write, durable, read; /* durable: with the syncs */
    double fio_write;            /* by fio; 0: there is none */
};

/* A rank's findings on its host. memory_alone and disk are of its first rank only. */
struct node_facts {
    cpu_set_t cores;                  /* cores of this rank; none: not known */
    uint32_t threads;                 /* of this rank, for products on the CPU; 0: it has a GPU */
    double memory_rate, memory_alone; /* bytes/s copied: by all ranks of the host at once; by one */
    uint64_t memlock, nofile;         /* soft limits; UINT64_MAX: none */
    uint64_t shm_bytes;               /* of /dev/shm; 0: none */
    int ring_error;                   /* errno of io_uring_setup; 0: io_uring can be used */
    char huge_pages[16];              /* transparent ones: always, madvise or never */
    double clock, round_trip;         /* seconds ahead of rank 0's host; shortest round trip */
    char kernel[64], version[64];     /* of the system; of this program */
    struct call_rates calls;          /* among the ranks of the host */
    struct disk_facts disk;           /* of debug.preflight_folder */
};

enum fitness { FIT, SLOW, BROKEN };

/* A rank's findings. Rates depend on other work on the machine at the moment. */
struct finding {
    char host[64];
    char device[160];                 /* from kernels_describe(); "": not opened */
    char identity[96];                /* device_identity() */
    uint64_t memory_all, memory_free; /* bytes of the device's own memory; 0: it uses the host's */
    double copy_rate;                 /* bytes/s, to the device and back */
    double product_rate;              /* floating-point operations/s, of square products */
    struct preflight_products model;
    struct pair_rates pairs; /* this rank receives */
    /* Of 4 MiB on links, bytes/s, by preflight_set_fitness(); 0: not tried. With several hosts only
     * links between hosts count. The fastest to this rank and from it; the slowest to it. */
    double link_rate, send_rate, slowest_rate;
    uint32_t slowest_from; /* the rank at the other end of the slowest */
    struct device_health health;
    double links_up;         /* NVLinks; 0: none, or not known */
    struct call_rates calls; /* among all ranks, if they are on several hosts */
    struct node_facts node;
    char problem[PREFLIGHT_TEXT_BYTES]; /* "": none; preflight_set_fitness() adds low rates */
    char warning[PREFLIGHT_TEXT_BYTES]; /* of its host, by preflight_set_fitness(); "": none */
    enum fitness fitness;               /* set by preflight_set_fitness() */
};

/* Sets problem, warning and fitness of each. A rank with a problem is broken. Each rate is compared
 * with its median over the ranks (for memory: over the hosts) that have one, if there are at least
 * PREFLIGHT_COMPARED. The slowest link to a rank is compared with the median of all links. Links
 * are compared with 4 MiB alone: latencies of less depend on what else runs. Below
 * the first bound a rank is slow, below the second it is broken; a host's problem is that of its
 * first rank. Bounds are parts of the median:
 *
 *     both products, memory of one rank     0.85  0.5
 *     copies, memory of all ranks at once   0.85  0.25   other processes disturb them
 *     links, calls of a host's ranks, disk  0.5   0.1
 *     NVLinks that are up                   1     none
 *
 * A GPU with memory errors, or one that cannot replace a row, is broken. A GPU with slowed clocks,
 * with fewer bus lanes or a lower generation of PCIe than it supports, or that waits for a reset is
 * slow. A host is warned of if it has lower limits or fewer cores than most, or other GPUs, drivers
 * or versions than rank 0's.
 *
 * A rank is slow, too, if its products at the model's shapes have less than PREFLIGHT_PEAK_PART of
 * its device's peak, unless they are too short for it: PREFLIGHT_PEAK_SECONDS each at the peak.
 *
 * On a host with more threads than cores ranks slow each other down: rates break none of them.
 * ERR_MEMORY. */
int preflight_set_fitness(struct finding *all, uint32_t num);
#define PREFLIGHT_COMPARED 3u
#define PREFLIGHT_PEAK_PART 0.3
#define PREFLIGHT_PEAK_SECONDS 20e-6            /* about four launches of a GPU */
#define PREFLIGHT_CLOCK_WARN 0.1                /* seconds; beyond half a round trip */
#define PREFLIGHT_SHM_WARN ((uint64_t)64 << 20) /* the default of containers */

/* Call on all ranks (ranks_run). Rank 0 prints a line for each rank and each host, or with
 * memory_estimation.json one JSON object. *out_exit: EXIT_DO_NOT_RETRY if a rank is broken.
 * ERR_INVALID: the settings name no model; no rank is tested. ERR_UNAVAILABLE: a rank did not
 * answer. Collective. */
int preflight(struct rank *rank, int *out_exit);

#endif
