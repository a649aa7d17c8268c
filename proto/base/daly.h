/* daly.h - how often to save: the cheapest interval, from measured times.
 *
 * Let M be the mean time between failures of the job and D the time that training waits for a save.
 * Let t be the training time between two saves, and R the time from a failure to the first new
 * step. If a failure is equally probable at any time, a training time of T takes
 *
 *     T_w = M e^(R/M) (e^((t+D)/M) - 1) T/t
 *
 * and the cheapest interval is about
 *
 *     t = sqrt(2DM) (1 + sqrt(D/2M)/3 + (D/2M)/9) - D     for D < 2M, else M
 *
 * (J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
 * Future Generation Computer Systems 22, 2006, equations 13 and 37; its first factor is that of J.
 * W. Young, Communications of the ACM 17(9), 1974). A save that is copied but not yet durable is
 * lost with its node. So the time until it is durable counts with R, and is a lower bound of the
 * interval. The overhead is the fraction of T_w that is not training. */
#ifndef HOLDFAST_PROTO_BASE_DALY_H
#define HOLDFAST_PROTO_BASE_DALY_H

/* In seconds. */
struct daly {
    double step, wait, durable; /* of a step; of the wait for a save; from begin to durable */
    double failures, restart;   /* between two failures of the job; from a failure to a new step */
};

struct daly_cost {
    double seconds, steps; /* of training between two saves */
    double overhead, saves;
};

/* Equation 37, not rounded, without the lower bound. */
double daly_interval(const struct daly *daly);
/* The cost of an interval, rounded to whole steps. `step` and `failures` are above 0. */
struct daly_cost daly_cost(const struct daly *daly, double seconds);
/* The cheapest interval and its cost. `wait` is above 0, too. */
struct daly_cost daly_best(const struct daly *daly);

#endif
