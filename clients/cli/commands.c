/* commands.c - the commands of ckpt-cli and their options, as data. main.c parses the command line
 * by these tables, prints help from them and offers their words for completion. */
#include "clients/cli/commands.h"

#include <string.h>

const struct option command_settings[] = {
    [STORE] = OPTION_STRING(struct cli, store, "store", "", "directory of the store"),
    [SERVER] = OPTION_STRING(struct cli, server, "server", "",
                             "where ckptd answers: unix:/PATH, or HOST:PORT over TLS, with the "
                             "certificate in $HOLDFAST_TLS"),
    [OUTPUT] = OPTION_STRING(struct cli, output, "output", "",
                             "the file or folder to write; of convert: another store, its "
                             "directory or unix:/PATH of the ckptd that serves it"),
    [DTYPE] = OPTION_CHOICE(struct cli, dtype, "dtype", "keep", "keep,fp32,bf16,fp16",
                            "floating-point type of the output, rounded to nearest even; keep: as "
                            "it is stored, with --format hf as the imported folder had it"),
    [WEIGHTS_ONLY] = OPTION_BOOL(struct cli, is_weights_only, "weights-only", "false",
                                 "leave the optimizer's tensors out"),
    [FORCE] = OPTION_BOOL(struct cli, is_forced, "force", "false",
                          "replace what was left unfinished; of export and report also a file that "
                          "exists; "
                          "of server attempt: without the other nodes; of rm: what is in "
                          "doubt"),
    [QUICK] = OPTION_BOOL(struct cli, is_quick, "quick", "false",
                          "manifest, sizes, hashes of headers and checksum tables only"),
    [RELEASE] = OPTION_BOOL(struct cli, is_released, "release", "false",
                            "take it out of quarantine when all of it matches"),
    [KEEP_LAST] =
        OPTION_INT(struct cli, keep_last, "keep-last", 0, 0, 1 << 24, "keep the newest so many"),
    [KEEP_EVERY] = OPTION_INT(struct cli, keep_every, "keep-every", 0, 0, 1ll << 40,
                              "keep the steps that are multiples of it"),
    [KEEP_WITHIN] =
        OPTION_STRING(struct cli, keep_within, "keep-within", "",
                      "keep what is younger, counted back from the newest: 30m, 12h, 7d, 2w"),
    [KEEP_BEST] = OPTION_INT(struct cli, keep_best, "keep-best", 0, 0, 1 << 24,
                             "keep so many with the best metric"),
    [METRIC] = OPTION_STRING(struct cli, metric, "metric", "loss",
                             "which of the saved metrics --keep-best goes by"),
    [BEST] = OPTION_CHOICE(struct cli, best, "best", "lowest", "lowest,highest",
                           "which value of the metric is best"),
    [MOST] = OPTION_BOOL(struct cli, may_remove_most, "most", "false",
                         "let more than half of the run go"),
    [DRY_RUN] = OPTION_BOOL(struct cli, is_dry_run, "dry-run", "false",
                            "print the plan and remove nothing"),
    [YES] = OPTION_BOOL(struct cli, is_yes, "yes", "false", "do not ask"),
    [NOTE] = OPTION_STRING(struct cli, note, "note", "", "who and why; kept with the pin"),
    [SHARDS] =
        OPTION_INT(struct cli, shards, "shards", 0, 0, 65536, "how many files to cut it into"),
    [MESH] = OPTION_STRING(struct cli, mesh, "mesh", "",
                           "what its ranks are: dp_shard=4, or dp_replicate=2,dp_shard=4"),
    [EXCEPT] = OPTION_STRING(struct cli, exceptions, "except", "",
                             "other types by name: '*norm*=fp32,output.weight=keep'"),
    [ONLY] = OPTION_STRING(struct cli, only, "only", "",
                           "these tensors alone, by name: 'layers.0.*,norm.weight'"),
    [SLICE] = OPTION_STRING(struct cli, slices, "slice", "",
                            "parts of tensors by name: 'layers.*.wq.weight=0:512,:;norm.*=:64'"),
    [OBJECT] = OPTION_STRING(struct cli, object, "object", "",
                             "the bytes of this object on stdout, and nothing else"),
    [FORMAT] = OPTION_CHOICE(struct cli, format, "format", "auto",
                             "auto,safetensors,hf,dcp,safetensors-folder",
                             "auto: of import hf, the folder of a model as Hugging Face has it; of "
                             "export hf with --weights-only and without --only, else safetensors, "
                             "one file"),
    [SHARD_SIZE] = OPTION_BYTES(struct cli, shard_size, "shard-size", "5GiB", 1 << 12, 1ll << 60,
                                "most bytes of a file of --format hf"),
    [TOKENIZER] = OPTION_STRING(struct cli, tokenizer, "tokenizer", "",
                                "the run's tokenizer file, to go with a folder of --format hf"),
    [MODEL] = OPTION_STRING(struct cli, model, "model", "",
                            "of --format hf: a folder whose config.json says what model it is, "
                            "where the checkpoint does not"),
    [RUN] = OPTION_STRING(struct cli, run, "run", "",
                          "name of the new run; with --format dcp and safetensors-folder RUN@STEP"),
    [WATCH] = OPTION_BOOL(struct cli, is_watched, "watch", "false",
                          "look again and again: saves in work, the newest checkpoint, rates"),
    [INTERVAL] =
        OPTION_DOUBLE(struct cli, interval, "interval", 2, 0.01, 86400, "seconds between looks"),
    [COUNT] = OPTION_INT(struct cli, count, "count", 0, 0, 1ll << 40,
                         "looks, or versions, then end; 0: no end"),
    [ALL] = OPTION_BOOL(struct cli, is_all, "all", "false",
                        "of verify: every checkpoint; of status: everything that is known"),
    [SAMPLE] = OPTION_STRING(struct cli, sample, "sample", "",
                             "read so many of the blocks, chosen at random: 5%"),
    [SEED] = OPTION_INT(struct cli, seed, "seed", 0, 0, 1ll << 62,
                        "choose the blocks of --sample as then; 0: anew"),
    [FROM] = OPTION_STRING(struct cli, from, "from", "",
                           "where its good shards are: STORE or STORE:RUN"),
    [NOW] = OPTION_BOOL(struct cli, is_now, "now", "false",
                        "for good: not into the trash; of rm RUN also what is there"),
    [AND_PIN] = OPTION_BOOL(struct cli, is_pin, "pin", "false", "pin it as well"),
    [SILENT] = OPTION_INT(struct cli, silent_s, "silent", 600, 1, 1 << 30,
                          "seconds in which each rank must have begun or ended a step"),
    [AGE] = OPTION_INT(struct cli, age_s, "age", 0, 0, 1 << 30,
                       "seconds in which a checkpoint must have been committed; 0: not asked"),
    [QUEUED] = OPTION_STRING(struct cli, queued, "queued", "",
                             "a shell command that prints something while the job waits to be "
                             "started: 'squeue -h -n NAME -t PD,CF'"),
    [ON_ALARM] = OPTION_STRING(struct cli, on_alarm, "on-alarm", "",
                               "a shell command for an alarm, which $HOLDFAST_ALARM has"),
    [MTBF] = OPTION_STRING(struct cli, mtbf, "mtbf", "",
                           "mean time between failures of a node: 30d, 12h"),
    [NODES] = OPTION_INT(struct cli, nodes, "nodes", 1, 1, 1 << 24,
                         "of the job, whatever --mtbf "
                         "is the time of"),
    [RESTART_TIME] = OPTION_STRING(struct cli, restart_time, "restart-time", "",
                                   "from a failure to the first new step: 90s, 5m; without it 0"),
    [STEP_TIME] = OPTION_DOUBLE(struct cli, step_time, "step-time", 0, 0, 1e9,
                                "seconds of a step, instead of what the checkpoint says"),
    [SAVE_TIME] = OPTION_DOUBLE(struct cli, save_time, "save-time", 0, 0, 1e9,
                                "seconds that training waits for a save, instead of those"),
    [WITHOUT_SAVE] = OPTION_BOOL(struct cli, is_unsaved, "without-save", "false",
                                 "what was trained since the last save is lost"),
    [GRACE] = OPTION_INT(struct cli, grace_s, "grace", 0, 0, 86400,
                         "seconds in which the ranks should have ended; 0: no limit"),
    [SETTINGS] = OPTION_BOOL(struct cli, is_settings, "settings", "false",
                             "compare with what they were made, and no tensors"),
    [EXPECT] = OPTION_BYTES(struct cli, expected, "expect", "0", 0, 1ll << 60,
                            "also: do an attempt and a save of this size fit? 10GiB"),
    [BYTES] = OPTION_BYTES(struct cli, bytes, "bytes", "4GiB", 1 << 12, 1ll << 60,
                           "of all files that are written"),
    [BLOCK] = OPTION_BYTES(struct cli, block, "block", "1MiB", 1 << 12, 64 << 20,
                           "bytes of a request, as storage.block_bytes of ckptd"),
    [DEPTH] = OPTION_INT(struct cli, depth, "depth", 32, 1, 4096,
                         "requests in flight, as storage.queue_depth of ckptd"),
    [TIME] = OPTION_DOUBLE(struct cli, time_s, "time", 0, 0, 86400,
                           "seconds of writing at most, and of reading; 0: until all is done"),
    [WRITE] = OPTION_STRING(struct cli, write, "write", "",
                            "a folder on the store's disk: 64 MiB are written there, synced, "
                            "measured and removed"),
    [METRICS] = OPTION_STRING(struct cli, metrics, "metrics", "", "the run's metrics.jsonl_file"),
    [JSON] = OPTION_BOOL(struct cli, is_json, "json", "false", "one JSON document on stdout"),
    [HELP] = OPTION_BOOL(struct cli, is_help, "help", "false", "this text"),
    [NUM_SETTINGS] = OPTION_END,
};

#define OUTPUT_NOTES                                                                             \
    "A STORE that is a directory is locked meanwhile. That of a running ckptd is named by\n"     \
    "its socket, unix:/PATH: as with import the files are written beside what it serves, and\n"  \
    "it takes them over at the end. It refuses a step that could be a trainer's own: of the\n"   \
    "newest attempt of a run that is being trained there. What was left there by one that was\n" \
    "killed gc removes, --force does not.\n"

#define PYTHON_NOTES                                                                               \
    "Memory does not grow with the checkpoint. The Python package holdfast does it, which needs\n" \
    "NumPy but no PyTorch; HOLDFAST_PYTHON names the Python that has it (default python3).\n"

#define TRASH_NOTES                                                                     \
    "Where the store has a trash\n(retention.trash_s of ckptd) undelete takes it back " \
    "for a while; --now removes it for good.\n"

const struct command commands[] = {
    {"list", "[RUN]", "committed checkpoints by run, newest first", 0, 1, WHERE | OF_A_RUN,
     cli_list,
     "The columns: its name for other commands, RANKS how many saved it, SIZE and TIME those of\n"
     "the save, and STATE:\n"
     "  local          it outlives a loss of power of this machine\n"
     "  replicated     and the loss of a node: another failure domain has a copy on a disk;\n"
     "                 (mem): in the memory of a ckptd\n"
     "  bucket         the far tier has it\n"
     "  (local,far)    where it is, if not here alone: a ckptd reads it from there for every\n"
     "                 command (with --json: tiers)\n"
     "  not read back  it was written and synced, and the scrub has not read it from the disk "
     "since;\n"
     "                 verify reads it now (with --json: read_back)\n"
     "  in memory      ckptd still holds all of it in memory, so a load needs no disk\n"
     "  pinned         nothing removes it; the note says who wants it\n"
     "  tag            its other names, see tag\n"
     "  verified       when it was read last, all or a part: whole, no damage found, DAMAGED\n"
     "  DAMAGED        why; it is kept, listed and never loaded\n"
     "  MOVED          it was saved in another run and lies here; see adopt\n"
     "The exit code is 1 when one of them is DAMAGED.\n"},
    {"show", "CHECKPOINT", "the manifest: origin, state, tensors, shards", 1, 1,
     WHERE | BIT(OBJECT), cli_show,
     "Its origin is told back to the first attempt, as far as the store still has a checkpoint of\n"
     "each. Without a step newer ones that are damaged are passed over, and named on stderr. With\n"
     "--json: the manifest, its durability, read_back as of list, whether it is pinned, the pin's\n"
     "note; the bytes of its objects; of one in quarantine its damage; of one that was resumed\n"
     "its ancestors, the latest first, and ancestors_complete; where some were passed over,\n"
     "skipped. --object NAME writes the bytes of an object as they were saved, verified before.\n"},
    {"verify", "CHECKPOINT | --all [RUN]", "re-read everything; name damaged blocks", 0, 1,
     WHERE | READS | BIT(QUICK) | BIT(RELEASE) | BIT(ALL) | BIT(SAMPLE) | BIT(SEED), cli_verify,
     "--quick reads no data. It proves that every file is there in its size, belongs to this\n"
     "checkpoint, and has the checksum table that was committed. It does not prove that the data\n"
     "still match those checksums: a flipped bit on the disk is found without --quick only.\n"
     "--sample 5% reads that part of the blocks, chosen at random; the seed is printed, and the\n"
     "same --seed chooses the same. --all goes through every checkpoint of the store, or of RUN.\n"
     "The result and its time are kept (of --quick only damage), of what is in the store's\n"
     "directory; over TLS ckptd keeps them for an operator's certificate alone. list and show\n"
     "tell them, and prune and retention count by them: see prune.\n"
     "served: it was read through ckptd, as other tiers alone have some of what was named.\n"
     "Damage is told and left as it is. Where a ckptd has another copy, `ckpt-cli server scrub\n"
     "start RUN` lets it find the damage and mend it; repair takes the bytes from a store you "
     "name.\n"},
    {"diff", "CHECKPOINT CHECKPOINT", "compare the values of two, on any meshes", 2, 2,
     WHERE | READS | BIT(SETTINGS), cli_diff,
     "Digests are compared first, and only tensors that differ are read. Below them stands with\n"
     "what the two were made, where that differs: code, mesh, config, identity of the numerics,\n"
     "environment (hosts, CPU, libraries, variables) and data. The exit code 1 tells of tensors\n"
     "alone; with --settings, which reads no tensor, of a setting. With --json: tensors, same,\n"
     "different; settings, each with what, first, second.\n"},
    {"export", "CHECKPOINT --output PATH", "to safetensors, Hugging Face's form or DCP's", 1, 1,
     WHERE | READS | BIT(OUTPUT) | BIT(DTYPE) | BIT(EXCEPT) | BIT(ONLY) | BIT(WEIGHTS_ONLY) |
         BIT(FORMAT) | BIT(SHARD_SIZE) | BIT(TOKENIZER) | BIT(MODEL) | BIT(FORCE),
     cli_export,
     "--format safetensors leaves one file with every tensor under its own name; bytes\n"
     "objects are no tensors, and stay behind: show --object NAME has them. --format hf\n"
     "leaves a folder that other programs load: config.json, the weights under Hugging Face's\n"
     "names and in its order of rows, an index of several files, and with --tokenizer what\n"
     "loaders read of it: tokenizer.json, tokenizer_config.json. A tokenizer.json goes as it is,\n"
     "and so does SentencePiece's tokenizer.model. Without --tokenizer a run that was imported\n"
     "has its folder's files again. It is what --weights-only alone leaves.\n"
     "Patterns of --except are held against our names in both; --only is for one file, as\n"
     "such a folder has all weights. Without a step a checkpoint that is found to be damaged is\n"
     "passed over for the one before it, and named on stderr.\n"
     "PATH may be s3://BUCKET/NAME: then files are objects of a\n"
     "bucket, config.json the last. What was sent stays when it is cut short, and the same\n"
     "command goes on; --force sends everything anew.\n"},
    {"export --format dcp", "CHECKPOINT --output FOLDER",
     "a folder that PyTorch's DCP loads on any mesh", 1, 1, WHERE | BIT(OUTPUT) | BIT(FORMAT),
     cli_export_python,
     "Of what import --format dcp read, or holdfast.dcp saved; what came from Megatron is\n"
     "torch_dist again. FOLDER has .metadata when all is there and durable: until then it is no\n"
     "checkpoint, and the same command begins it anew. One that has .metadata is not "
     "replaced.\n" PYTHON_NOTES},
    {"export --format safetensors-folder", "CHECKPOINT --output FOLDER",
     "a folder of safetensors, each tensor whole", 1, 1,
     WHERE | BIT(OUTPUT) | BIT(FORMAT) | BIT(DTYPE) | BIT(WEIGHTS_ONLY), cli_export_python,
     "Of any checkpoint, under the names that it has; of several files\n"
     "model.safetensors.index.json is the last. A folder that has safetensors is not written\n"
     "into. With --weights-only what Hugging Face's Trainer saved becomes the folder of its\n"
     "model: its names, config.json, tokenizer. Floats of 64 bits keep their type.\n" PYTHON_NOTES},
    {"import", "FOLDER --run RUN[@STEP]", "from Hugging Face's form, DCP, safetensors", 1, 1,
     WHERE | ON_FILES | BIT(RUN) | BIT(FORMAT) | BIT(SHARDS) | BIT(FORCE), cli_import,
     "The checkpoint is that of step 0 of a new run. FOLDER, or s3://BUCKET/NAME, holds\n"
     "config.json of a Llama and its weights in fp32, bf16 or fp16, which become fp32 exactly.\n"
     "Its tokenizer, chat template and generation_config.json\n"
     "stay with the run, and export --format hf writes them as they are. A trainer with job.run =\n"
     "NAME starts from it: position 0 of its data, moments zero. With --store the store is locked\n"
     "meanwhile. With --server its ckptd goes on: files of its own user (root gives them away) are "
     "written beside what it\n"
     "serves, and it takes them over at the end, or they are rubbish; gc removes those, --force\n"
     "does not.\n"},
    {"import --format dcp", "FOLDER --run RUN@STEP", "a checkpoint from a folder of PyTorch's DCP",
     1, 1, BIT(SERVER) | BIT(RUN) | BIT(FORMAT), cli_import_python,
     "FOLDER is what torch.distributed.checkpoint saved, or Megatron as torch_dist. It becomes\n"
     "that step of a new attempt of RUN. Every tensor keeps its name, type and bits, whatever\n"
     "ranks it was cut for. What is no tensor goes along as the bytes that it is, common.pt of\n"
     "Megatron too: no pickle is loaded.\n" PYTHON_NOTES},
    {"import --format safetensors-folder", "FOLDER --run RUN@STEP",
     "a checkpoint from safetensors of any names", 1, 1, BIT(SERVER) | BIT(RUN) | BIT(FORMAT),
     cli_import_python,
     "It becomes that step of a new attempt of RUN. Every tensor keeps its name, type and bits;\n"
     "the parts that DCP's safetensors writer left are put together. A Llama of Hugging Face\n"
     "that a trainer is to start from is for --format hf.\n" PYTHON_NOTES},
    {"convert", "CHECKPOINT --output STORE", "another dtype, mesh or number of shards", 1, 1,
     WHERE | READS | BIT(OUTPUT) | BIT(DTYPE) | BIT(EXCEPT) | BIT(ONLY) | BIT(WEIGHTS_ONLY) |
         BIT(SHARDS) | BIT(MESH) | BIT(FORCE),
     cli_convert,
     "The new checkpoint has the same run, step and attempt, and a nonce and checksums of its\n"
     "own; every command reads it. Integers keep their type. With --shards or --mesh it has\n"
     "the files that so many ranks of a trainer would have written, else the cut of the\n"
     "source. Where every tensor keeps its type it is committed only when each has the digest\n"
     "that the source's manifest holds. A load cuts for any number of ranks by "
     "itself.\n" OUTPUT_NOTES},
    {"prune", "RUN --keep-...", "remove what no rule keeps; rules are OR-ed", 1, 1,
     WHERE | OF_A_RUN | BIT(KEEP_LAST) | BIT(KEEP_EVERY) | BIT(KEEP_WITHIN) | BIT(KEEP_BEST) |
         BIT(METRIC) | BIT(BEST) | BIT(MOST) | BIT(DRY_RUN) | BIT(NOW),
     cli_prune,
     "Always stays, whatever the rules say: what is pinned, in use, or damaged; the last two that\n"
     "are not damaged; and the last two that are known whole, which means read back by the scrub,\n"
     "by verify or for a load, or uploaded with a checksum that the server took. What anything\n"
     "found damaged counts nowhere. A plan says what keeps each: verify newer checkpoints, and\n"
     "older ones kept as proven may go; rm removes what is damaged or not to be kept, by name. A\n"
     "run of which nothing was read back is pruned by the rules and the last two. " TRASH_NOTES},
    {"advise", "CHECKPOINT", "how often to save to lose least time", 1, 1,
     WHERE | OF_A_RUN | BIT(MTBF) | BIT(NODES) | BIT(RESTART_TIME) | BIT(STEP_TIME) |
         BIT(SAVE_TIME),
     cli_advise,
     "By Daly's formula (2006), of the time of a step and the wait of training for a save, which\n"
     "the trainer leaves in its checkpoints, and of --mtbf, which nobody can measure here. now:\n"
     "with the interval that the checkpoint was saved with. Lost are the waits for saves,\n"
     "the training since the last save that was durable, and --restart-time. A ckptd whose last\n"
     "save was the run's also tells how long that took until it was durable: no shorter interval\n"
     "is advised. checkpoint.interval is what to set; with auto the trainer does so itself.\n"},
    {"report", "RUN --output FILE.html", "the story of a run on one page: curves, starts, changes",
     1, 1, WHERE | OF_A_RUN | BIT(OUTPUT) | BIT(METRICS) | BIT(FORCE), cli_report,
     "One file of HTML without scripts, which fetches nothing: head; curves of loss and, with\n"
     "--metrics, gradient norm and learning rate; checkpoints; starts; which settings, libraries\n"
     "and hosts changed between attempts, as of diff --settings; lineage. Vertical lines are\n"
     "starts, circles are loss spikes. Steps that were made twice are drawn once, as the branch\n"
     "that lasts has them. Without --metrics the loss is that of the newest checkpoint's history.\n"
     "What is missing, damaged or of another run is said on the page, and the rest is told. The\n"
     "exit code is 1 when a checkpoint is DAMAGED. Durable after: of the last save of a ckptd.\n"
     "--json prints the same, with or without --output: head, notes, curves (steps, values; null\n"
     "is a gap), spikes, checkpoints as of list, starts, changes, lineage.\n"},
    {"rm", "RUN | RUN@STEP-aATTEMPT", "remove a checkpoint or a run, in any state", 1, 1,
     WHERE | BIT(DRY_RUN) | BIT(YES) | BIT(NOW) | BIT(FORCE), cli_rm,
     "Also what is damaged, newer or set aside, and runs without any checkpoint, which count for\n"
     "limits.runs. What could not be read may be whole, and a part of a save whose coordinator "
     "has\n"
     "not answered yet is in doubt: they go with --force alone. It prints the loss and asks; "
     "--yes\n"
     "answers. What is pinned or in use stays, and so does a run that is being trained. Of "
     "several\n"
     "ckptd (nodes.peers) each removes its own copies, on its disk or in its memory; those with\n"
     "copies of their own are named (elsewhere). With --store the store is locked "
     "meanwhile.\n" TRASH_NOTES},
    {"undelete", "RUN | RUN@STEP[-aATTEMPT]", "take back what was removed", 1, 1,
     WHERE | BIT(DRY_RUN), cli_undelete,
     "Of a run alone: everything that is in its trash. --dry-run tells what is there, when it was\n"
     "removed, and until when it stays. Where a save lacks space the oldest go before that.\n"
     "With --store the store is locked meanwhile.\n"},
    {"pin", "CHECKPOINT", "keep it for good, whatever the rules say", 1, 1, WHERE | BIT(NOTE),
     cli_pin, ""},
    {"unpin", "CHECKPOINT", "take the pin away", 1, 1, WHERE, cli_unpin,
     "One that is not pinned is an error, with exit code 66. With step and attempt it takes away\n"
     "also the pin of a checkpoint that is gone.\n"},
    {"cp", "RUN[@STEP] [STORE:]RUN", "copy into another run or store, verified", 2, 2,
     WHERE | ON_FILES | ALL_OF_RUN, cli_cp,
     "STORE is a directory, or unix:/PATH of the ckptd that serves it; without one the copy goes\n"
     "into the same store. Without @STEP every whole checkpoint of the run is copied. Each block\n"
     "is verified before it is written, and the digests of what was written are compared at the\n"
     "end. Nothing is read back: `verify` does that. Again the same command copies what is\n"
     "missing: checkpoints that are there are passed over, shards are verified and kept. Step and\n"
     "attempt stay.\n"},
    {"repair", "CHECKPOINT [--from STORE]", "replace damaged shards, or a lost manifest", 1, 1,
     WHERE | ON_FILES | BIT(FROM), cli_repair,
     "STORE:RUN names a run that has another name there. Every block is read here, and what is\n"
     "taken from there is held against the manifest here. Afterwards all is read back, and the\n"
     "checkpoint leaves quarantine. Where the manifest of RUN@STEP-aATTEMPT is lost or damaged it\n"
     "is taken from there, too; without --from it is made of the headers of the shards. Then it\n"
     "has no state: no trainer resumes from it, but its weights can be exported or trained on.\n"},
    {"rename", "RUN NAME", "give a run another name", 2, 2, WHERE | OF_A_RUN, cli_rename,
     "The shards keep the old name inside; a small file beside each manifest says so\n"
     "(origin.json), and list and show tell it. With --store the store is locked meanwhile.\n"},
    {"adopt", "RUN", "serve what was moved into a run by hand", 1, 1, WHERE | OF_A_RUN | ON_FILES,
     cli_adopt,
     "list calls them MOVED, and nothing loads them: their manifests name another run. adopt\n"
     "leaves origin.json beside each manifest, which says that this is meant. Moved back by hand\n"
     "they are what they were.\n"},
    {"tag", "CHECKPOINT NAME", "name it: RUN@NAME means it in every command", 2, 2,
     WHERE | ON_FILES | BIT(AND_PIN) | BIT(NOTE), cli_tag,
     "A tag that is there moves. It keeps nothing: prune removes what it names, and says so, "
     "unless\n"
     "--pin pins it as well. A NAME begins with a letter.\n"},
    {"untag", "RUN NAME", "take a tag away; its checkpoint stays", 2, 2,
     WHERE | OF_A_RUN | ON_FILES, cli_untag, ""},
    {"du", "[RUN | CHECKPOINT]", "bytes by run, checkpoint and kind of tensor", 0, 1,
     WHERE | READS | ALL_OF_RUN, cli_du,
     "Beside them the bytes of rubbish (see gc), of the trash (see undelete), of files that are\n"
     "not ours, and of files that are shared: that have another name, so that removing them frees "
     "nothing.\n"},
    {"gc", "", "remove what belongs to no checkpoint", 0, 0, WHERE | BIT(DRY_RUN), cli_gc,
     "That is what a crash leaves: shards of a save that was never committed, removals that were\n"
     "cut short, notes on checkpoints that are gone, leases whose holder died, temporary files.\n"
     "With --store the store is locked meanwhile. A ckptd leaves out what it saves or removes and\n"
     "what a tool holds, and looks into its far tier, too (names begin with its place); when it\n"
     "starts it removes unfinished saves by itself. What is not ours stays, and so does what\n"
     "could not be looked into or removed: it is named, the rest goes, and the exit code is 74.\n"},
    {"follow", "RUN", "weights of each checkpoint, as it commits", 1, 1,
     WHERE | OF_A_RUN | BIT(OUTPUT) | BIT(DTYPE) | BIT(EXCEPT) | BIT(ONLY) | BIT(SLICE) |
         BIT(KEEP_LAST) | BIT(COUNT),
     cli_follow,
     "A line per version, and one per tensor: its type, its shape, the digest of what was given.\n"
     "--output FOLDER leaves each version there as RUN-step-N-aN.safetensors, which has this name\n"
     "when it is whole and durable; with --keep-last only the newest so many stay. Versions are\n"
     "ordered by attempt, then step, and never go back; started again it goes on behind the\n"
     "newest file. One that is slower than the run skips versions, and no save waits for it. The\n"
     "bytes come out of ckptd's memory while they are there. --json prints an object per line. A\n"
     "ckptd that goes away is waited for, and so is a run that has not begun.\n"},
    {"status", "", "what ckptd does, or a directory; --watch", 0, 0, WHERE | BIT(ALL), cli_status,
     "One screen: can it save, how much room is there, which runs, saves in work. --all prints\n"
     "everything that is known, by dotted names, and --json the same as a document.\n"
     "saving: does ckptd expect the next save to succeed? disk: what saves may still use. read,\n"
     "write, sync: requests to the disk, and the times of the last few thousand. memory:\n"
     "segments of the pool that are lent to ranks or hold images. connected: ranks and loads now.\n"
     "unreadable: runs that could not be read, and why. On a directory: in use says whether "
     "somebody\n"
     "has the writer's lock; if nobody has, the saves are rubbish (gc).\n"
     "Of a ckptd with others beside it (nodes.peers) a line per node, as it told last: DISK LEFT\n"
     "for saves, USED of the disk and of the POOL, SAVES in work, LAG: training time on too few\n"
     "nodes; what this node is TO SEND there; how fast bytes went OUT to it and came IN;\n"
     "the round trip of a call, and on the bulk plane. No node is waited for: of a silent one\n"
     "the line is old. Alarms of others have their names.\n"},
    {"status --watch", "", "saves in work, the newest checkpoint, rates, again and again", 0, 0,
     WHERE | BIT(WATCH) | BIT(INTERVAL) | BIT(COUNT), cli_watch,
     "--json prints an object per line. A ckptd that goes away is waited for. On a directory\n"
     "nobody tells how far a save is, nor what is read: there it is unfinished, or committed.\n"},
    {"stop", "RUN", "let the ranks of a run save and end", 1, 1,
     BIT(SERVER) | OF_A_RUN | BIT(WITHOUT_SAVE) | BIT(GRACE) | BIT(YES), cli_stop,
     "The trainer saves behind the step that it is in and ends with 78, as with the file of\n"
     "training.kill_switch_path: no launcher starts it again. A person may, at once: nothing of\n"
     "the request is kept. Who may save into the run may stop it; history and the log say who "
     "did.\n"
     "With --grace it saves if the longest save of this start fits into what is left of that\n"
     "time; else it begins none, and waits for the saves that ckptd has.\n"
     "Ranks of another program end if it asks libckpt (ckpt_asked). 66: no rank of the run is\n"
     "connected to this ckptd. Of several nodes any that has a rank will do.\n"},
    {"save", "RUN", "let the ranks of a run save, and go on", 1, 1, BIT(SERVER) | OF_A_RUN,
     cli_save,
     "The trainer saves behind the step that it is in, once, as with the file of\n"
     "checkpoint.save_switch_path. Who may save into the run may ask; history and the log say who "
     "did.\n"
     "Ranks of another program save if it asks libckpt (ckpt_saves_asked). 66: no rank of the run\n"
     "is connected to this ckptd. A ckptd of before this command refuses it.\n"},
    {"server", "ACTION", "history, scrub, rescan, reload, attempt", 0, 0, 0, NULL,
     "What a ckptd did, and what it can be asked to do while it serves.\n"},
    {"server history", "RUN", "who committed, pinned, removed, took over, and when", 1, 1,
     WHERE | OF_A_RUN, cli_history,
     "The newest 64 KiB of events, the oldest first. attempt: ranks were started; commit: they\n"
     "saved; pin, unpin, adopt: asked for by that user; remove: by a prune or by retention;\n"
     "lost: a rank died, by a signal or with its node, in the call that is named, the first of "
     "its\n"
     "attempt;\n"
     "found, vanish: a checkpoint was copied in, or moved away, without ckptd. A ckptd that is\n"
     "killed may lose the events of the last second; its log has them.\n"},
    {"server scrub", "ACTION [RUN]",
     "start a pass of ckptd's scrub, pause it, or tell its progress", 1, 2, BIT(SERVER), cli_scrub,
     "start: a pass over the run, or over all, begins now, at scrub.rate. pause: until the next\n"
     "start of it, or of ckptd. progress: what it reads, and how much of that run it has read.\n"},
    {"server rescan", "", "let ckptd look for checkpoints that were copied in, or went", 0, 0,
     BIT(SERVER), cli_rescan,
     "A list, a show and a load look by themselves. This one also tells what is there and not\n"
     "listed, and why: a copy that is not whole yet, one of an attempt that is being trained.\n"},
    {"server reload", "", "let ckptd read retention and quotas again", 0, 0, BIT(SERVER),
     cli_reload,
     "[retention] and [run.NAME] of its configuration file hold from then on, and are applied to\n"
     "all runs. Other keys that have changed are named: they need a restart. A file that is\n"
     "refused changes nothing. SIGUSR1 does the same.\n"},
    {"server attempt", "RUN", "do most nodes answer a start of the run? --force: it needs none", 1,
     1, BIT(SERVER) | BIT(FORCE) | BIT(YES), cli_attempt,
     "A start needs most of the nodes (nodes.peers), so that two sides of a cut never train one\n"
     "run. Without them it goes on where the far tier takes its number (tier.attempts), else only\n"
     "as you say: --force lets the next start of the run at this ckptd do without the others, "
     "when\n"
     "they are lost for good. It is refused while most of them answer, and history has it. Below\n"
     "the answer stand the nodes of which most are needed: those in the settings, then those that\n"
     "the last attempt counted on (--json: sets).\n"},
    {"health", "", "does ckptd serve, and can it save?", 0, 0, BIT(SERVER) | BIT(EXPECT),
     cli_health,
     "Of grpc.health.v1. 0 when both are so, else 69 and the reason. It cannot save from the first "
     "save that the\n"
     "store or ckptd failed until that run commits again, and when the next save, or\n"
     "a new attempt with a save as large as the newest checkpoint, would not fit on the disk.\n"
     "--expect BYTES asks for a size that you know, of what the ranks of this node will save:\n"
     "then it is 69, too, when an attempt and a save of it do not fit on the disk, or the save's\n"
     "images not into memory.pool_bytes. The reason names disk, memory, or both.\n"
     "It is 69, too, from a save that failed at its ranks, before ckptd learned of it, until that\n"
     "run commits. 1: it can, but every checkpoint of some run is damaged. Of each run the age of\n"
     "its newest checkpoint and its failed saves in a row are told; with --json: runs, as in\n"
     "status.\n"},
    {"doctor", "", "why would this node lose time or checkpoints?", 0, 0, BIT(SERVER) | BIT(WRITE),
     cli_doctor,
     "A table: a verdict, what was looked at, what was found, and below it what to do.\n"
     "  ok    nothing\n"
     "  warn  it works, and is slower, or nearer to its end, than it need be\n"
     "  bad   saves fail, or time or checkpoints are lost, unless a person acts\n"
     "Asked is the ckptd: version, clock, certificates (also this user's, of HOLDFAST_TLS),\n"
     "alarms, room for saves, how it writes, other nodes. Looked at are this machine, and the\n"
     "limits of this process: ckptd's may be others, so run it as ckptd's user. Nothing is\n"
     "written without --write FOLDER. The configuration of a ckptd that is not started yet is\n"
     "what `ckptd --check --config FILE` looks at. 1: one is bad. 69: no ckptd answered; the\n"
     "machine is looked at all the same.\n"},
    {"bench", "ACTION", "io: the disk, asked as ckptd asks it", 0, 0, 0, NULL,
     "It measures what this machine does with the work of ckptd.\n"},
    {"bench io", "FOLDER", "rate and latency of writes, syncs and reads in FOLDER", 1, 1,
     BIT(BYTES) | BIT(BLOCK) | BIT(DEPTH) | BIT(TIME), cli_bench_io,
     "The storage of ckptd writes up to 8 files into a hidden folder there, one after the\n"
     "other: space reserved, io_uring and O_DIRECT where the system gives them (storage: what it\n"
     "was), then a sync of each; then it reads and compares them (1: other bytes were read). They\n"
     "are removed at the end, and when it is interrupted. It is refused (74) where they take more\n"
     "than nine tenths of what is free. Run it while ckptd does not save: both share the disk.\n"
     "write, read: the rate while requests were under way, and the times of requests of --block\n"
     "bytes with --depth of them in flight. sync: how long an fsync took. durable: the rate of\n"
     "the writes with their syncs. A save of N bytes on this node takes about N / durable until\n"
     "it is local: 100 GiB at 2 GiB/s 50 s. Save less often than that (advise). Ranks wait for\n"
     "it where memory.pool_bytes holds no second image. A p99.9 or a longest sync far above p50\n"
     "makes saves uneven: others write there, or the disk cleans up. A load that finds nothing\n"
     "in memory takes about N / read. With --json times are in seconds.\n"},
    {"watchdog", "RUN", "does the run train, or wait to start? (cron)", 1, 1,
     BIT(SERVER) | OF_A_RUN | BIT(SILENT) | BIT(AGE) | BIT(QUEUED) | BIT(ON_ALARM), cli_watchdog,
     "0: ranks of it are connected to this ckptd, none is silent, and it can save; or none is, "
     "and\n"
     "--queued prints something. 1: an alarm, one sentence on stdout, given to --on-alarm, too.\n"
     "A ckptd that does not answer is one. Ranks of trainers that announce no phases (ckpt_phase)\n"
     "are asked for --age alone. For example, every five minutes by cron:\n"
     "  ckpt-cli watchdog RUN --server unix:/run/ckptd/s --queued 'squeue -h -n RUN -t PD,CF' \\\n"
     "    --on-alarm 'echo \"$HOLDFAST_ALARM\" | mail -s RUN me@example.org'\n"},
};
const size_t num_commands = sizeof commands / sizeof *commands;

const struct command *command_find(const char *name)
{
    for (size_t i = 0; i < num_commands; i++) {
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    }
    return NULL;
}

int command_find_valued(const char *word)
{
    for (int i = 0; i < NUM_SETTINGS; i++) {
        bool is_it = strncmp(word, "--", 2) == 0 ? strcmp(word + 2, command_settings[i].key) == 0
                                                 : i == OUTPUT && strcmp(word, "-o") == 0;
        if (is_it && command_settings[i].type != OPTION_TYPE_BOOL)
            return i;
    }
    return -1;
}
