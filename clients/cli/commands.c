/* commands.c - the commands of ckpt-cli and their options, as data. main.c parses the command line
 * by these tables, prints help from them and offers their words for completion. */
#include "clients/cli/commands.h"

#include <string.h>

const struct option command_settings[] = {
    [STORE] = OPTION_STRING(struct cli, store, "store", "", "directory of the store"),
    [SERVER] = OPTION_STRING(struct cli, server, "server", "",
                             "address of ckptd: unix:/PATH, or HOST:PORT over TLS, with the "
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
                          "replace an unfinished output; export, report: also an existing file; "
                          "server attempt: without the other nodes; rm: also what is unread or "
                          "in doubt"),
    [QUICK] = OPTION_BOOL(struct cli, is_quick, "quick", "false",
                          "manifest, sizes, hashes of headers and checksum tables only"),
    [RELEASE] = OPTION_BOOL(struct cli, is_released, "release", "false",
                            "release it from quarantine if all of it matches"),
    [KEEP_LAST] =
        OPTION_INT(struct cli, keep_last, "keep-last", 0, 0, 1 << 24, "keep the newest N"),
    [KEEP_EVERY] = OPTION_INT(struct cli, keep_every, "keep-every", 0, 0, 1ll << 40,
                              "keep steps that are multiples of N"),
    [KEEP_WITHIN] =
        OPTION_STRING(struct cli, keep_within, "keep-within", "",
                      "keep younger ones, counted back from the newest: 30m, 12h, 7d, 2w"),
    [KEEP_BEST] = OPTION_INT(struct cli, keep_best, "keep-best", 0, 0, 1 << 24,
                             "keep the N with the best metric"),
    [METRIC] = OPTION_STRING(struct cli, metric, "metric", "loss",
                             "the saved metric that --keep-best compares"),
    [BEST] = OPTION_CHOICE(struct cli, best, "best", "lowest", "lowest,highest",
                           "which value of the metric is best"),
    [MOST] = OPTION_BOOL(struct cli, may_remove_most, "most", "false",
                         "allow removing more than half of the run"),
    [DRY_RUN] = OPTION_BOOL(struct cli, is_dry_run, "dry-run", "false",
                            "print the plan and remove nothing"),
    [YES] = OPTION_BOOL(struct cli, is_yes, "yes", "false", "do not ask"),
    [NOTE] = OPTION_STRING(struct cli, note, "note", "", "who and why; kept with the pin"),
    [SHARDS] = OPTION_INT(struct cli, shards, "shards", 0, 0, 65536, "number of files"),
    [MESH] = OPTION_STRING(struct cli, mesh, "mesh", "",
                           "mesh of its ranks: dp_shard=4, or dp_replicate=2,dp_shard=4"),
    [EXCEPT] = OPTION_STRING(struct cli, exceptions, "except", "",
                             "other types by name: '*norm*=fp32,output.weight=keep'"),
    [ONLY] = OPTION_STRING(struct cli, only, "only", "",
                           "only these tensors, by name: 'layers.0.*,norm.weight'"),
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
                                "largest file of --format hf"),
    [TOKENIZER] = OPTION_STRING(struct cli, tokenizer, "tokenizer", "",
                                "tokenizer file for a folder of --format hf"),
    [MODEL] = OPTION_STRING(struct cli, model, "model", "",
                            "of --format hf: a folder whose config.json describes the model, if "
                            "the checkpoint does not"),
    [RUN] = OPTION_STRING(struct cli, run, "run", "",
                          "name of the new run; with --format dcp and safetensors-folder RUN@STEP"),
    [WATCH] = OPTION_BOOL(struct cli, is_watched, "watch", "false",
                          "repeat: saves in progress, the newest checkpoint, rates"),
    [INTERVAL] = OPTION_DOUBLE(struct cli, interval, "interval", 2, 0.01, 86400,
                               "seconds between two updates"),
    [COUNT] = OPTION_INT(struct cli, count, "count", 0, 0, 1ll << 40,
                         "end after N updates or versions; 0: never"),
    [ALL] = OPTION_BOOL(struct cli, is_all, "all", "false",
                        "verify: every checkpoint; status: every value"),
    [SAMPLE] = OPTION_STRING(struct cli, sample, "sample", "",
                             "read this share of the blocks, chosen at random: 5%"),
    [SEED] = OPTION_INT(struct cli, seed, "seed", 0, 0, 1ll << 62,
                        "select the same blocks of --sample; 0: other ones"),
    [FROM] =
        OPTION_STRING(struct cli, from, "from", "", "store with a good copy: STORE or STORE:RUN"),
    [NOW] = OPTION_BOOL(struct cli, is_now, "now", "false",
                        "for good, not into the trash; rm RUN: empty its trash, too"),
    [AND_PIN] = OPTION_BOOL(struct cli, is_pin, "pin", "false", "pin it as well"),
    [SILENT] = OPTION_INT(struct cli, silent_s, "silent", 600, 1, 1 << 30,
                          "seconds within which each rank must begin or end a step"),
    [AGE] = OPTION_INT(struct cli, age_s, "age", 0, 0, 1 << 30,
                       "seconds within which a checkpoint must be committed; 0: not checked"),
    [QUEUED] = OPTION_STRING(struct cli, queued, "queued", "",
                             "a shell command that prints something while the job waits to "
                             "start: 'squeue -h -n NAME -t PD,CF'"),
    [ON_ALARM] = OPTION_STRING(struct cli, on_alarm, "on-alarm", "",
                               "a shell command for an alarm, whose text is in $HOLDFAST_ALARM"),
    [MTBF] = OPTION_STRING(struct cli, mtbf, "mtbf", "",
                           "mean time between failures of a node: 30d, 12h; default: as measured"),
    [NODES] =
        OPTION_INT(struct cli, nodes, "nodes", 1, 1, 1 << 24, "nodes of the job; --mtbf is of one"),
    [RESTART_TIME] = OPTION_STRING(struct cli, restart_time, "restart-time", "",
                                   "from a failure to the first new step: 90s, 5m; default 0"),
    [STEP_TIME] = OPTION_DOUBLE(struct cli, step_time, "step-time", 0, 0, 1e9,
                                "seconds of a step, instead of the checkpoint's"),
    [SAVE_TIME] =
        OPTION_DOUBLE(struct cli, save_time, "save-time", 0, 0, 1e9,
                      "seconds that training waits for a save, instead of the checkpoint's"),
    [WITHOUT_SAVE] = OPTION_BOOL(struct cli, is_unsaved, "without-save", "false",
                                 "do not save: the steps since the last save are lost"),
    [GRACE] = OPTION_INT(struct cli, grace_s, "grace", 0, 0, 86400,
                         "seconds within which the ranks should end; 0: no limit"),
    [SETTINGS] = OPTION_BOOL(struct cli, is_settings, "settings", "false",
                             "compare how they were made, but no tensors"),
    [EXPECT] = OPTION_BYTES(struct cli, expected, "expect", "0", 0, 1ll << 60,
                            "also check that an attempt and a save of this size fit: 10GiB"),
    [BYTES] = OPTION_BYTES(struct cli, bytes, "bytes", "4GiB", 1 << 12, 1ll << 60,
                           "total size of the written files"),
    [BLOCK] = OPTION_BYTES(struct cli, block, "block", "1MiB", 1 << 12, 64 << 20,
                           "bytes of a request, as storage.block_bytes of ckptd"),
    [DEPTH] = OPTION_INT(struct cli, depth, "depth", 32, 1, 4096,
                         "requests in flight, as storage.queue_depth of ckptd"),
    [TIME] = OPTION_DOUBLE(struct cli, time_s, "time", 0, 0, 86400,
                           "limit of writing and of reading, in seconds; 0: no limit"),
    [WRITE] = OPTION_STRING(struct cli, write, "write", "",
                            "a folder on the store's disk: 64 MiB are written there, synced, "
                            "measured and removed"),
    [METRICS] = OPTION_STRING(struct cli, metrics, "metrics", "", "the run's metrics.jsonl_file"),
    [JSON] = OPTION_BOOL(struct cli, is_json, "json", "false", "one JSON document on stdout"),
    [HELP] = OPTION_BOOL(struct cli, is_help, "help", "false", "this text"),
    [NUM_SETTINGS] = OPTION_END,
};

#define OUTPUT_NOTES                                                                             \
    "A STORE that is a directory stays locked while the command runs. A running ckptd's store\n" \
    "is named by its socket, unix:/PATH: as with import, the command writes files beside\n"      \
    "those that ckptd serves, and ckptd takes them over at the end. ckptd refuses a step that\n" \
    "may be a trainer's own: one of the newest attempt of a run that is being trained there.\n"  \
    "If the command is killed, its files stay; remove them with gc, --force does not.\n"

#define PYTHON_NOTES                                                                             \
    "Memory use does not grow with the checkpoint. The Python package holdfast does the work;\n" \
    "it needs NumPy, but not PyTorch. HOLDFAST_PYTHON names the Python that has it (default:\n"  \
    "python3).\n"

#define TRASH_NOTES                                                                             \
    "If the store has a trash (retention.trash_s of ckptd), undelete can restore it for that\n" \
    "time. --now removes it for good.\n"

const struct command commands[] = {
    {"list", "[RUN]", "list committed checkpoints by run, newest first", 0, 1, WHERE | OF_A_RUN,
     cli_list,
     "The columns are the checkpoint's name for other commands, RANKS (how many ranks saved\n"
     "it), SIZE, TIME of the save, and STATE:\n"
     "  local          it survives a power loss of this machine\n"
     "  replicated     it also survives the loss of a node: another failure domain has a copy on\n"
     "                 disk; (mem): in the memory of a ckptd\n"
     "  bucket         the far tier has it\n"
     "  (local,far)    the tiers that have it, unless only the local one does: ckptd reads it "
     "from\n"
     "                 there for every command (--json: tiers)\n"
     "  not read back  it was written and synced, but the scrub has not read it from the disk "
     "since;\n"
     "                 verify reads it now (--json: read_back)\n"
     "  in memory      ckptd still holds all of it in memory, so a load needs no disk\n"
     "  pinned         no command or rule removes it; the note says for whom\n"
     "  tag            its other names, see tag\n"
     "  verified       the time of the last verification, whole or in part, and its result: "
     "whole,\n"
     "                 no damage found, DAMAGED\n"
     "  DAMAGED        the reason; the checkpoint is kept, listed and never loaded\n"
     "  MOVED          it was saved in another run and lies in this one's directory; see adopt\n"
     "The exit code is 1 if a checkpoint is DAMAGED.\n"},
    {"show", "CHECKPOINT", "print the manifest: origin, state, tensors, shards", 1, 1,
     WHERE | BIT(OBJECT), cli_show,
     "The origin goes back to the first attempt, as far as the store still has a checkpoint of\n"
     "each attempt. If no step is given, newer damaged checkpoints are skipped, and named on\n"
     "stderr. --json prints: the manifest; its durability; read_back as in list; whether it is\n"
     "pinned, and the pin's note; the bytes of its objects; the damage, if it is quarantined;\n"
     "the ancestors of a resumed run, latest first, and ancestors_complete; and the skipped\n"
     "checkpoints, if there are any. --object NAME verifies an object and writes its bytes as\n"
     "they were saved.\n"},
    {"verify", "CHECKPOINT | --all [RUN]", "read everything and name damaged blocks", 0, 1,
     WHERE | READS | BIT(QUICK) | BIT(RELEASE) | BIT(ALL) | BIT(SAMPLE) | BIT(SEED), cli_verify,
     "--quick reads no data. It proves that every file exists with its size, belongs to this\n"
     "checkpoint, and has the checksum table that was committed. It does not prove that the\n"
     "data match those checksums: only a run without --quick finds a flipped bit on the disk.\n"
     "--sample 5% reads that share of the blocks, chosen at random. It prints the seed; the\n"
     "same --seed selects the same blocks. --all verifies every checkpoint of the store, or of\n"
     "RUN.\n"
     "The result and its time are kept for checkpoints in the store's directory (of --quick\n"
     "only damage). Over TLS, ckptd keeps them only for an operator's certificate. list and\n"
     "show print them; prune and retention use them, see prune.\n"
     "served: the blocks were read through ckptd, because only other tiers have some of them.\n"
     "verify reports damage and changes nothing. If another tier or node has a copy, `ckpt-cli\n"
     "server scrub start RUN` makes ckptd find and repair the damage. repair takes the bytes\n"
     "from a store that you name.\n"},
    {"diff", "CHECKPOINT CHECKPOINT", "compare the values of two checkpoints, on any meshes", 2, 2,
     WHERE | READS | BIT(SETTINGS), cli_diff,
     "Digests are compared first; only tensors that differ are read. Below them it prints how\n"
     "the two checkpoints were made, where that differs: code, mesh, config, identity of the\n"
     "numerics, environment (hosts, CPU, libraries, variables) and data. Exit code 1 means\n"
     "that a tensor differs; with --settings, which reads no tensor, that a setting differs.\n"
     "--json prints tensors, same, different, and settings, each with what, first and second.\n"},
    {"export", "CHECKPOINT --output PATH", "export to safetensors, Hugging Face's format or DCP", 1,
     1,
     WHERE | READS | BIT(OUTPUT) | BIT(DTYPE) | BIT(EXCEPT) | BIT(ONLY) | BIT(WEIGHTS_ONLY) |
         BIT(FORMAT) | BIT(SHARD_SIZE) | BIT(TOKENIZER) | BIT(MODEL) | BIT(FORCE),
     cli_export,
     "--format safetensors writes one file with every tensor under its own name. Bytes objects\n"
     "are not tensors and are left out: see show --object NAME. --format hf writes a folder\n"
     "that other programs load: config.json, the weights under Hugging Face's names and in its\n"
     "order of rows, an index of several files, and with --tokenizer the files that loaders\n"
     "read: tokenizer.json, tokenizer_config.json. A tokenizer.json and SentencePiece's\n"
     "tokenizer.model are copied unchanged. Without --tokenizer, an imported run gets the\n"
     "files of its folder again. --weights-only without --only selects this format.\n"
     "Patterns of --except match Holdfast's names in both formats. --only works with one file\n"
     "only, because such a folder has all weights. If no step is given, a damaged checkpoint\n"
     "is skipped in favour of the one before it, and named on stderr.\n"
     "PATH may be s3://BUCKET/NAME: then the files become objects of a bucket, config.json\n"
     "last. Objects of an interrupted export stay, and the same command continues; --force\n"
     "sends all of them again.\n"},
    {"export --format dcp", "CHECKPOINT --output FOLDER",
     "a folder that PyTorch's DCP loads on any mesh", 1, 1, WHERE | BIT(OUTPUT) | BIT(FORMAT),
     cli_export_python,
     "Exports what import --format dcp read, or what holdfast.dcp saved; a checkpoint from\n"
     "Megatron becomes torch_dist again. FOLDER gets .metadata last, when all files are\n"
     "durable: without it the folder is no checkpoint, and the same command starts again. A\n"
     "folder with .metadata is not replaced.\n" PYTHON_NOTES},
    {"export --format safetensors-folder", "CHECKPOINT --output FOLDER",
     "a folder of safetensors, each tensor whole", 1, 1,
     WHERE | BIT(OUTPUT) | BIT(FORMAT) | BIT(DTYPE) | BIT(WEIGHTS_ONLY), cli_export_python,
     "Exports any checkpoint, under its own tensor names. If there are several files,\n"
     "model.safetensors.index.json is written last. A folder that already has safetensors is\n"
     "refused. With --weights-only, a checkpoint of Hugging Face's Trainer becomes the folder\n"
     "of its model: its names, config.json, tokenizer. 64-bit floats keep their "
     "type.\n" PYTHON_NOTES},
    {"import", "FOLDER --run RUN[@STEP]", "import from Hugging Face's format, DCP, safetensors", 1,
     1, WHERE | ON_FILES | BIT(RUN) | BIT(FORMAT) | BIT(SHARDS) | BIT(FORCE), cli_import,
     "The checkpoint is step 0 of a new run. FOLDER, or s3://BUCKET/NAME, holds config.json of\n"
     "a Llama and its weights in fp32, bf16 or fp16; all become fp32, exactly. The run keeps\n"
     "its tokenizer, chat template and generation_config.json, and export --format hf writes\n"
     "them unchanged. A trainer with job.run = NAME starts from it: at position 0 of its data,\n"
     "with zero moments. With --store the store stays locked while the command runs. With\n"
     "--server its ckptd continues to serve: the command writes files of ckptd's user (root\n"
     "changes their owner) beside those that ckptd serves, and ckptd takes them over at the\n"
     "end. If the command is killed, remove them with gc; --force does not.\n"},
    {"import --format dcp", "FOLDER --run RUN@STEP", "a checkpoint from a folder of PyTorch's DCP",
     1, 1, BIT(SERVER) | BIT(RUN) | BIT(FORMAT), cli_import_python,
     "FOLDER was written by torch.distributed.checkpoint, or by Megatron as torch_dist. It\n"
     "becomes that step of a new attempt of RUN. Every tensor keeps its name, type and bits,\n"
     "however it was sharded. Data that are not tensors are stored as their bytes, Megatron's\n"
     "common.pt too: no pickle is loaded.\n" PYTHON_NOTES},
    {"import --format safetensors-folder", "FOLDER --run RUN@STEP",
     "a checkpoint from safetensors of any names", 1, 1, BIT(SERVER) | BIT(RUN) | BIT(FORMAT),
     cli_import_python,
     "It becomes that step of a new attempt of RUN. Every tensor keeps its name, type and\n"
     "bits; the parts that DCP's safetensors writer left are joined. Use --format hf for a\n"
     "Llama of Hugging Face that a trainer should start from.\n" PYTHON_NOTES},
    {"convert", "CHECKPOINT --output STORE", "change dtype, mesh or number of shards", 1, 1,
     WHERE | READS | BIT(OUTPUT) | BIT(DTYPE) | BIT(EXCEPT) | BIT(ONLY) | BIT(WEIGHTS_ONLY) |
         BIT(SHARDS) | BIT(MESH) | BIT(FORCE),
     cli_convert,
     "The new checkpoint has the same run, step and attempt, and its own nonce and checksums;\n"
     "every command reads it. Integers keep their type. With --shards or --mesh it has the\n"
     "files that so many ranks of a trainer would write; otherwise the source's. If every\n"
     "tensor keeps its type, the checkpoint is committed only if each has the digest in the\n"
     "source's manifest. A load reshards for any number of ranks by itself.\n" OUTPUT_NOTES},
    {"prune", "RUN --keep-...", "remove checkpoints that no rule keeps", 1, 1,
     WHERE | OF_A_RUN | BIT(KEEP_LAST) | BIT(KEEP_EVERY) | BIT(KEEP_WITHIN) | BIT(KEEP_BEST) |
         BIT(METRIC) | BIT(BEST) | BIT(MOST) | BIT(DRY_RUN) | BIT(NOW),
     cli_prune,
     "A checkpoint stays if any rule keeps it. These always stay, whatever the rules say:\n"
     "pinned, open or damaged checkpoints; the last two that are not damaged; and the last two\n"
     "known to be whole. A checkpoint is known to be whole if the scrub, verify or a load read\n"
     "it back, or if the far tier accepted its checksum on upload. A checkpoint that is known\n"
     "to be damaged never counts. The plan prints why each one stays. To let an older one go\n"
     "that is kept as proven, verify newer ones. rm removes damaged or unwanted ones by name.\n"
     "If nothing in a run was read back, the rules and the last two apply.\n" TRASH_NOTES},
    {"advise", "CHECKPOINT", "compute how often to save, how many to keep, where to copy", 1, 1,
     WHERE | OF_A_RUN | BIT(MTBF) | BIT(NODES) | BIT(RESTART_TIME) | BIT(STEP_TIME) |
         BIT(SAVE_TIME),
     cli_advise,
     "Each of the three parts ends with the settings: checkpoint.* are the trainer's keys, all\n"
     "others ckptd's.\n"
     "Interval: by Daly's formula (2006), from three times: a step, training's wait for a save\n"
     "(both are in the checkpoint), and the mean time between failures of the job. Without\n"
     "--mtbf that is counted in the run's journal (server history; a bucket has none): starts\n"
     "with lost ranks, and those that end without a stop or a last save and are followed by\n"
     "another. A run without a failure is taken to fail once in its time of training, or in 24 h\n"
     "if that is longer. now:\n"
     "the same with the interval that the checkpoint was saved with. Lost time is the waits for\n"
     "saves, the training since the last durable save, and --restart-time. If the ckptd's last\n"
     "save was of this run, it also prints how long that took to become durable: no shorter\n"
     "interval is advised. With checkpoint.interval = auto the trainer does this itself.\n"
     "Retention: fit is how many checkpoints of this size fit, with those that are there, on 80 %\n"
     "of a directory's disk or what ckptd has left; each counts whole, also where a node has a\n"
     "part. One is being saved, and ckptd may keep five beside the rule; the others are kept, as\n"
     "far as they reach back a week, and at least two.\n"
     "full: when the disk is full if nothing is removed; the present rate is ckptd's own.\n"
     "Replication: what the loss of the node's disk costs, by tier, with the measured time of a\n"
     "copy, and the tier where that is least. A tier that needs longer for a copy than between\n"
     "two failures is not advised. A directory does not tell of other tiers.\n"},
    {"report", "RUN [--output FILE.html]", "write a page on a run: curves, starts, changes", 1, 1,
     WHERE | OF_A_RUN | BIT(OUTPUT) | BIT(METRICS) | BIT(FORCE), cli_report,
     "One HTML file without scripts, which loads nothing else; without --output it is RUN.html\n"
     "in the current directory. It has a summary; curves of the loss\n"
     "and, with --metrics, gradient norm and learning rate; checkpoints; starts; settings,\n"
     "libraries and hosts that changed between attempts, as in diff --settings; lineage; steps\n"
     "that were skipped or rolled back because of their numbers.\n"
     "Vertical lines are starts, circles are loss spikes. Steps that were computed twice are\n"
     "drawn once, from the branch that continued. Without --metrics the loss comes from the\n"
     "newest checkpoint's history. The page names missing, damaged or foreign data and shows\n"
     "the rest. The exit code is 1 if a checkpoint is DAMAGED. Durable after: of the last save\n"
     "of a ckptd.\n"
     "--json prints the same, with or without --output: head, notes, curves (steps, values;\n"
     "null is a gap), spikes, checkpoints as in list, starts, changes, lineage; broken:\n"
     "the steps that were skipped or rolled back.\n"},
    {"rm", "RUN | RUN@STEP-aATTEMPT", "remove a checkpoint or a run, in any state", 1, 1,
     WHERE | BIT(DRY_RUN) | BIT(YES) | BIT(NOW) | BIT(FORCE), cli_rm,
     "It also removes damaged, newer and set-aside checkpoints, and runs without any\n"
     "checkpoint, which count for limits.runs. A checkpoint that could not be read may be\n"
     "whole, and a part of a save whose coordinator has not answered yet is in doubt: both\n"
     "need --force. It prints the loss and asks; --yes answers. Pinned or open checkpoints\n"
     "stay, and so does a run that is being trained. With several ckptd (nodes.peers), each\n"
     "removes its own copies, on disk and in memory; the reply names the others that have\n"
     "copies (elsewhere). With --store the store stays locked while the command "
     "runs.\n" TRASH_NOTES},
    {"undelete", "RUN | RUN@STEP[-aATTEMPT]", "restore removed checkpoints", 1, 1,
     WHERE | BIT(DRY_RUN), cli_undelete,
     "RUN restores everything in its trash. --dry-run lists the trash: when each checkpoint\n"
     "was removed, and when it expires. If a save lacks space, the oldest expire earlier. With\n"
     "--store the store stays locked while the command runs.\n"},
    {"pin", "CHECKPOINT", "keep it, whatever the rules say", 1, 1, WHERE | BIT(NOTE), cli_pin, ""},
    {"unpin", "CHECKPOINT", "remove the pin", 1, 1, WHERE, cli_unpin,
     "A checkpoint that is not pinned is an error, with exit code 66. RUN@STEP-aATTEMPT also\n"
     "removes the pin of a checkpoint that no longer exists.\n"},
    {"cp", "RUN[@STEP] [STORE:]RUN", "copy into another run or store, verified", 2, 2,
     WHERE | ON_FILES | ALL_OF_RUN, cli_cp,
     "STORE is a directory, or unix:/PATH of the ckptd that serves it; without STORE the copy\n"
     "goes into the same store. Without @STEP every whole checkpoint of the run is copied.\n"
     "Each block is verified before it is written, and the digests of the written data are\n"
     "compared at the end. Nothing is read back: `verify` does that. The same command again\n"
     "copies what is missing: it skips existing checkpoints, and verifies and keeps existing\n"
     "shards. Step and attempt stay the same.\n"},
    {"repair", "CHECKPOINT [--from STORE]", "replace damaged shards, or a lost manifest", 1, 1,
     WHERE | ON_FILES | BIT(FROM), cli_repair,
     "STORE:RUN names a run that has another name there. Every block here is read, and the\n"
     "bytes from STORE are checked against the manifest here. Then all is read back, and the\n"
     "checkpoint leaves quarantine. If the manifest of RUN@STEP-aATTEMPT is lost or damaged,\n"
     "it is taken from STORE, too; without --from it is rebuilt from the headers of the\n"
     "shards. A rebuilt manifest has no state: no trainer resumes from it, but its weights can\n"
     "be exported or trained on.\n"},
    {"rename", "RUN NAME", "give a run another name", 2, 2, WHERE | OF_A_RUN, cli_rename,
     "The shards keep the old name inside. A small file beside each manifest (origin.json)\n"
     "records it, and list and show print it. With --store the store stays locked while the\n"
     "command runs.\n"},
    {"adopt", "RUN", "serve checkpoints that were moved into a run by hand", 1, 1,
     WHERE | OF_A_RUN | ON_FILES, cli_adopt,
     "list calls such checkpoints MOVED, and they cannot be loaded: their manifests name\n"
     "another run. adopt writes origin.json beside each manifest, which confirms the move. If\n"
     "you move them back by hand, they are as before.\n"},
    {"tag", "CHECKPOINT NAME", "name it: RUN@NAME means it in every command", 2, 2,
     WHERE | ON_FILES | BIT(AND_PIN) | BIT(NOTE), cli_tag,
     "An existing tag moves. A tag protects nothing: prune removes its checkpoint, and says\n"
     "so, unless --pin pins it as well. A NAME begins with a letter.\n"},
    {"untag", "RUN NAME", "remove a tag; its checkpoint stays", 2, 2, WHERE | OF_A_RUN | ON_FILES,
     cli_untag, ""},
    {"du", "[RUN | CHECKPOINT]", "print bytes by run, checkpoint and kind of tensor", 0, 1,
     WHERE | READS | ALL_OF_RUN, cli_du,
     "It also prints the bytes of rubbish (see gc), of the trash (see undelete), of files that\n"
     "are not Holdfast's, and of shared files: they have another name, so removing them frees\n"
     "nothing.\n"},
    {"gc", "", "remove files that belong to no checkpoint", 0, 0, WHERE | BIT(DRY_RUN), cli_gc,
     "It removes the remains of a crash: shards of a save that was never committed,\n"
     "interrupted removals, notes on checkpoints that no longer exist, leases whose holder\n"
     "died, temporary files. With --store the store stays locked while the command runs. A\n"
     "ckptd leaves out its own saves and removals and what a tool holds, and includes its far\n"
     "tier (names begin with the tier's place). At its start it removes unfinished saves by\n"
     "itself. Files that are not Holdfast's stay. Files that cannot be read stay and are\n"
     "named; the others are removed, and the exit code is 74.\n"},
    {"follow", "RUN", "write the weights of each checkpoint as it commits", 1, 1,
     WHERE | OF_A_RUN | BIT(OUTPUT) | BIT(DTYPE) | BIT(EXCEPT) | BIT(ONLY) | BIT(SLICE) |
         BIT(KEEP_LAST) | BIT(COUNT),
     cli_follow,
     "It prints a line for each version, and one for each tensor: its type, shape and digest.\n"
     "--output FOLDER writes each version there as RUN-step-N-aN.safetensors; the file gets\n"
     "this name when it is whole and durable. --keep-last N removes all but the newest N.\n"
     "Versions are ordered by attempt, then step, and never go back; after a restart it\n"
     "continues behind the newest file. A follower that is slower than the run skips versions,\n"
     "and never delays a save. The bytes come from ckptd's memory while they are there. --json\n"
     "prints an object per line. It waits for a ckptd that is away, and for a run that has not\n"
     "begun.\n"},
    {"status", "", "print the state of ckptd, or of a directory; --watch", 0, 0, WHERE | BIT(ALL),
     cli_status,
     "One screen: whether it can save, free space, runs, saves in progress. --all prints every\n"
     "value by its dotted name, --json the same as a document.\n"
     "saving: does ckptd expect the next save to succeed? disk: the space that saves may still\n"
     "use. read, write, sync: requests to the disk, and the times of the last few thousand.\n"
     "memory: segments of the pool that ranks have borrowed or that hold images. connected:\n"
     "ranks and loads. unreadable: runs that could not be read, and why. Of a directory, in\n"
     "use says whether a process has the writer's lock; if none has, unfinished saves are\n"
     "rubbish (gc).\n"
     "With other ckptd beside it (nodes.peers), a line for each node, from its last answer:\n"
     "DISK LEFT for saves; USED shares of the disk and of the POOL; SAVES in progress; LAG:\n"
     "training time that too few nodes have; bytes that this node has TO SEND there; rates OUT\n"
     "to it and IN from it; round-trip times of a call and of the bulk plane. It waits for no\n"
     "node: if one does not answer, its line is old. Alarms of other nodes have their names.\n"},
    {"status --watch", "", "repeat: saves in progress, the newest checkpoint, rates", 0, 0,
     WHERE | BIT(WATCH) | BIT(INTERVAL) | BIT(COUNT), cli_watch,
     "--json prints an object per line. It waits for a ckptd that is away. In a directory a\n"
     "save is either unfinished or committed, and the rate of reads is unknown.\n"},
    {"stop", "RUN", "make the ranks of a run save and end", 1, 1,
     BIT(SERVER) | OF_A_RUN | BIT(WITHOUT_SAVE) | BIT(GRACE) | BIT(YES), cli_stop,
     "The trainer saves after its current step and ends with 78, as with the file of\n"
     "training.kill_switch_path: no launcher starts it again. The request is not kept: an\n"
     "operator may start the run again at once. Only the user, or the certificate, that\n"
     "trains the run and operators may stop it; history and the log name the user.\n"
     "With --grace N the trainer saves only if the longest save since its start fits into the\n"
     "time left; otherwise it begins none, and waits for the saves that ckptd has.\n"
     "Ranks of another program end if it polls libckpt (ckpt_asked). Exit code 66: no rank of\n"
     "the run is connected to this ckptd. With several nodes, ask any that has a rank.\n"},
    {"save", "RUN", "make the ranks of a run save and continue", 1, 1, BIT(SERVER) | OF_A_RUN,
     cli_save,
     "The trainer saves once, after its current step, as with the file of\n"
     "checkpoint.save_switch_path. It repeats a save that fails, or whose ckptd ends before it\n"
     "is durable, after 1 s to 60 s. Ranks of other nodes receive a request within a second;\n"
     "it is lost if their ckptd ends before that. Only the user, or the certificate, that\n"
     "trains the run and operators may ask; history and the log name the user.\n"
     "Ranks of another program save if it polls libckpt (ckpt_saves_asked). Exit code 66: no\n"
     "rank of the run is connected to this ckptd. A ckptd that is older than this command\n"
     "refuses it.\n"},
    {"server", "ACTION", "history, scrub, rescan, reload, attempt", 0, 0, 0, NULL,
     "Events of a ckptd, and requests to it while it serves.\n"},
    {"server history", "RUN", "print who committed, pinned, removed, took over, and when", 1, 1,
     WHERE | OF_A_RUN, cli_history,
     "The newest 64 KiB of events, oldest first. attempt: ranks were started; commit: they\n"
     "saved; pin, unpin, adopt: that user asked for it; remove: by a prune or by retention;\n"
     "lost: the first rank of its attempt that died, by a signal or with its node, with the\n"
     "call it was in. If its ckptd is on another node, that call is up to a second old, and\n"
     "the event comes 5 s later or with the next start. end: its last rank on this node left by\n"
     "itself, and none died. found, vanish: a checkpoint was copied in, or moved away, without\n"
     "ckptd. A ckptd that is killed may lose the events of the last second; its log has them.\n"},
    {"server scrub", "ACTION [RUN]",
     "start a pass of ckptd's scrub, pause it, or print its progress", 1, 2, BIT(SERVER), cli_scrub,
     "start: begins a pass over the run, or over all runs, at scrub.rate. pause: until the\n"
     "next start of the scrub, or of ckptd. progress: the checkpoint that it reads, and how\n"
     "much of that run it has read.\n"},
    {"server rescan", "", "make ckptd detect checkpoints that were copied in or moved away", 0, 0,
     BIT(SERVER), cli_rescan,
     "list, show and loads detect such changes themselves. rescan also prints which\n"
     "checkpoints are present but not listed, and why: an incomplete copy, or one of an\n"
     "attempt that is being trained.\n"},
    {"server reload", "", "make ckptd reload retention and quotas", 0, 0, BIT(SERVER), cli_reload,
     "[retention] and [run.NAME] of its configuration file apply from then on, to all runs. It\n"
     "names other changed keys: they need a restart. A file that is refused changes nothing.\n"
     "SIGUSR1 does the same.\n"},
    {"server attempt", "RUN", "do most nodes answer a start of the run? --force: start without", 1,
     1, BIT(SERVER) | BIT(FORCE) | BIT(YES), cli_attempt,
     "A start needs most of the nodes (nodes.peers), so that the two sides of a network\n"
     "partition never train one run. Without most of them it continues if the far tier accepts\n"
     "its number (tier.attempts). Otherwise you decide: --force lets the next start of the run\n"
     "at this ckptd do without the others, if they are lost for good. It is refused while most\n"
     "of them answer, and history records it. The answer lists the nodes of which most are\n"
     "needed: those in the settings, then those that the last attempt counted on (--json:\n"
     "sets).\n"},
    {"health", "", "check that ckptd serves and can save", 0, 0, BIT(SERVER) | BIT(EXPECT),
     cli_health,
     "It asks grpc.health.v1. Exit code 0: both are true; otherwise 69, and the reason. It\n"
     "cannot save from the first save that the store or ckptd failed until that run commits\n"
     "again, and while the next save, or a new attempt with a save as large as the newest\n"
     "checkpoint, does not fit on the disk.\n"
     "--expect BYTES asks for a size that you know, of all ranks of this node: it is 69, too,\n"
     "if an attempt and a save of that size do not fit on the disk, or if the save's images do\n"
     "not fit into memory.pool_bytes. The reason names disk, memory, or both.\n"
     "It is also 69 after a save that failed at its ranks, before ckptd knew of it, until that\n"
     "run commits. 1: it can save, but every checkpoint of some run is damaged. It prints the\n"
     "age of each run's newest checkpoint and its failed saves in a row; with --json: runs, as\n"
     "in status.\n"},
    {"doctor", "", "examine this node for problems", 0, 0, BIT(SERVER) | BIT(WRITE), cli_doctor,
     "A table: a verdict, the item, the finding, and below it what to do.\n"
     "  ok    nothing to do\n"
     "  warn  it works, but it is slower than it could be, or near a limit\n"
     "  bad   saves fail, or time or checkpoints are lost, unless you act\n"
     "It asks the ckptd for version, clock, certificates (also this user's, of HOLDFAST_TLS),\n"
     "alarms, room for saves, its way of writing, and other nodes. It also examines this\n"
     "machine and the limits of this process: ckptd's may differ, so run it as ckptd's user.\n"
     "It writes only with --write FOLDER. For the configuration of a ckptd that does not run\n"
     "yet, use `ckptd --check --config FILE`. Exit code 1: one item is bad. 69: no ckptd\n"
     "answered; the machine is examined anyway.\n"},
    {"bench", "ACTION", "io: measure the disk as ckptd uses it", 0, 0, 0, NULL,
     "Measures what this machine can do for ckptd.\n"},
    {"bench io", "FOLDER", "measure writes, syncs and reads in FOLDER", 1, 1,
     BIT(BYTES) | BIT(BLOCK) | BIT(DEPTH) | BIT(TIME), cli_bench_io,
     "ckptd's storage code writes up to 8 files into a hidden folder there, one after the\n"
     "other: with space reserved, and with io_uring and O_DIRECT where the system has them\n"
     "(storage: what was used). Then it syncs each, reads them and compares (exit code 1:\n"
     "other bytes were read). The files are removed at the end, also after an interruption. It\n"
     "is refused (74) if they need more than nine tenths of the free space. Run it while ckptd\n"
     "does not save: both share the disk.\n"
     "write, read: the rate while requests were in flight, and the times of requests of\n"
     "--block bytes with --depth of them in flight. sync: the time of an fsync. durable: the\n"
     "rate of the writes with their syncs. A save of N bytes on this node takes about N /\n"
     "durable until it is local: 100 GiB at 2 GiB/s take 50 s. Save less often than that\n"
     "(advise). If memory.pool_bytes has no room for a second image, ranks wait that long. A\n"
     "p99.9 or a longest sync far above p50 makes saves uneven: another program writes there,\n"
     "or the disk cleans up. A load that finds nothing in memory takes about N / read. With\n"
     "--json times are in seconds.\n"},
    {"watchdog", "RUN", "check that the run trains or waits to start (cron)", 1, 1,
     BIT(SERVER) | OF_A_RUN | BIT(SILENT) | BIT(AGE) | BIT(QUEUED) | BIT(ON_ALARM), cli_watchdog,
     "Exit code 0: ranks of the run are connected to this ckptd, none is silent, and ckptd can\n"
     "save; or none is connected, and --queued prints something. 1: an alarm, one sentence on\n"
     "stdout, also given to --on-alarm. A ckptd that does not answer is an alarm. If a trainer\n"
     "announces no phases (ckpt_phase), only --age is checked. For example, every five minutes\n"
     "by cron:\n"
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
