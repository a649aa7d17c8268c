/* print.c - rank 0's report on all ranks and hosts (see preflight.h). The launcher parses the lines
 * of ranks: a number first, and "broken" before the reason. */
#include "proto/base/report.h"
#include "trainer/preflight/private.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const words[] = {[FIT] = "ok", [SLOW] = "slow", [BROKEN] = "broken"};

static void print_rank(const struct finding *f, uint32_t rank)
{
    char memory[32] = "the host's", peak[16] = "-";
    if (f->memory_all > 0)
        snprintf(memory, sizeof memory, "%.1f/%.1f GiB", (double)f->memory_free / (1 << 30),
                 (double)f->memory_all / (1 << 30));
    if (f->model.peak > 0)
        snprintf(peak, sizeof peak, "%.1f", 100 * f->model.rate / f->model.peak);
    printf("%-6u %-20s %-16s %10.2f %15.1f %13.1f %7s %10.2f  %-7s %s%s%s\n", rank, f->host, memory,
           f->copy_rate / 1e9, f->product_rate / 1e9, f->model.rate / 1e9, peak, f->link_rate / 1e9,
           words[f->fitness], f->problem[0] != '\0' ? f->problem : f->device,
           f->identity[0] != '\0' ? ", " : "", f->identity);
}

static const char *limit_text(char out[24], uint64_t limit)
{
    snprintf(out, 24, limit == UINT64_MAX ? "unlimited" : "%llu", (unsigned long long)limit);
    return out;
}

static void print_node(const struct finding *all, uint32_t num, uint32_t i)
{
    const struct node_facts *node = &all[i].node;
    struct node_sum sum = preflight_sum(all, num, i);
    char threads[32], memlock[24], nofile[24];
    snprintf(threads, sizeof threads, "%u/%u", sum.threads, sum.cores);
    printf("node   %-20s %5u %13s %13.2f %10.2f %11s %9s %8.0f  %-8s %-8s %9.1f  %s, trainer %s\n",
           all[i].host, sum.ranks, threads, sum.memory_rate / 1e9, node->memory_alone / 1e9,
           limit_text(memlock, node->memlock), limit_text(nofile, node->nofile),
           (double)node->shm_bytes / (1 << 20), node->ring_error == 0 ? "usable" : "refused",
           node->huge_pages, 1e3 * node->clock, node->kernel, node->version);
}

static void print_nodes(const struct finding *all, uint32_t num)
{
    printf("%-6s %-20s %5s %13s %13s %10s %11s %9s %8s  %-8s %-8s %9s  %s\n", "NODE", "HOST",
           "RANKS", "THREADS/CORES", "MEMORY GB/S", "ALONE GB/S", "MEMLOCK", "NOFILE", "SHM MIB",
           "IO_URING", "HUGE", "CLOCK MS", "KERNEL, VERSION");
    for (uint32_t i = 0; i < num; i++)
        if (preflight_speaker(all, i) == i)
            print_node(all, num, i);
    for (uint32_t i = 0; i < num; i++)
        if (all[i].warning[0] != '\0')
            printf("preflight: warning: host %s: %s\n", all[i].host, all[i].warning);
}

/* Prints the model's products by shape, of the slowest and the fastest rank. All ranks have the
 * same shapes. */
static void print_shapes(const struct finding *all, uint32_t num)
{
    const struct preflight_products *first = &all[0].model;
    if (first->num > 0)
        printf("%-6s %8s %8s %8s %8s %14s %6s %14s %6s\n", "SHAPE", "ROWS", "IN", "OUT", "MATRICES",
               "LEAST GFLOP/S", "RANK", "MOST GFLOP/S", "RANK");
    for (uint32_t s = 0; s < first->num; s++) {
        uint32_t least = 0, most = 0;
        for (uint32_t i = 1; i < num; i++) {
            least = all[i].model.of[s].rate < all[least].model.of[s].rate ? i : least;
            most = all[i].model.of[s].rate > all[most].model.of[s].rate ? i : most;
        }
        printf("shape  %8u %8u %8u %8u %14.1f %6u %14.1f %6u\n", first->of[s].rows, first->of[s].in,
               first->of[s].out_dim, first->of[s].count, all[least].model.of[s].rate / 1e9, least,
               all[most].model.of[s].rate / 1e9, most);
    }
}

static void print_call(const char *host, uint32_t ranks, const char *call, const double *rates)
{
    if (rates[0] <= 0) /* not tried */
        return;
    printf("calls  %-20s %5u  %-8s", host, ranks, call);
    for (uint32_t i = 0; i < PREFLIGHT_PAYLOADS; i++)
        printf(" %10.3f", rates[i] / 1e9);
    printf("\n");
}

static void print_calls(const char *host, uint32_t ranks, const struct call_rates *calls)
{
    print_call(host, ranks, "sum", calls->sum);
    print_call(host, ranks, "gather", calls->gather);
}

/* Prints the calls of the ranks of each host, and of all, by payload. */
static void print_all_calls(const struct finding *all, uint32_t num)
{
    if (num == 1)
        return;
    printf("%-6s %-20s %5s  %-8s", "CALLS", "HOST", "RANKS", "BUS GB/S");
    for (uint32_t i = 0; i < PREFLIGHT_PAYLOADS; i++)
        printf(" %6zu KIB", preflight_bytes(i) >> 10);
    printf("\n");
    for (uint32_t i = 0; i < num; i++)
        if (preflight_speaker(all, i) == i)
            print_calls(all[i].host, preflight_sum(all, num, i).ranks, &all[i].node.calls);
    print_calls("(all)", num, &all[0].calls);
}

/* Of links between hosts, if there are several. */
static void print_links(const struct finding *all, uint32_t num)
{
    if (num == 1)
        return;
    printf("%-6s %-20s %5s %14s %14s %14s %14s\n", "LINKS", "HOST", "RANK", "RECEIVE GB/S",
           "SEND GB/S", "SLOWEST GB/S", "FROM RANK");
    for (uint32_t i = 0; i < num; i++)
        if (all[i].link_rate > 0)
            printf("links  %-20s %5u %14.3f %14.3f %14.3f %14u\n", all[i].host, i,
                   all[i].link_rate / 1e9, all[i].send_rate / 1e9, all[i].slowest_rate / 1e9,
                   all[i].slowest_from);
}

/* Prints the slowest and the fastest link by payload, of those that print_links() has. */
static void print_pairs(const struct finding *all, uint32_t num)
{
    if (num == 1)
        return;
    printf("%-6s %8s %14s %10s %5s %5s %14s %10s %5s %5s\n", "PAIRS", "KIB", "SLOWEST GB/S", "US",
           "FROM", "TO", "FASTEST GB/S", "US", "FROM", "TO");
    for (uint32_t i = 0; i < PREFLIGHT_PAYLOADS; i++) {
        struct pair_link slow, fast;
        size_t bytes = preflight_bytes(i);
        preflight_extremes(all, num, i, &slow, &fast);
        if (slow.rate > 0)
            printf("pairs  %8zu %14.3f %10.1f %5u %5u %14.3f %10.1f %5u %5u\n", bytes >> 10,
                   slow.rate / 1e9, 1e6 * (double)bytes / slow.rate, slow.from, slow.to,
                   fast.rate / 1e9, 1e6 * (double)bytes / fast.rate, fast.from, fast.to);
    }
}

static void print_disks(const struct finding *all, uint32_t num)
{
    const struct disk_facts *first = &all[0].node.disk;
    if (first->write <= 0 && !first->has_failed) /* not requested */
        return;
    printf("%-6s %-20s %14s %14s %14s %14s\n", "DISK", "HOST", "WRITE GB/S", "WITH SYNCS",
           "READ GB/S", "FIO WRITE");
    for (uint32_t i = 0; i < num; i++) {
        const struct disk_facts *disk = &all[i].node.disk;
        if (preflight_speaker(all, i) == i)
            printf("disk   %-20s %14.3f %14.3f %14.3f %14.3f\n", all[i].host, disk->write / 1e9,
                   disk->durable / 1e9, disk->read / 1e9, disk->fio_write / 1e9);
    }
}

static bool says_health(const struct finding *f)
{
    return f->device[0] != '\0' && f->health.links_max >= 0;
}

static const char *number_text(char out[24], int64_t value)
{
    snprintf(out, 24, value < 0 ? "?" : "%lld", (long long)value);
    return out;
}

static void print_gpu(const struct finding *f, uint32_t rank)
{
    const struct device_health *has = &f->health;
    char up[24], all[24], width[24], width_max[24], errors[24], celsius[24], links[52], lanes[52];
    char now[24], most[24], generation[52];
    snprintf(links, sizeof links, "%s/%s", number_text(up, has->links),
             number_text(all, has->links_max));
    snprintf(lanes, sizeof lanes, "%s/%s", number_text(width, has->bus_width),
             number_text(width_max, has->bus_width_max));
    snprintf(generation, sizeof generation, "%s/%s", number_text(now, has->bus_generation),
             number_text(most, has->bus_generation_max));
    printf("gpu    %-20s %5u %14s %14s %14s %14s %14s  %s\n", f->host, rank,
           number_text(errors, has->memory_errors), lanes, links,
           number_text(celsius, has->celsius), generation,
           has->driver[0] != '\0' ? has->driver : "?");
}

/* Prints GPUs with facts. */
static void print_gpus(const struct finding *all, uint32_t num)
{
    uint32_t told = 0;
    for (uint32_t i = 0; i < num; i++) {
        if (!says_health(&all[i]))
            continue;
        if (told++ == 0)
            printf("%-6s %-20s %5s %14s %14s %14s %14s %14s  %s\n", "GPU", "HOST", "RANK",
                   "MEMORY ERRORS", "PCIE LANES", "NVLINKS", "CELSIUS", "PCIE GEN", "DRIVER");
        print_gpu(&all[i], i);
    }
}

int preflight_print(const struct finding *all, uint32_t num)
{
    uint32_t hosts = preflight_hosts(all, num);
    printf("%-6s %-20s %-16s %10s %15s %13s %7s %10s  %-7s %s\n", "RANK", "HOST", "MEMORY FREE",
           "COPY GB/S", "PRODUCT GFLOP/S", "MODEL GFLOP/S", "% PEAK", "LINK GB/S", "STATE",
           "DEVICE, OR WHAT IS WRONG");
    for (uint32_t i = 0; i < num; i++)
        print_rank(&all[i], i);
    print_nodes(all, num);
    print_shapes(all, num);
    print_links(all, num);
    print_pairs(all, num);
    print_all_calls(all, num);
    print_disks(all, num);
    print_gpus(all, num);
    for (uint32_t i = 0; i < num; i++)
        if (all[i].fitness != FIT)
            printf("preflight: rank %u (host %s): %s\n", i, all[i].host, all[i].problem);
    if (num < PREFLIGHT_COMPARED)
        printf("preflight: rates are not compared: fewer than %u ranks\n", PREFLIGHT_COMPARED);
    else if (hosts < PREFLIGHT_COMPARED)
        printf("preflight: rates of hosts' memory are not compared: fewer than %u hosts\n",
               PREFLIGHT_COMPARED);
    printf("preflight: of %u rank%s on %u host%s %u ok, %u slow, %u broken\n", num,
           num == 1 ? "" : "s", hosts, hosts == 1 ? "" : "s", preflight_count(all, num, FIT),
           preflight_count(all, num, SLOW), preflight_count(all, num, BROKEN));
    return 0;
}

/* ---- as JSON ---- */

/* null: not known */
static json_t *number_json(int64_t value)
{
    return value < 0 ? json_null() : json_integer(value);
}

static json_t *health_json(const struct finding *f)
{
    const struct device_health *has = &f->health;
    if (!says_health(f))
        return json_null();
    return json_pack("{so so so so so so so so so so so ss}", "memory_errors",
                     number_json(has->memory_errors), "rows_failed", number_json(has->rows_failed),
                     "rows_pending", number_json(has->rows_pending), "bus_width",
                     number_json(has->bus_width), "bus_width_max", number_json(has->bus_width_max),
                     "links", number_json(has->links), "links_max", number_json(has->links_max),
                     "celsius", number_json(has->celsius), "slowed", number_json(has->slowed),
                     "bus_generation", number_json(has->bus_generation), "bus_generation_max",
                     number_json(has->bus_generation_max), "driver", has->driver);
}

/* By payload. */
static json_t *rates_json(const double *rates)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < PREFLIGHT_PAYLOADS; i++)
        json_array_append_new(array, json_real(rates[i]));
    return array;
}

static json_t *payloads_json(void)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < PREFLIGHT_PAYLOADS; i++)
        json_array_append_new(array, json_integer((json_int_t)preflight_bytes(i)));
    return array;
}

/* The links to a rank. */
static json_t *pairs_json(const struct finding *f, uint32_t rank, uint32_t num)
{
    json_t *pairs = json_array();
    for (uint32_t round = 0; round < preflight_rounds(num); round++) {
        uint32_t from = preflight_peer(rank, num, preflight_offset(num, round));
        if (f->pairs.of[round][0] > 0)
            json_array_append_new(pairs, json_pack("{si so}", "from", (int)from, "bytes_per_second",
                                                   rates_json(f->pairs.of[round])));
    }
    return pairs;
}

static json_t *products_json(const struct preflight_products *model)
{
    json_t *shapes = json_array();
    for (uint32_t i = 0; i < model->num; i++) {
        const struct preflight_shape *s = &model->of[i];
        json_array_append_new(shapes, json_pack("{si si si si sf}", "rows", (int)s->rows, "in",
                                                (int)s->in, "out", (int)s->out_dim, "matrices",
                                                (int)s->count, "flops", s->rate));
    }
    return json_pack("{sf so so}", "flops", model->rate, "peak_flops",
                     model->peak > 0 ? json_real(model->peak) : json_null(), "shapes", shapes);
}

static json_t *rank_json(const struct finding *f, uint32_t rank, uint32_t num)
{
    return json_pack("{si ss ss ss ss ss so sI sI sf sf so sf sf so}", "rank", (int)rank, "host",
                     f->host, "state", words[f->fitness], "problem", f->problem, "device",
                     f->device, "identity", f->identity, "health", health_json(f), "memory_bytes",
                     (json_int_t)f->memory_all, "memory_free_bytes", (json_int_t)f->memory_free,
                     "copy_bytes_per_second", f->copy_rate, "product_flops", f->product_rate,
                     "model_products", products_json(&f->model), "link_bytes_per_second",
                     f->link_rate, "send_bytes_per_second", f->send_rate, "links",
                     pairs_json(f, rank, num));
}

/* null: unlimited */
static json_t *limit_json(uint64_t limit)
{
    return limit == UINT64_MAX ? json_null() : json_integer((json_int_t)limit);
}

/* null: not tried */
static json_t *calls_json(const struct call_rates *calls)
{
    if (calls->gather[0] <= 0)
        return json_null();
    return json_pack("{so so}", "all_reduce", rates_json(calls->sum), "all_gather",
                     rates_json(calls->gather));
}

static json_t *disk_json(const struct disk_facts *disk)
{
    if (disk->write <= 0)
        return json_null();
    return json_pack("{sf sf sf sf}", "write", disk->write, "durable", disk->durable, "read",
                     disk->read, "fio_write", disk->fio_write);
}

static json_t *node_json(const struct finding *all, uint32_t num, uint32_t i)
{
    const struct node_facts *node = &all[i].node;
    struct node_sum sum = preflight_sum(all, num, i);
    return json_pack("{ss si si si sf sf so so sI sb ss sf sf ss ss ss so so}", "host", all[i].host,
                     "ranks", (int)sum.ranks, "cores", (int)sum.cores, "threads", (int)sum.threads,
                     "memory_bytes_per_second", sum.memory_rate, "memory_alone_bytes_per_second",
                     node->memory_alone, "memlock_bytes", limit_json(node->memlock), "nofile",
                     limit_json(node->nofile), "shm_bytes", (json_int_t)node->shm_bytes, "io_uring",
                     node->ring_error == 0, "huge_pages", node->huge_pages, "clock_seconds",
                     node->clock, "round_trip_seconds", node->round_trip, "kernel", node->kernel,
                     "version", node->version, "warning", all[i].warning, "calls_bytes_per_second",
                     calls_json(&node->calls), "disk_bytes_per_second", disk_json(&node->disk));
}

int preflight_print_json(const struct finding *all, uint32_t num)
{
    json_t *ranks = json_array(), *nodes = json_array();
    uint32_t hosts = preflight_hosts(all, num);
    for (uint32_t i = 0; i < num; i++) {
        json_array_append_new(ranks, rank_json(&all[i], i, num));
        if (preflight_speaker(all, i) == i)
            json_array_append_new(nodes, node_json(all, num, i));
    }
    json_t *root = json_pack(
        "{so so so so sb sb si si si}", "ranks", ranks, "nodes", nodes, "payload_bytes",
        payloads_json(), "calls_bytes_per_second", calls_json(&all[0].calls), "ranks_compared",
        num >= PREFLIGHT_COMPARED, "nodes_compared", hosts >= PREFLIGHT_COMPARED, "ok",
        (int)preflight_count(all, num, FIT), "slow", (int)preflight_count(all, num, SLOW), "broken",
        (int)preflight_count(all, num, BROKEN));
    char *text = root != NULL ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    if (text == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the results of %u ranks", num);
    puts(text);
    free(text);
    return 0;
}
