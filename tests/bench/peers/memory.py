"""memory.py - what a process and its children keep in memory."""


def memory_of(pid):
    """Bytes of a process and of those it started; of what several map, each has a part."""
    total, waiting = 0, [pid]
    while waiting:
        pid = waiting.pop()
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                total += 1024 * next(int(line.split()[1]) for line in file
                                     if line.startswith("Pss:"))
            with open(f"/proc/{pid}/task/{pid}/children") as file:
                waiting += [int(child) for child in file.read().split()]
        except (OSError, StopIteration):
            pass  # it has ended
    return total
