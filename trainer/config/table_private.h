/* table_private.h - macros for the keys of table_model.c, table_ranks.c and table_debug.c. */
#ifndef HOLDFAST_CONFIG_TABLE_PRIVATE_H
#define HOLDFAST_CONFIG_TABLE_PRIVATE_H

#include "trainer/config/table.h"

#define BOOL(field, ...) OPTION_BOOL(struct config, field, __VA_ARGS__)
#define INT(field, ...) OPTION_INT(struct config, field, __VA_ARGS__)
#define INT_OR(field, ...) OPTION_INT_OR(struct config, field, __VA_ARGS__)
#define DOUBLE(field, ...) OPTION_DOUBLE(struct config, field, __VA_ARGS__)
#define STRING(field, ...) OPTION_STRING(struct config, field, __VA_ARGS__)
#define CHOICE(field, ...) OPTION_CHOICE(struct config, field, __VA_ARGS__)
#define CHOICE_BUT(field, ...) OPTION_CHOICE_BUT(struct config, field, __VA_ARGS__)
#define ALIAS OPTION_ALIAS
#define IGNORED OPTION_IGNORED
#define FIXED OPTION_FIXED

#define COUNT_MAX 1000000000
#define RANKS_MAX 65536

/* Reasons that several keys share. */
#define NO_PYTHON "the trainer runs no Python"
#define ONE_STEP_TRACES "a trace has one step; profiling.profile_steps selects more"
#define NO_WANDB "this version writes no W&B events; see metrics.enable_tensorboard"
#define ONE_BOARD "only rank 0 writes: shared values, and its own speed and memory"
#define NO_LOADER "samples are read straight from the tokens file"
#define NO_COMPILE "there is nothing to compile at run time"
#define NO_SNAPSHOT "--estimate prints the plan, with all buffers"
#define NO_TENSOR "compute waits for the exchanges of tensor parallel"
#define NO_EXPERTS "there is no mixture-of-experts model"
#define NO_RECOMPUTE "recomputation always gives the same bits"
#define OWN_RECOMPUTE "only activation_checkpoint.mode selects recomputation"
#define NO_MX "this version has no MX products"
#define WIDER_FLOAT8 "a CPU always emulates; a GPU below compute capability 8.9 is refused"
#define FLOAT8_SCALES "scales are made at once if shards are gathered as codes, else per product"
#define FLOAT8_COPIES "a product reads a weight's codes again in its backward"
#define DYNAMIC_SCALES "a scale is computed from its tensor, not from earlier steps"
#define NO_FT "ranks restart from ckptd's memory; TorchFT is not used"
#define ONE_FORM "there is one implementation"
#define BY_CKPTD "ckptd places and keeps checkpoints; see its configuration"
#define DETERMINISTIC "training is deterministic; with reduction = fast as far as the library is"

#endif
