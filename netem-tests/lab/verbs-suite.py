#!/usr/bin/env python3
"""verbs-suite.py [CASE...] - the test suite of rdma-core's pyverbs, as Debian's python3-pyverbs brings it (/usr/share/doc/rdma-core/tests), between both sites.

The suite has client and server on one device, which speaks to its own address. Here whatever resources a case makes first are on rxe0, what it makes next on
rxe1, each with the other's GID for destination; rdma_cm's passive side listens at 10.0.1.1 and the active side comes from 10.0.0.1. Nothing else of it is changed, but that with LAB_ITERS a case
goes to and fro so many times at most, of a hundred or less.

Each case runs in a process of its own, LAB_CASE seconds (default 60) at most. Writes /run/cases.tsv: case, outcome ("0": passed), and how often it was tried (0: does not apply). Prints
as it goes, the seed first: LAB_SEED=... has the cases choose the same again. Exit status 0: it got to the end.
"""
import gzip
import importlib
import os
import random
import select
import shutil
import signal
import sys
import time
import traceback
import types
import unittest

SUITE = "/usr/share/doc/rdma-core/tests"
HERE = "/run/verbs-suite"
DEVICES = ("rxe0", "rxe1")
ADDRESSES = ("10.0.0.1", "10.0.1.1")
INTERFACE = "v0"
GID = 1  # the IPv4 address
ITERATIONS = int(os.environ.get("LAB_ITERS", "100"))
LIMIT = float(os.environ.get("LAB_CASE", "60"))
# What does not leave the host however well it goes.
MULTICAST = "multicast: plain routing takes packets to a group to no other network"


def unpack():
    """The suite's folder, unpacked."""
    folder = os.path.join(HERE, "tests")
    shutil.rmtree(HERE, ignore_errors=True)
    os.makedirs(folder)
    for name in sorted(os.listdir(SUITE)):
        source = os.path.join(SUITE, name)
        opened = gzip.open(source) if name.endswith(".gz") else open(source, "rb")
        with opened as text, open(os.path.join(folder, name.removesuffix(".gz")), "wb") as copy:
            shutil.copyfileobj(text, copy)
    return folder


def route_between_devices():
    """Whoever would speak to its own address speaks to the other device's. To be called once the suite is loaded."""
    import pyverbs.addr
    from pyverbs.device import Context

    gids = []
    for device in DEVICES:
        with Context(name=device) as context:
            gids.append(context.query_gid(1, GID).gid)
    original = pyverbs.addr.GlobalRoute

    def routed(dgid=None, **others):
        if dgid is not None and dgid.gid in gids:
            dgid = pyverbs.addr.GID(gids[1 - gids.index(dgid.gid)])
            others.setdefault("hop_limit", 64)
        return original(dgid=dgid, **others)

    for name, module in list(sys.modules.items()):
        if name.startswith("tests.") and hasattr(module, "GlobalRoute"):
            module.GlobalRoute = routed


def place_on_both_sites():
    """Resources on one device after the other, rdma_cm's sides at the two addresses. To be called before the suite's cases are loaded."""
    import pyverbs.cm_enums as ce
    from tests import base, base_rdmacm, utils

    plain = base.BaseResources.__init__
    made = []

    def placed(self, dev_name, ib_port, gid_index):
        # What is imported from another process's device belongs to that one.
        if not hasattr(self, "cmd_fd"):
            made.append(self)
        plain(self, DEVICES[(len(made) - 1) % 2], ib_port, gid_index)

    base.BaseResources.__init__ = placed

    def address(self, dev, port, index):
        mac = open(f"/sys/class/net/{INTERFACE}/address", encoding="ascii").read().strip()
        self.args.append([dev, port, index, ADDRESSES[0], mac])

    base.RDMATestCase._get_ip_mac = address
    information = base_rdmacm.AddrInfo

    def two_sites(src=None, dst=None, flags=0, **others):
        if flags & ce.RAI_PASSIVE:
            src = ADDRESSES[1]
        elif dst == src:
            dst = ADDRESSES[1]
        return information(src=src, dst=dst, flags=flags, **others)

    base_rdmacm.AddrInfo = two_sites
    for name in ("traffic", "rdma_traffic", "atomic_traffic"):
        setattr(utils, name, fewer(getattr(utils, name)))


def fewer(function):
    return lambda client, server, iters, *others, **named: function(client, server, min(iters, ITERATIONS), *others, **named)


def cases(folder):
    """Every case of the suite."""
    sys.path[:0] = [HERE, folder]
    # The package's own __init__ loads every case at once, before anything could be put in its place.
    package = types.ModuleType("tests")
    package.__path__ = [folder]
    sys.modules["tests"] = package
    from args_parser import parser

    arguments, sys.argv = sys.argv, [sys.argv[0], "--dev", DEVICES[0], "--gid", str(GID)]
    parser.parse_args()
    sys.argv = arguments
    place_on_both_sites()
    found = []
    for name in sorted(os.listdir(folder)):
        if name.startswith("test_") and name.endswith(".py"):
            for suite in unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module("tests." + name[:-3])):
                found += list(suite)
    route_between_devices()
    return found


def outcome(case, result):
    """What the suite says of a case that has run: outcome, tries."""
    if result.skipped:
        return " ".join(result.skipped[0][1].split()), 0
    for kind in (result.errors, result.failures):
        if kind:
            return "failed: " + " ".join(kind[0][1].strip().splitlines()[-1].split())[:160], 1
    if result.unexpectedSuccesses:
        return "failed: unexpected success", 1
    return "0", 1


def packets():
    """Packets that either device has sent."""
    total = 0
    for device in DEVICES:
        with open(f"/sys/class/infiniband/{device}/ports/1/hw_counters/sent_pkts", encoding="ascii") as counter:
            total += int(counter.read())
    return total


def in_child(case, seed, pipe):
    os.setpgid(0, 0)
    random.seed(f"{seed} {case.id()}")
    result = unittest.TestResult()
    try:
        case.run(result)
        found = outcome(case, result)
        for kind in (result.errors, result.failures):
            for _, text in kind:
                print(text, flush=True)
    except BaseException:  # whatever it is, it is the case's outcome
        traceback.print_exc()
        found = ("failed: the case's process ended", 1)
    os.write(pipe, "\t".join(map(str, found)).encode())
    sys.stdout.flush()
    os._exit(0)


def run(case, seed):
    """A case, in a process of its own: outcome, tries."""
    if "multicast" in case.id():
        return MULTICAST, 0
    reading, writing = os.pipe()
    sys.stdout.flush()
    before = packets()
    child = os.fork()
    if child == 0:
        os.close(reading)
        in_child(case, seed, writing)
    os.close(writing)
    ready, _, _ = select.select([reading], [], [], LIMIT)
    text = os.read(reading, 4096).decode() if ready else ""
    os.close(reading)
    try:
        if not text:
            os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    os.waitpid(child, 0)
    if not text:
        return ("failed: ended without a word" if ready else f"failed: no end within {LIMIT:.0f} s"), 1
    found, tries = text.split("\t")
    return ("ok, sends nothing" if found == "0" and packets() == before else found), int(tries)


def main():
    seed = os.environ.get("LAB_SEED") or str(random.randrange(1 << 32))
    print(f"LAB_SEED={seed}", flush=True)
    wanted = sys.argv[1:]
    with open("/run/cases.tsv", "w", encoding="utf-8") as results:
        for case in cases(unpack()):
            name = case.id().removeprefix("tests.")
            if wanted and name not in wanted:
                continue
            began = time.monotonic()
            found, tries = run(case, seed)
            print(f"{time.monotonic() - began:6.1f} s  {name}: {found}", flush=True)
            print(name, found, tries, sep="\t", file=results, flush=True)


main()
