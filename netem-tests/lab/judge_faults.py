"""`judge.py --self-test`: made-up captures in which something is wrong, each of which the right rule must find, and others in which all is well."""
import struct

import judge
from judge_captures import A1, A2, ACCESS, ACK, ATOMIC_ACK, B1, B2, FETCH_ADD, INVALID, OPERATION, READ, READ_FIRST, READ_LAST, READ_ONLY, RESULT
from judge_captures import RNR_TIMER, SEND_ONLY, SEQUENCE, WRITE_FIRST, WRITE_MIDDLE, WRITE_ONLY, Run, aeth, anew, answer_all, atomic, begun, polled, reth, work

FAULTS = []  # what, rules, where the first false word came from if that can be told, function of a base that returns a Run


def fault(what, *rules, hint=None):
    def add(function):
        FAULTS.append((what, rules, hint, function))
        return function

    return add


def simple(what, rules, *packet):
    """A1 hears something of B1 that B1 did not say."""

    def plant(base):
        run = begun(base)
        run.hears(B1, A1, *packet)
        return run

    FAULTS.append((what, rules.split(), None, plant))


simple("an ACK too far", "ack", 3, ACK, aeth())
simple("an ACK much too far, across an atomic and a READ", "ack", 7, ACK, aeth())
simple("a sequence NAK too far", "nak", 4, ACK, aeth(SEQUENCE))
simple("an access NAK too far", "nak", 4, ACK, aeth(ACCESS))
simple("an operation NAK too far", "nak", 7, ACK, aeth(OPERATION))
simple("an RNR NAK too far", "rnr", 7, ACK, aeth(RNR_TIMER))
simple("a READ response before what precedes it", "answer response", 5, READ_FIRST, aeth(), bytes(256))
simple("an atomic's result before what precedes it", "answer response", 4, ATOMIC_ACK, aeth() + RESULT)


@fault("the ACK of another queue pair's target", "ack", hint="another queue pair")
def _(base):
    run = begun(base)
    run.hears(B2, A2, 2, ACK, aeth())
    return run


@fault("two requesters' ACKs exchanged", "ack")
def _(base):
    run = begun(base)
    run.gives(B1, A1, 3, ACK, aeth())
    run.hears(B2, A2, 3, ACK, aeth())
    return run


@fault("an ACK before its target gave it", "ack", hint="its target, later")
def _(base):
    run = begun(base)
    run.hears(B1, A1, 3, ACK, aeth())
    run.gives(B1, A1, 3, ACK, aeth())
    return run


@fault("the ACK of the incarnation before", "ack", hint="an incarnation before")
def _(base):
    run = begun(base)
    anew(run)
    run.hears(B1, A1, 2, ACK, aeth())
    return run


@fault("an ACK that the target gave after the requester's reset, before its own", "ack")
def _(base):
    run = begun(base)
    run.reset(A1)
    run.connect("three", A1, B1, ends=(0,))
    for packet in work(1):
        run.asks(A1, B1, *packet, arrives=False)
    run.answers(B1, A1, 3, ACK, aeth())
    return run


@fault("the ACK of a target that has another partner now", "ack")
def _(base):
    run = begun(base)
    anew(run, pairs=((A1, B2), (A2, B1)))
    run.gives(B1, A2, 2, ACK, aeth())
    run.hears(B2, A1, 2, ACK, aeth())
    return run


@fault("an ACK that the requester's own NIC gave, as a target", "ack")
def _(base):
    run = begun(base)
    for place in range(4):
        run.asks(B1, A1, place, SEND_ONLY, b"", b"x")
    run.gives(A1, B1, 3, ACK, aeth())
    run.hears(B1, A1, 3, ACK, aeth())
    return run


@fault("an ACK where the target only refused", "ack")
def _(base):
    run = begun(base)
    run.gives(B1, A1, 3, ACK, aeth(RNR_TIMER))
    run.hears(B1, A1, 3, ACK, aeth())
    return run


@fault("an ACK where the target only had a gap", "ack")
def _(base):
    run = begun(base)
    run.gives(B1, A1, 4, ACK, aeth(SEQUENCE))
    run.hears(B1, A1, 4, ACK, aeth())
    return run


@fault("an ACK of requests that never reached their target", "ack", hint="nobody")
def _(base):
    run = Run(base)
    run.connect("one", A1, B1)
    for packet in work(1):
        run.asks(A1, B1, *packet, arrives=False)
    run.hears(B1, A1, 2, ACK, aeth())
    return run


@fault("an ACK too far, of a request lost before the capture and sent again", "ack")
def _(base):
    run = begun(base)
    answer_all(run, B1, A1, 1)
    run.asks(A1, B1, 9, SEND_ONLY, b"", b"b")
    run.asks(A1, B1, 8, SEND_ONLY, b"", b"a")
    run.hears(B1, A1, 8, ACK, aeth())
    return run


@fault("an ACK for a READ of which one response was given", "ack")
def _(base):
    run = begun(base)
    run.answers(B1, A1, 3, ACK, aeth())
    run.answers(B1, A1, 4, ATOMIC_ACK, aeth() + RESULT)
    run.answers(B1, A1, 5, READ_FIRST, aeth(), bytes([6]) * 256)
    run.hears(B1, A1, 6, ACK, aeth())
    return run


@fault("an atomic's result that is stale", "answer")
def _(base):
    run = begun(base)
    answer_all(run, B1, A1, 1, hear=False)
    run.hears(B1, A1, 4, ATOMIC_ACK, aeth() + struct.pack(">Q", 39))
    return run


@fault("the result that a journal kept of the incarnation before", "answer")
def _(base):
    run = begun(base)
    answer_all(run, B1, A1, 1)
    anew(run)
    run.answers(B1, A1, 3, ACK, aeth())
    run.hears(B1, A1, 4, ATOMIC_ACK, aeth() + RESULT)
    return run


@fault("another queue pair's data", "answer")
def _(base):
    run = begun(base)
    answer_all(run, B1, A1, 1, hear=False)
    answer_all(run, B2, A2, 2, hear=False)
    run.hears(B1, A1, 5, READ_FIRST, aeth(), bytes([7]) * 256)
    return run


@fault("a READ's data at the wrong place", "answer")
def _(base):
    run = begun(base)
    answer_all(run, B1, A1, 1, hear=False)
    run.hears(B1, A1, 6, READ_LAST, aeth(), bytes([6]) * 256)
    return run


@fault("a READ's last data before they were given", "answer")
def _(base):
    run = begun(base)
    run.answers(B1, A1, 3, ACK, aeth())
    run.answers(B1, A1, 4, ATOMIC_ACK, aeth() + RESULT)
    run.answers(B1, A1, 5, READ_FIRST, aeth(), bytes([6]) * 256)
    run.hears(B1, A1, 6, READ_LAST, aeth(), bytes([7]) * 256)
    return run


@fault("READ data of the incarnation before", "answer")
def _(base):
    run = begun(base)
    answer_all(run, B1, A1, 1)
    anew(run)
    run.answers(B1, A1, 3, ACK, aeth())
    run.answers(B1, A1, 4, ATOMIC_ACK, aeth() + RESULT)
    run.hears(B1, A1, 5, READ_FIRST, aeth(), bytes([6]) * 256)
    return run


@fault("an old atomic's result, which the target's NIC gave, for a READ", "answer", "sent")
def _(base):
    run = Run(base)
    run.connect("one", A1, B1)
    run.asks(A1, B1, 0, READ, reth(512), arrives=False)
    run.packet(1, 0, B1, 0, FETCH_ADD, atomic(1))
    run.answers(B1, A1, 0, ATOMIC_ACK, aeth() + RESULT)
    return run


@fault("READ data that are shorter than what was given", "answer")
def _(base):
    run = begun(base)
    answer_all(run, B1, A1, 1, hear=False)
    run.hears(B1, A1, 6, READ_LAST, aeth(), bytes([7]) * 255)
    return run


@fault("a completion without an ACK", "done")
def _(base):
    run = begun(base)
    run.done(A1, 1)
    run.done(A1, 2)
    return run


@fault("a completion of what was never sent", "done")
def _(base):
    run = begun(base)
    answer_all(run, B1, A1, 1)
    run.done(A1, 5)
    run.done(A1, 6)
    return run


@fault("a completion in the next incarnation, of what the one before did", "done")
def _(base):
    run = begun(base)
    answer_all(run, B1, A1, 1)
    anew(run)
    run.done(A1, 1)
    return run


@fault("a request that reaches another target", "sent")
def _(base):
    run = begun(base)
    run.gives(B2, A2, 2, ACK, aeth())
    run.packet(1, 0, B2, 3, SEND_ONLY, b"", bytes([1]) * 8)
    return run


@fault("a request of the incarnation before, with other bytes", "sent")
def _(base):
    run = begun(base)
    anew(run, fill=5)
    run.packet(1, 0, B1, 0, WRITE_FIRST, reth(600), bytes([1]) * 256)
    return run


@fault("a request of the incarnation before, behind one of this", "sent")
def _(base):
    run = begun(base)
    run.reset(A1, B1)
    run.connect("three", A1, B1)
    run.asks(A1, B1, *work(5)[0])
    run.packet(0, 0, B1, *work(5)[1])
    run.packet(1, 0, B1, *work(1)[1])
    return run


@fault("an ACK too far, after one of what was never sent", "ack")
def _(base):
    run = begun(base)
    run.hears(B1, A1, 20, ACK, aeth())
    run.hears(B1, A1, 3, ACK, aeth())
    return run


@fault("an ACK too far, where the target's NIC acknowledged what was never sent", "ack")
def _(base):
    run = begun(base)
    run.gives(B1, A1, 20, ACK, aeth())
    run.hears(B1, A1, 3, ACK, aeth())
    return run


@fault("a request before its partner sent any in this incarnation", "sent")
def _(base):
    run = begun(base)
    run.reset(A1, B1)
    run.connect("three", A1, B1)
    run.packet(1, 0, B1, 0, WRITE_FIRST, reth(600), bytes([1]) * 256)
    return run


@fault("a request of nobody, which the target's NIC only lacks others before", "sent")
def _(base):
    run = begun(base)
    run.gives(B1, A1, 3, ACK, aeth())
    run.packet(1, 0, B1, 4, SEND_ONLY, b"", b"z")
    run.gives(B1, A1, 4, ACK, aeth(SEQUENCE))
    return run


@fault("an atomic that adds something else", "sent")
def _(base):
    run = begun(base)
    run.gives(B1, A1, 3, ACK, aeth())
    run.packet(1, 0, B1, 4, FETCH_ADD, atomic(9))
    return run


@fault("a READ of another range", "sent")
def _(base):
    run = begun(base)
    run.gives(B1, A1, 4, ATOMIC_ACK, aeth() + RESULT)
    run.packet(1, 0, B1, 5, READ, reth(512, address=0x1100))
    return run


@fault("several faults at once, each by its rule", "ack", "answer", "done")
def _(base):
    run = begun(base)
    run.hears(B2, A2, 2, ACK, aeth())
    run.done(A1, 2)
    answer_all(run, B1, A1, 1, hear=False)
    run.hears(B1, A1, 4, ATOMIC_ACK, aeth() + bytes(8))
    return run


@fault("with early completions, an atomic that was never answered", "answer", "response")
def _(base):
    run = begun(base)
    run.line("completion local")
    run.hears(B1, A1, 4, ATOMIC_ACK, aeth() + RESULT)
    run.hears(B1, A1, 6, READ_LAST, aeth(), bytes([7]) * 256)
    return run


@fault("an ACK too far, where the partners were polled", "ack")
def _(base):
    run = polled(base)
    run.hears(B1, A1, 3, ACK, aeth())
    return run


@fault("another target's ACK, where the partners were polled", "ack")
def _(base):
    run = polled(base)
    run.hears(B2, A2, 2, ACK, aeth())
    return run


HEALTHY = []  # what, message ends that are checked, function of a base


def healthy(what, checked):
    def add(function):
        HEALTHY.append((what, checked, function))
        return function

    return add


@healthy("everything answered, and done", 5)
def _(base):
    run = begun(base)
    answer_all(run, B1, A1, 1)
    run.done(A1, 5)
    return run


@healthy("IPv6", 5)
def _(base):
    run = begun(base, six=True)
    answer_all(run, B1, A1, 1)
    return run


@healthy("microseconds in the capture", 0)
def _(base):
    run = Run(base)
    run.magic = b"\xd4\xc3\xb2\xa1"
    return run


@healthy("ACKs inside a message, wherever its target is", 1)
def _(base):
    run = begun(base)
    run.hears(B2, A2, 0, ACK, aeth())
    run.hears(B2, A2, 1, ACK, aeth())
    return run


@healthy("an ACK for several messages, of several that were coalesced", 2)
def _(base):
    run = begun(base)
    run.gives(B2, A2, 2, ACK, aeth())
    run.answers(B2, A2, 3, ACK, aeth())
    run.hears(B2, A2, 1, ACK, aeth())
    return drop_first(run)


def drop_first(run):
    """Without A1's ACK, which begun() has."""
    run.frames[0] = [frame for frame in run.frames[0] if frame[1][42] != ACK or int.from_bytes(frame[1][47:50], "big") != A1[1]]
    return run


@healthy("what READ and atomic responses confirm besides, no ACK having come", 4)
def _(base):
    run = drop_first(begun(base))
    run.answers(B1, A1, 4, ATOMIC_ACK, aeth() + RESULT)
    run.answers(B1, A1, 5, READ_FIRST, aeth(), bytes([6]) * 256)
    run.answers(B1, A1, 6, READ_LAST, aeth(), bytes([7]) * 256)
    return run


@healthy("NAKs that say no more than is true", 3)
def _(base):
    run = begun(base)
    run.answers(B1, A1, 3, ACK, aeth(RNR_TIMER))
    run.gives(B1, A1, 3, ACK, aeth())
    run.hears(B1, A1, 4, ACK, aeth(SEQUENCE))
    run.answers(B1, A1, 4, ATOMIC_ACK, aeth() + RESULT)
    run.hears(B1, A1, 5, ACK, aeth(ACCESS))
    return run


@healthy("the same numbers and PSNs again, with the same bytes", 10)
def _(base):
    run = begun(base)
    answer_all(run, B1, A1, 1)
    run.done(A1, 5)
    anew(run)
    run.answers(B1, A1, 2, ACK, aeth())
    answer_all(run, B1, A1, 1)
    run.done(A1, 5)
    return run


@healthy("a target that is connected late", 6)
def _(base):
    run = begun(base)
    answer_all(run, B1, A1, 1)
    run.reset(A1, B1)
    run.connect("three", A1, B1, ends=(0,))
    # They reach a NIC that does not hear them yet.
    for packet in work(1, to_end=False):
        run.asks(A1, B1, *packet)
    run.connect("three", A1, B1, ends=(1,))
    for packet in work(1, to_end=False):
        run.asks(A1, B1, *packet)
    run.answers(B1, A1, 2, ACK, aeth())
    return run


@healthy("requests and ACKs that come again and out of order, and noise", 5)
def _(base):
    run = begun(base)
    for packet in reversed(work(1)):
        run.asks(A1, B1, *packet, noise=1)
    # Of what was never sent: no NIC takes it.
    run.hears(B1, A1, 8, ACK, aeth())
    answer_all(run, B1, A1, 1)
    answer_all(run, B1, A1, 1, give=False)
    run.hears(B1, A1, 0, ACK, aeth(), noise=1)
    return run


@healthy("requests with other bytes that the target's NIC does not execute: of what it has had, and behind an RNR NAK", 2)
def _(base):
    run = begun(base)
    run.packet(1, 0, B1, *work(9)[1])
    run.gives(B1, A1, 3, ACK, aeth(RNR_TIMER))
    run.packet(1, 0, B1, *work(9)[4])
    run.asks(A1, B1, *work(1)[3])
    run.answers(B1, A1, 3, ACK, aeth())
    return run


@healthy("a request of nobody that the target's NIC refuses: its gateway puts it in error", 5)
def _(base):
    run = begun(base)
    answer_all(run, B1, A1, 1)
    run.packet(1, 0, B1, 8, WRITE_MIDDLE, b"", bytes(256))
    run.gives(B1, A1, 8, ACK, aeth(INVALID))
    return run


@healthy("a queue pair that is connected anew, its reset untold", 2)
def _(base):
    run = begun(base)
    run.connect("three", A1, B1)
    for packet in work(1, to_end=False):
        run.asks(A1, B1, *packet)
    run.answers(B1, A1, 2, ACK, aeth())
    return run


@healthy("what comes to a queue pair after its reset, or from nobody's partner", 1)
def _(base):
    run = begun(base)
    run.reset(A1, B1)
    run.hears(B1, A1, 7, ACK, aeth())
    run.packet(0, 0, A2, 7, ACK, aeth())
    return run


@healthy("a READ that is resumed at its second packet", 5)
def _(base):
    run = begun(base)
    run.gives(B1, A1, 4, ATOMIC_ACK, aeth() + RESULT)
    run.packet(1, 0, B1, 6, READ, reth(256, address=0x1100))
    run.gives(B1, A1, 5, READ_FIRST, aeth(), bytes([6]) * 256)
    run.packet(1, 0, B1, 6, READ, reth(256, address=0x1100))
    run.gives(B1, A1, 6, READ_ONLY, aeth(), bytes([7]) * 256)
    run.hears(B1, A1, 5, READ_FIRST, aeth(), bytes([6]) * 256)
    run.hears(B1, A1, 6, READ_LAST, aeth(), bytes([7]) * 256)
    run.answers(B1, A1, 7, ACK, aeth())
    return run


@healthy("requests lost before the capture, and sent again", 7)
def _(base):
    run = begun(base)
    run.asks(A1, B1, 10, SEND_ONLY, b"", b"c")
    answer_all(run, B1, A1, 1)
    run.asks(A1, B1, 9, SEND_ONLY, b"", b"b")
    run.answers(B1, A1, 8, ACK, aeth(SEQUENCE))
    run.asks(A1, B1, 8, WRITE_FIRST, reth(300), b"a" * 256)
    run.answers(B1, A1, 9, ACK, aeth())
    run.answers(B1, A1, 10, ACK, aeth())
    return run


@healthy("a comparand that a FetchAdd does not use", 3)
def _(base):
    run = begun(base)
    run.gives(B1, A1, 3, ACK, aeth())
    run.packet(1, 0, B1, 4, FETCH_ADD, atomic(1, compare=99))
    run.answers(B1, A1, 4, ATOMIC_ACK, aeth() + RESULT)
    return run


@healthy("both ends requesters, over PSNs that wrap", 72)
def _(base):
    run = Run(base)
    run.connect("one", A1, B1, psns=(base, (base + 5) % 2**24), ends=(1, 0))
    for place in range(36):
        run.asks(A1, B1, place, WRITE_ONLY, reth(9), b"y" * 9)
        run.asks(B1, A1, place + 5, SEND_ONLY, b"", b"x")
        run.answers(B1, A1, place, ACK, aeth())
        run.answers(A1, B1, place + 5, ACK, aeth())
    return run


@healthy("partners that were polled", 5)
def _(base):
    run = polled(base)
    answer_all(run, B1, A1, 1)
    return run


@healthy("early completions, and a READ that is not", 2)
def _(base):
    run = begun(base)
    run.line("completion local")
    run.hears(B2, A2, 3, ACK, aeth())
    answer_all(run, B1, A1, 1)
    return run


UNJUDGED = []  # what, part of the reason, function


def unjudged(what, reason):
    def add(function):
        UNJUDGED.append((what, reason, function))
        return function

    return add


@unjudged("packets that the kernel dropped", "dropped by kernel")
def _():
    run = begun()
    run.dropped = 1
    return run.files()


@unjudged("packets that were left unread", "left unread")
def _():
    run = begun()
    run.received = 10**6
    return run.files()


@unjudged("a capture at its limit", "more than 1000 packets")
def _():
    run = begun()
    run.captured = run.received = 1000
    return run.files()


@unjudged("a capture that is cut short", "cut short")
def _():
    files = begun().files()
    files["v1.pcap"] = files["v1.pcap"][:-3]
    return files


@unjudged("a capture that was killed", "did not end by itself")
def _():
    files = begun().files()
    files["v0.log"] = b"listening on v0\n"
    return files


@unjudged("no capture", "no v1.pcap")
def _():
    files = begun().files()
    del files["v1.pcap"]
    return files


@unjudged("a partner that nothing tells", "nothing tells the partner")
def _():
    run = begun()
    run.asks((0, 99), (1, 98), 0, SEND_ONLY, b"", b"z")
    return run.files()


@unjudged("two queue pairs with the same partner", "1 x two queue pairs have the same partner")
def _():
    run = begun()
    run.connect("three", A2, B1, ends=(0,))
    run.asks(A1, B1, 8, SEND_ONLY, b"", b"z")
    run.hears(B1, A1, 3, ACK, aeth())
    run.hears(B1, A1, 3, ACK, aeth())
    return run.files()


@unjudged("requests that the capture lacks", "2 x requests that were confirmed are missing in the capture")
def _():
    run = begun()
    run.asks(A1, B1, 10, SEND_ONLY, b"", b"z")
    run.answers(B1, A1, 10, ACK, aeth())
    run.hears(B1, A1, 10, ACK, aeth())
    return run.files()


@unjudged("a partner that changed between two polls", "one end alone was polled")
def _():
    run = polled(0)
    run.polls = [line for line in run.polls if not line.startswith("link rxe1")]
    run.hears(B1, A1, 3, ACK, aeth())
    return run.files()


def found(files):
    """The rules that were broken, where the first false word came from, the message ends checked, and why some could not be."""
    try:
        packets, run = judge.read(files)
    except judge.NotJudged as reason:
        return [], None, 0, str(reason)
    result = judge.judge(packets, run)
    hint = result.hint(result.wrong[0]) if result.wrong else None
    reasons = ", ".join(f"{count} x {reason}" for reason, count in result.unjudged.items())
    return sorted({wrong.rule for wrong in result.wrong}), hint, result.ends_checked(), reasons


def failures():
    """What was not found as it should be."""
    for base in (0, 0xFFFFFD):
        for what, rules, hint, plant in FAULTS:
            rules_found, hint_found, _, _ = found(plant(base).files())
            if rules_found != sorted(rules) or hint not in (None, hint_found):
                yield f"from PSN {base:#x}, {what}: {rules_found or 'nothing'} found, from {hint_found}; it is {', '.join(rules)}"
        for what, checked, make in HEALTHY:
            rules_found, _, count, reason = found(make(base).files())
            if rules_found or count != checked or reason and "early" not in reason:
                yield f"from PSN {base:#x}, {what}: {rules_found}, {count} message ends checked instead of {checked}; {reason}"
    for what, reason, make in UNJUDGED:
        rules_found, _, _, given = found(make())
        if rules_found or reason not in given:
            yield f"{what}: {rules_found}, not judged because: {given or 'it was'}"


def main():
    """Prints what was not found as it should be; the exit status."""
    wrong = list(failures())
    for failure in wrong:
        print(f"FAILED: {failure}")
    print(f"{len(FAULTS)} kinds of fault, {len(HEALTHY)} of health, {len(UNJUDGED)} that cannot be judged; {len(wrong)} not found as they should be")
    return 1 if wrong else 0
