/* daly.h - how often to save: the interval that costs least, of what was measured.
 *
 * With M the mean time between failures of the job, D the wait of training for a save, t the time
 * of training between two saves and R the time from a failure to the first new step, a failure
 * being equally probable at any time, a training time of T takes
 *
 *     T_w = M e^(R/M) (e^((t+D)/M) - 1) T/t
 *
 * and the interval that makes it least is about
 *
 *     t = sqrt(2DM) (1 + sqrt(D/2M)/3 + (D/2M)/9) - D     for D < 2M, else M
 *
 * (J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
 * Future Generation Computer Systems 22, 2006, equations 13 and 37; its first factor is that of
 * J. W. Young, Communications of the ACM 17(9), 1974). A save that is copied and not yet durable
 * does not survive its node: the time until it is durable counts with R, and no interval is
 * shorter than it. The overhead is the share of T_w that is not training. */
#ifndef HOLDFAST_PROTO_BASE_DALY_H
#define HOLDFAST_PROTO_BASE_DALY_H

/* Seconds. */
struct daly {
    double step, wait, durable; /* a step; training for a save; from its begin until it is */
    double failures, restart;   /* between two failures of the job; behind one */
};

struct daly_cost {
    double seconds, steps; /* of training between two saves */
    double overhead, saves;
};

/* Of an interval, made one of whole steps. `step` and `failures` are above 0. */
struct daly_cost daly_cost(const struct daly *daly, double seconds);
/* Of the interval that costs least. `wait` is above 0, too. */
struct daly_cost daly_best(const struct daly *daly);

#endif
