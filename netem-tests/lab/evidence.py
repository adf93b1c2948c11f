"""Which queue pairs were partners in which incarnation: what the lab's scenarios write of it, and what judge.py reads.

The file `evidence` has a line for each of these. Times are the lab machine's, in seconds with nine decimals; hosts are 0 and 1; first
PSNs are those of the end's own requests and of its partner's, or `-`:

  host HOST ADDRESS...
  limit PACKETS                  a capture with as many is cut short
  completion local               WRITEs and SENDs may complete before their targets have them
  connect TIME INCARNATION HOST QPN OTHER_HOST OTHER_QPN PSN OTHER_PSN    just before the queue pair is connected
  reset TIME HOST QPN            just after it was reset
  done TIME HOST QPN COUNT       so many of its work requests have succeeded since it was connected
  end TIME                       nothing after it is judged

The file `polls` has what `rdma resource show qp` printed, again and again, each time between `poll TIME` and `polled TIME`.
It counts only where `evidence` names no connection: it cannot tell two incarnations apart between two polls.
"""
import collections
import ipaddress
import time

Line = collections.namedtuple("Line", "time kind name end ends psns place count reason", defaults=(None,) * 7)
CONNECTED = {"RTR", "RTS", "SQD", "SQE", "ERR"}
PSNS = 1 << 24


class Unclear(Exception):
    """Evidence that cannot be understood."""


class Run:
    """The evidence of one run."""

    def __init__(self):
        self.lines, self.hosts = [], {}
        self.end, self.limit, self.local = None, None, False


class Record:
    """Written by a scenario as it goes."""

    def __init__(self, path):
        self.file = open(path, "a", encoding="ascii", buffering=1 << 16)

    def _line(self, kind, *words):
        print(kind, seconds(time.time_ns()), *words, file=self.file)

    def connect(self, name, own, other, psns):
        self._line("connect", name, *own, *other, *psns)

    def reset(self, own):
        self._line("reset", *own)

    def done(self, own, count):
        self._line("done", *own, count)

    def close(self):
        self.file.close()


def seconds(nanoseconds):
    return f"{nanoseconds // 10**9}.{nanoseconds % 10**9:09}"


def nanoseconds(text):
    whole, _, fraction = text.partition(".")
    return int(whole) * 10**9 + int(fraction.ljust(9, "0")[:9] or 0)


def read(files):
    """The evidence among a run's files."""
    run = parse(files["evidence"].decode())
    if not any(line.kind == "connect" for line in run.lines) and "polls" in files:
        run.lines = connections(list(observations(files["polls"].decode())))
    return run


def parse(text):
    """The run that the file `evidence` tells of."""
    run = Run()
    for line in text.splitlines():
        kind, *words = line.split() or [""]
        try:
            if kind == "host":
                run.hosts.update({ipaddress.ip_address(word).packed: int(words[0]) for word in words[1:]})
            elif kind == "limit":
                run.limit = int(words[0])
            elif kind == "completion":
                run.local = words[0] == "local"
            elif kind == "end":
                run.end = nanoseconds(words[0])
            elif kind == "connect":
                run.lines.append(connect(words))
            elif kind == "reset":
                run.lines.append(Line(nanoseconds(words[0]), "reset", place=(int(words[1]), int(words[2]))))
            elif kind == "done":
                run.lines.append(Line(nanoseconds(words[0]), "done", place=(int(words[1]), int(words[2])), count=int(words[3])))
            elif kind:
                raise Unclear(f"evidence: no such line: {line}")
        except (ValueError, IndexError) as error:
            raise Unclear(f"evidence: {line}") from error
    return run


def connect(words):
    own, other = (int(words[2]), int(words[3])), (int(words[4]), int(words[5]))
    psns = [None if word == "-" else int(word) for word in words[6:8]]
    if own > other:
        psns.reverse()
    ends = tuple(sorted((own, other)))
    return Line(nanoseconds(words[0]), "connect", name=words[1], end=ends.index(own), ends=ends, psns=psns)


Observation = collections.namedtuple("Observation", "before after partners")


def observations(text):
    """Each poll: when it began and ended, and the partner and expected PSN of each connected RC queue pair."""
    before, partners = None, {}
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["poll"]:
            before, partners = nanoseconds(words[1]), {}
        elif words[:1] == ["polled"] and before is not None:
            yield Observation(before, nanoseconds(words[1]), partners)
            before = None
        elif words[:1] == ["link"]:
            values = dict(zip(words[2::2], words[3::2]))
            if values.get("type") == "RC" and values.get("state") in CONNECTED and values.get("rqpn", "0") != "0":
                # rxe0 is host 0's device, rxe1 host 1's.
                host = int(words[1].partition("/")[0][-1])
                partners[(host, int(values["lqpn"]))] = (int(values["rqpn"]), int(values.get("rq-psn", "0")))


class Stay:
    """A queue pair that was seen with the same partner in so many polls."""

    def __init__(self, place, partner, first):
        self.place, self.partner, self.first, self.last = place, partner, first, first
        self.psn = None
        self.begin = self.end = self.doubt = self.name = None


def stays(polls):
    """What each queue pair was seen as, with the times between which it may have been that."""
    open_stays, found = {}, []
    for index, poll in enumerate(polls):
        for place in set(open_stays) - set(poll.partners):
            open_stays.pop(place).end = poll.after
        for place, (partner, psn) in poll.partners.items():
            stay = open_stays.get(place)
            # Whose expected PSN goes back was connected anew.
            if stay and (stay.partner != partner or (psn - stay.psn) % PSNS >= PSNS // 2):
                stay.end = polls[index - 1].before
                open_stays[place] = Stay(place, partner, index)
                open_stays[place].begin, open_stays[place].doubt = poll.after, "connected anew between two polls"
                found.append(open_stays[place])
            elif not stay:
                open_stays[place] = Stay(place, partner, index)
                open_stays[place].begin = polls[max(index - 1, 0)].before
                if index == 0:
                    open_stays[place].doubt = "connected before the capture began"
                found.append(open_stays[place])
            open_stays[place].psn, open_stays[place].last = psn, index
    return found


def connections(polls):
    """Lines of evidence, of what was polled."""
    found = stays(polls)
    for number, stay in enumerate(found):
        host, qpn = stay.place
        match = [
            other for other in found
            if other.place == (1 - host, stay.partner) and other.partner == qpn
            and other.first <= stay.last + 1 and stay.first <= other.last + 1
        ]  # fmt: skip
        if len(match) != 1:
            stay.doubt = stay.doubt or "one end alone was polled" if not match else "its partner was connected anew"
        stay.name = stay.name or (match[0].name if len(match) == 1 else None) or f"polled-{number}"
        if len(match) == 1:
            match[0].name = stay.name
    lines = []
    for stay in found:
        ends = tuple(sorted((stay.place, (1 - stay.place[0], stay.partner))))
        lines.append(Line(stay.begin, "connect", name=stay.name, end=ends.index(stay.place), ends=ends, psns=[None, None]))
        if stay.doubt:
            lines.append(Line(stay.begin, "doubt", place=stay.place, reason=stay.doubt))
        if stay.end is not None:
            lines.append(Line(stay.end, "reset", place=stay.place))
    return lines
