/* judge_pairs.c - finds slow links between two ranks; pure (see preflight.h). */
#include "proto/base/report.h"
#include "trainer/base/median.h"
#include "trainer/preflight/private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PAIR_SLOW 0.5
#define PAIR_BROKEN 0.1

size_t preflight_bytes(uint32_t payload)
{
    return TRIAL_BYTES >> 2 * (PAYLOAD_4M - payload);
}

uint32_t preflight_rounds(uint32_t ranks)
{
    return ranks <= PREFLIGHT_ROUNDS ? ranks - 1 : PREFLIGHT_ROUNDS;
}

uint32_t preflight_offset(uint32_t ranks, uint32_t round)
{
    return (uint32_t)((uint64_t)(round + 1) * ranks / (preflight_rounds(ranks) + 1));
}

uint32_t preflight_peer(uint32_t rank, uint32_t ranks, uint32_t offset)
{
    return (rank + ranks - offset) % ranks;
}

/* The rates at which `to` received, by payload. NULL: not tried or, if there are several hosts, of
 * one host. */
static const double *pair_rates(const struct finding *all, uint32_t num, bool has_hosts,
                                uint32_t to, uint32_t round, uint32_t *out_from)
{
    const double *rates = all[to].pairs.of[round];
    *out_from = preflight_peer(to, num, preflight_offset(num, round));
    if (has_hosts && strcmp(all[to].host, all[*out_from].host) == 0)
        return NULL;
    return rates[PAYLOAD_4M] > 0 ? rates : NULL;
}

void preflight_extremes(const struct finding *all, uint32_t num, uint32_t payload,
                        struct pair_link *out_slowest, struct pair_link *out_fastest)
{
    bool has_hosts = preflight_hosts(all, num) > 1;
    *out_slowest = *out_fastest = (struct pair_link){0};
    for (uint32_t to = 0; to < num; to++)
        for (uint32_t round = 0; round < preflight_rounds(num); round++) {
            struct pair_link link = {.to = to};
            const double *rates = pair_rates(all, num, has_hosts, to, round, &link.from);
            if (rates == NULL)
                continue;
            link.rate = rates[payload];
            if (out_slowest->rate <= 0 || link.rate < out_slowest->rate)
                *out_slowest = link;
            if (link.rate > out_fastest->rate)
                *out_fastest = link;
        }
}

/* rates: [num x rounds]; receives all that are compared. */
static uint32_t sum_pairs(struct finding *all, uint32_t num, double *rates)
{
    bool has_hosts = preflight_hosts(all, num) > 1;
    uint32_t count = 0, from;
    for (uint32_t to = 0; to < num; to++) {
        struct finding *f = &all[to];
        for (uint32_t round = 0; round < preflight_rounds(num); round++) {
            const double *of = pair_rates(all, num, has_hosts, to, round, &from);
            if (of == NULL)
                continue;
            double rate = of[PAYLOAD_4M];
            rates[count++] = rate;
            f->link_rate = fmax(f->link_rate, rate);
            all[from].send_rate = fmax(all[from].send_rate, rate);
            if (f->slowest_rate <= 0 || rate < f->slowest_rate) {
                f->slowest_rate = rate;
                f->slowest_from = from;
            }
        }
    }
    return count;
}

/* A link is odd if it is slow for all links, and for the two ranks, too: a rank that is slow to all
 * others is named itself. */
static void judge_pair(struct finding *all, uint32_t num, uint32_t to, double median)
{
    struct finding *f = &all[to];
    const struct finding *from = &all[f->slowest_from];
    double usual = fmin(median, fmin(f->link_rate, from->send_rate));
    double part = f->slowest_rate / median;
    if (f->slowest_rate <= 0 || f->slowest_rate >= PAIR_SLOW * usual)
        return;
    preflight_add_text(f->problem,
                       "links from rank %u (host %s) at %.0f %% of the median, %.3g of %.3g GB/s: "
                       "slow link between the two",
                       f->slowest_from, from->host, 100 * part, f->slowest_rate / 1e9,
                       median / 1e9);
    preflight_mark_slow(all, num, to, part < PAIR_BROKEN);
}

int preflight_judge_pairs(struct finding *all, uint32_t num)
{
    double *rates = calloc((size_t)num * (preflight_rounds(num) + 1), sizeof *rates);
    if (rates == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the links of %u ranks", num);
    uint32_t count = sum_pairs(all, num, rates);
    double median = count > 0 ? median_of(rates, count) : 0;
    for (uint32_t i = 0; i < num && num >= PREFLIGHT_COMPARED; i++)
        judge_pair(all, num, i, median);
    free(rates);
    return 0;
}
