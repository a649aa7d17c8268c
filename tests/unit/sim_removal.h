/* sim_removal.h - a removal of ckptd_sim.c: storage/group.c on a disk in memory, of which one
 * operation fails, and then the power goes: what was not synced is there, or not. */
#ifndef HOLDFAST_TESTS_SIM_REMOVAL_H
#define HOLDFAST_TESTS_SIM_REMOVAL_H

#include "ckptd/core/catalog.h"
#include "proto/format/shard.h"
#include "storage/store/store.h"
#include "tests/fault/storage_fault.h"
#include "tests/unit/sim_bed.h"

#include <stdio.h>

#define REMOVAL_OPERATIONS 24u /* that one has, about, with those of its setting up */

static bool has_object(struct storage *disk, const char *dir, const char *name)
{
    char key[STORAGE_KEY_MAX + 64], byte;
    uint64_t bytes;
    snprintf(key, sizeof key, "%s/%s", dir, name);
    return storage_fetch(disk, key, &byte, 1, &bytes) == 0;
}

/* The manifest last. */
static const char *const removal_objects[] = {"shard-00001-of-00002.safetensors",
                                              "shard-00002-of-00002.safetensors", MANIFEST_NAME};

static int put_checkpoint(struct storage *disk, const char *dir)
{
    int error = 0;
    for (uint32_t i = 0; i < 3 && error == 0; i++) {
        char key[STORAGE_KEY_MAX + 64];
        snprintf(key, sizeof key, "%s/%s", dir, removal_objects[i]);
        error = storage_publish(disk, key, "x", 1);
    }
    return error;
}

/* sim.S11. */
static void remove_in_the_dark(struct world *world, const struct saved *saved)
{
    char where[128], dir[STORAGE_KEY_MAX];
    struct storage *disk = NULL;
    snprintf(where, sizeof where, "seed=%u,fail_at=%u:memory:", below(&world->sim, UINT32_MAX),
             4 + below(&world->sim, REMOVAL_OPERATIONS));
    if (shard_dir_key(dir, sizeof dir, "r", saved->step, saved->attempt) != 0 ||
        storage_open(&disk, &storage_fault, where, NULL) != 0 || put_checkpoint(disk, dir) != 0 ||
        (store_remove(disk, dir) != 0 && storage_fault_crash(disk) != 0))
        require(&world->sim, false, "the simulator has a disk");
    bool is_any = false, is_all = true;
    for (uint32_t i = 0; disk && i < 2; i++) {
        bool has = has_object(disk, dir, removal_objects[i]);
        is_any |= has;
        is_all &= has;
    }
    bool is_there = disk && has_object(disk, dir, MANIFEST_NAME);
    note(&world->sim, "in the dark", is_there, is_any);
    require(&world->sim, !is_there || is_all, "sim.S11: a removal leaves it whole, or gone");
    for (uint32_t i = 0; disk && i < 2 && store_remove(disk, dir) != 0;)
        i++;
    require(&world->sim, disk && !has_object(disk, dir, removal_objects[0]),
            "sim.S11: a removal that was cut short is taken up again");
    storage_close(disk);
}

#endif
