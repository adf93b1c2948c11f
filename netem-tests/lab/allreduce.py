#!/usr/bin/env python3
"""allreduce.py FOLDER - a rank of Open MPI's allreduce of 16,384 numbers, again and again for as long as FOLDER/go exists, and its longest stalls.

FOLDER/deed says what befalls it now. When it says something else, rank 0 adds a line to FOLDER/mpi.tsv: the deed, the longest time of an allreduce in it, and how
many there were. Each rank checks every sum. Exit status 0: all sums were right.
"""
import os
import sys
import time
from array import array

from mpi4py import MPI

LENGTH = 1 << 14


def deed(folder):
    with open(os.path.join(folder, "deed"), encoding="utf-8") as file:
        return file.read().strip()


def main():
    folder, world = sys.argv[1], MPI.COMM_WORLD
    rank, ranks = world.Get_rank(), world.Get_size()
    table = open(os.path.join(folder, "mpi.tsv"), "w", encoding="utf-8") if rank == 0 else None
    current, longest, count, wrong, number = deed(folder), 0.0, 0, 0, 0
    while True:
        # The last word of a message, so that all ranks end after the same one.
        goes_on = int(os.path.exists(os.path.join(folder, "go")))
        numbers, sums = array("q", [number + rank] * LENGTH), array("q", [0] * LENGTH)
        numbers[-1] = goes_on
        began = time.monotonic()
        world.Allreduce([numbers, MPI.INT64_T], [sums, MPI.INT64_T])
        longest, count = max(longest, time.monotonic() - began), count + 1
        expected = ranks * number + ranks * (ranks - 1) // 2
        wrong += sums[:-1] != array("q", [expected] * (LENGTH - 1))
        said = deed(folder)
        if table and (said != current or sums[-1] < ranks):
            print(current, f"{longest:.2f}", count, sep="\t", file=table, flush=True)
            current, longest, count = said, 0.0, 0
        if sums[-1] < ranks:
            break
        number += 1
    if rank == 0:
        print(f"mpi: {number + 1} allreduces, {wrong} wrong")
    sys.exit(wrong != 0)


main()
