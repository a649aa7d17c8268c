/* scale_nodes.c - the coordinator's cost of a commit when the ranks are on many nodes.
 *
 *     scale_nodes PP DP TP
 *
 * The ranks are simulated, eight on a node; the code that decides about them and the messages are
 * real (tests/unit/sim_scale.h). The command "commit" on stdin saves the next step, and is answered
 * when every node has heard that it is committed: CPU seconds of both ends, with the packing of
 * messages; messages and their bytes; and the bytes of the manifest, of the copies that the
 * coordinator sent, and of those from node to node. */
#include "tests/bench/bench.h"
#include "tests/unit/sim_scale.h"

int main(int argc, char **argv)
{
    static struct scale scale;
    char line[64];
    BENCH_TRY(argc != 4, "use: scale_nodes PP DP TP");
    scale_open(&scale,
               (struct model_mesh){(uint32_t)atoi(argv[1]), (uint32_t)atoi(argv[2]),
                                   (uint32_t)atoi(argv[3])},
               1);
    while (fgets(line, sizeof line, stdin)) {
        BENCH_TRY(strcmp(line, "commit\n") != 0, "an unknown command");
        double seconds = bench_clock(CLOCK_PROCESS_CPUTIME_ID);
        BENCH_TRY(!scale_save(&scale), "it was not committed");
        seconds = bench_clock(CLOCK_PROCESS_CPUTIME_ID) - seconds;
        printf("{\"ranks\": %u, \"nodes\": %u, \"cpu_seconds\": %.6f, \"messages\": %" PRIu64
               ", \"bytes\": %" PRIu64 ", \"manifest_bytes\": %zu, \"manifests_bytes\": %" PRIu64
               ", \"between_bytes\": %" PRIu64 ", \"rounds\": %" PRIu32 "}\n",
               scale.ranks, scale.nodes, seconds, scale.messages, scale.bytes_in + scale.bytes_out,
               scale.text_bytes, scale.bytes_manifests, scale.bytes_between, scale.rounds);
        fflush(stdout);
    }
    scale_close(&scale);
    return 0;
}
