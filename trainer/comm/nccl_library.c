/* nccl_library.c - passes the NCCL calls of nccl.c to libnccl.so.2, which the first call loads. So
 * the trainer starts on machines without it. There each call returns a system error, and its text
 * gives the reason. Tests link tests/simgpu/nccl.c instead. */
#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void *library;
static char why[256];

static void load(void)
{
    library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        snprintf(why, sizeof(why), "%s", dlerror());
}

/* NULL: `why` has the reason. */
static void *find(const char *name)
{
    pthread_once(&once, load);
    void *found = library != NULL ? dlsym(library, name) : NULL;
    if (library != NULL && found == NULL)
        snprintf(why, sizeof(why), "libnccl.so.2 has no %s", name);
    return found;
}

#define HAND_ON(name, parameters, arguments)                    \
    ncclResult_t name parameters                                \
    {                                                           \
        static ncclResult_t(*volatile call) parameters;         \
        if (call == NULL)                                       \
            call = (ncclResult_t(*) parameters)find(#name);     \
        return call != NULL ? call arguments : ncclSystemError; \
    }
HAND_ON(ncclGetUniqueId, (ncclUniqueId * id), (id))
HAND_ON(ncclCommInitRankConfig,
        (ncclComm_t * comm, int size, ncclUniqueId id, int rank, ncclConfig_t *config),
        (comm, size, id, rank, config))
HAND_ON(ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t *error), (comm, error))
HAND_ON(ncclCommAbort, (ncclComm_t comm), (comm))
HAND_ON(ncclCommDestroy, (ncclComm_t comm), (comm))
HAND_ON(ncclGroupStart, (void), ())
HAND_ON(ncclGroupEnd, (void), ())
HAND_ON(ncclSend,
        (const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
         cudaStream_t stream),
        (from, count, type, peer, comm, stream))
HAND_ON(ncclRecv,
        (void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
         cudaStream_t stream),
        (to, count, type, peer, comm, stream))
HAND_ON(ncclAllGather,
        (const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
         cudaStream_t stream),
        (from, to, count, type, comm, stream))
HAND_ON(ncclAllReduce,
        (const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
         ncclComm_t comm, cudaStream_t stream),
        (from, to, count, type, op, comm, stream))
HAND_ON(ncclReduceScatter,
        (const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
         ncclComm_t comm, cudaStream_t stream),
        (from, to, count, type, op, comm, stream))
HAND_ON(ncclReduce,
        (const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
         ncclComm_t comm, cudaStream_t stream),
        (from, to, count, type, op, root, comm, stream))

const char *ncclGetErrorString(ncclResult_t result)
{
    const char *(*call)(ncclResult_t) = (const char *(*)(ncclResult_t))find(__func__);
    return call != NULL ? call(result) : "the library could not be loaded";
}
const char *ncclGetLastError(ncclComm_t comm)
{
    const char *(*call)(ncclComm_t) = (const char *(*)(ncclComm_t))find(__func__);
    return call != NULL ? call(comm) : why;
}
