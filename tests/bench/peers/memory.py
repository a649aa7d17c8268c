"""memory.py - the memory of a process and its children."""


def memory_of(pid):
    """Bytes of a process and of its children; shared mappings count in parts."""
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
