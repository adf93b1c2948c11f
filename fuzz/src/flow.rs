//! A flow between two NICs: requester, LAN, near half, records, far half, LAN, target; the input
//! decides what becomes of each packet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use roce::cm::Terms;
use roce::flow::far::{self, Far, FarConfig};
use roce::flow::near::{self, Deliver, Near, NearConfig};
use roce::wire::{Packet, PathMtu, Psn, Qpn};

use crate::nic::{Mood, Requester, Responder, What};
use crate::{Script, epoch};

const R: Qpn = Qpn::new(0x11);
const T: Qpn = Qpn::new(0x22);

/// The fate of a request on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum As {
    /// The first of a new flow.
    First,
    Next,
    Replay,
    /// None: the requester tries again after RNR.
    Retry,
    /// None: what is outstanding may be nobody's any more, or is somebody's after all.
    Suspend(bool),
}

/// A direction of a LAN.
type Lan = VecDeque<Vec<u8>>;

/// Everything between two queue pairs.
pub struct Flow {
    now: Instant,
    first: Psn,
    requester: Requester,
    responder: Responder,
    near: Near,
    far: Far<Vec<u8>>,
    near_config: NearConfig,
    far_config: FarConfig,
    terms: Option<Terms>,
    is_told: bool,
    /// Numbers of the flows that near and far belong to.
    flows: [u32; 2],
    /// The flow of the near half, and whether the far half was told to leave it alone.
    suspended: (u32, bool),
    /// Requester to near, near to requester, far to target, target to far.
    lans: [Lan; 4],
    requests: VecDeque<(u32, As, Vec<u8>)>,
    responses: VecDeque<(u32, Vec<u8>)>,
    is_cut: bool,
}

impl Flow {
    /// Two queue pairs that begin at some PSN, and a flow with some settings.
    #[must_use]
    pub fn new(script: &mut Script<'_>) -> Self {
        let now = epoch();
        let first = Psn::new(script.pick(&[0, 0, 1000, 0xff_fff0, 0x7f_fff8]));
        let how = script.u8();
        let mtu = (how & 1 == 1).then_some(PathMtu::B256);
        let terms = (how & 2 == 2).then_some(Terms {
            path_mtu: mtu,
            max_reads: 16,
            rnr_retry: 6 + (how >> 7),
            ..Terms::default()
        });
        let near_config = NearConfig {
            mtu,
            hard_limit: script.pick(&[64 << 20, 20_000, 2_000]),
            mid_ack_limit: script.pick(&[64 << 20, 5_000]),
            max_messages: script.pick(&[4096, 3]),
            ..NearConfig::default()
        };
        let far_config = FarConfig {
            mtu,
            window_packets: script.pick(&[64, 1, 4]),
            max_reads: script.pick(&[16, 1]),
            read_piece: script.pick(&[1 << 20, 4096]),
            target_dead_after: Duration::from_secs(3),
            rto_initial: Duration::from_millis(10),
            rto_max: Duration::from_millis(100),
            ..FarConfig::default()
        };
        let mut near = Near::new(near_config.clone(), Arc::default(), now);
        let mut far = Far::new(far_config.clone(), Arc::default(), now);
        let is_told = how & 4 == 4;
        if is_told {
            near.pair(R);
        }
        if let Some(terms) = &terms {
            near.set_terms(terms, (how & 8 == 8).then_some(first));
            far.set_terms(terms);
        }
        Self {
            now,
            first,
            requester: Requester::new(R, T, first),
            responder: Responder::new(T, R, first),
            near,
            far,
            near_config,
            far_config,
            terms,
            is_told,
            flows: [0; 2],
            suspended: (0, false),
            lans: Default::default(),
            requests: VecDeque::new(),
            responses: VecDeque::new(),
            is_cut: false,
        }
    }

    /// Does what the script says next.
    pub fn step(&mut self, script: &mut Script<'_>) {
        match script.u8() % 16 {
            0 | 1 => self.post(script),
            2 | 3 => self.send(1 + usize::from(script.u8() % 16)),
            4 => self.requester.go_back(),
            5 => self.lan(0, script.u16()),
            6 => self.carry_requests(1 + usize::from(script.u8() % 16)),
            7 => self.poll_far(1 + usize::from(script.u8() % 16)),
            8 => self.lan(2, script.u16()),
            9 => self.lan(3, script.u16()),
            10 => self.carry_responses(script.u8()),
            11 => self.lan(1, script.u16()),
            12 => self.wait(script.span()),
            13 => {
                let moods = [
                    Mood::Prompt,
                    Mood::Prompt,
                    Mood::Lazy,
                    Mood::NotReady,
                    Mood::Lazy,
                    Mood::Deaf,
                    Mood::Refusing,
                ];
                self.responder.mood = script.pick(&moods);
                self.responder.tell();
                self.answer();
            }
            14 => self.poll_near(),
            _ => self.tune(script),
        }
        assert!(self.near.outstanding_bytes() <= self.near_config.hard_limit + far::MAX_PACKET);
        assert!(self.far.buffered_bytes() <= self.far_config.max_buffered);
    }

    fn post(&mut self, script: &mut Script<'_>) {
        let what = script.pick(&[What::Write, What::Send, What::Read, What::FetchAdd]);
        let packets = u32::from(script.u8());
        self.requester.post(what, if packets < 0xf0 { packets % 12 } else { packets % 40 });
    }

    fn tune(&mut self, script: &mut Script<'_>) {
        match script.u8() % 8 {
            0 => self.near.set_writable(false, self.now),
            1 => self.near.set_writable(true, self.now),
            2 => self.far.set_room(usize::from(script.u16())),
            3 => self.far.set_room(usize::MAX),
            4 => self.far.handle_dropped(self.now),
            5 if script.u8() == 0 => self.cut(),
            6 => self.near.put_off(),
            7 => self.reconnect(script.u8()),
            _ => {}
        }
    }

    /// Both queue pairs begin anew with the same numbers, mostly at the same PSN. Everything of the
    /// old incarnation was answered, and nothing of it is under way but between the gateways.
    fn reconnect(&mut self, how: u8) {
        let is_over = self.requester.is_idle() && self.requests.is_empty();
        if !is_over || self.requester.is_broken || self.responder.is_broken || self.is_cut {
            return;
        }
        let first = if how & 3 == 3 { Psn::new(u32::from(how) << 8) } else { self.first };
        self.requester = Requester::new(R, T, first);
        let mood = self.responder.mood;
        self.responder = Responder::new(T, R, first);
        self.responder.mood = mood;
        self.lans.iter_mut().for_each(VecDeque::clear);
    }

    /// The session is lost.
    fn cut(&mut self) {
        self.is_cut = true;
        self.near.fail(self.now);
        self.far.abort(self.now);
        self.requests.clear();
        self.responses.clear();
    }

    fn send(&mut self, most: usize) {
        for _ in 0..most {
            let Some(packet) = self.requester.transmit() else { return };
            self.lans[0].push_back(packet);
        }
    }

    /// Decides on up to eight packets of a LAN: deliver, lose, copy, put behind the others.
    fn lan(&mut self, which: usize, fates: u16) {
        for at in 0..8.min(self.lans[which].len()) {
            let Some(packet) = self.lans[which].pop_front() else { return };
            match fates >> (2 * at) & 3 {
                0 => self.deliver(which, &packet),
                1 => {}
                2 => {
                    self.deliver(which, &packet);
                    self.deliver(which, &packet);
                }
                _ => self.lans[which].push_back(packet),
            }
        }
    }

    fn deliver(&mut self, which: usize, bytes: &[u8]) {
        let packet = Packet::parse(bytes).expect("flows emit packets");
        match which {
            0 => self.request(&packet),
            1 => self.requester.handle(&packet, &self.responder),
            2 => {
                self.responder.handle(&packet, &self.requester);
                self.answer();
            }
            _ => self.respond(&packet),
        }
    }

    fn answer(&mut self) {
        self.lans[3].append(&mut self.responder.out);
    }

    /// A packet from the requester comes to the near half.
    fn request(&mut self, packet: &Packet<'_>) {
        let is_doubted = self.near.doubts(packet, self.now) && !self.is_cut;
        if is_doubted {
            self.near = self.near.anew(self.near_config.clone(), packet, self.now);
            self.flows[0] += 1;
            if self.is_told {
                self.near.pair(R);
            }
            if let Some(terms) = &self.terms {
                self.near.set_terms(terms, None);
            }
        }
        let how = match self.near.handle_request(packet, self.now) {
            near::Verdict::Forward if is_doubted => As::First,
            near::Verdict::Forward => As::Next,
            near::Verdict::Replay => As::Replay,
            near::Verdict::Drop(_) => return,
        };
        self.requests.push_back((self.flows[0], how, packet.bytes.to_vec()));
    }

    fn carry_requests(&mut self, most: usize) {
        for _ in 0..most {
            let Some((flow, how, bytes)) = self.requests.pop_front() else { return };
            match how {
                As::First => {
                    self.flows[1] = flow;
                    // What the near half knows by now the far half must not contradict on a hint.
                    let config = FarConfig { mtu: None, ..self.far_config.clone() };
                    self.far = self.far.anew(config, self.now);
                    if let Some(terms) = &self.terms {
                        self.far.set_terms(terms);
                    }
                }
                As::Next => {}
                As::Replay => {
                    self.far.handle_replay(bytes, self.now);
                    continue;
                }
                As::Retry => {
                    self.far.retry();
                    continue;
                }
                As::Suspend(is_suspended) => {
                    self.far.suspend(is_suspended);
                    continue;
                }
            }
            match self.far.handle_request(bytes, self.now) {
                Ok(()) | Err(far::Refused::Dead) => {}
                Err(refused) => panic!("far refused: {refused}"),
            }
        }
    }

    fn poll_far(&mut self, most: usize) {
        let mut out = [0; far::MAX_PACKET];
        for _ in 0..most {
            self.relay();
            let Some(len) = self.far.poll_transmit(self.now, &mut out) else { return };
            self.lans[2].push_back(out[..len].to_vec());
        }
    }

    fn respond(&mut self, packet: &Packet<'_>) {
        if let far::Verdict::Relay(passed) = self.far.handle_response(packet, self.now) {
            self.responses.push_back((self.flows[1], passed.parts(packet.bytes).concat()));
        }
        self.relay();
    }

    fn relay(&mut self) {
        while let Some(reply) = self.far.poll_response() {
            self.responses.push_back((self.flows[1], reply.to_vec()));
        }
    }

    /// Hands records to the near half: the first ones, or one that may overtake.
    fn carry_responses(&mut self, how: u8) {
        if how & 1 == 1 {
            let (near, current) = (&self.near, self.flows[0]);
            let may = |(flow, bytes): &(u32, Vec<u8>)| {
                *flow == current && near.may_overtake(&Packet::parse(bytes).expect("flows emit packets"))
            };
            if let Some(at) = self.responses.iter().rposition(may)
                && let Some((_, bytes)) = self.responses.remove(at)
            {
                self.respond_near(&bytes);
            }
            return;
        }
        for _ in 0..=how >> 4 {
            let Some((flow, bytes)) = self.responses.pop_front() else { return };
            if flow == self.flows[0] {
                self.respond_near(&bytes);
            }
        }
    }

    fn respond_near(&mut self, bytes: &[u8]) {
        let packet = Packet::parse(bytes).expect("flows emit packets");
        if !self.is_told && packet.bth.dest_qp.get() != 0 {
            self.is_told = true;
            self.near.pair(packet.bth.dest_qp);
        }
        if let Deliver::Emit(passed) = self.near.handle_response(&packet, self.now) {
            self.lans[1].push_back(passed.parts(bytes).concat());
        }
    }

    fn poll_near(&mut self) {
        while let Some(reply) = self.near.poll_transmit(self.now) {
            self.lans[1].push_back(reply.to_vec());
        }
        if self.near.wants_retry() {
            self.near.note_retried();
            self.requests.push_back((self.flows[0], As::Retry, Vec::new()));
        }
        let is_suspended = self.near.is_contradicted();
        if self.suspended != (self.flows[0], is_suspended) {
            self.suspended = (self.flows[0], is_suspended);
            self.requests.push_back((self.flows[0], As::Suspend(is_suspended), Vec::new()));
        }
    }

    fn wait(&mut self, span: Duration) {
        self.now += span;
        self.near.handle_timeout(self.now);
        self.far.handle_timeout(self.now);
        self.poll_near();
        self.relay();
    }

    /// Nothing is lost any more and everybody answers: all completes, or the requester sees an
    /// error.
    ///
    /// # Panics
    /// If it does not.
    pub fn finish(mut self) {
        if self.responder.mood != Mood::Refusing {
            self.responder.mood = Mood::Prompt;
        }
        self.near.set_writable(true, self.now);
        self.far.set_room(usize::MAX);
        for round in 0..4000_u32 {
            if self.requester.is_idle() || self.requester.is_broken {
                break;
            }
            // Its timeout is far above what the flow needs.
            if round % 100 == 99 {
                self.requester.go_back();
            }
            self.exchange();
            self.wait(Duration::from_millis(if round > 400 { 20 } else { 2 }));
        }
        // Whom nobody has named cannot be told either, and a flow that is dead is its owner's to
        // forget: the requester meets silence, and its NIC gives up.
        let is_left = self.near.is_dead() || self.near.is_failed() && !self.is_told;
        let is_over = self.requester.is_idle() || self.requester.is_broken || is_left;
        assert!(is_over, "hangs: {:?}\n{:?}\n{:?}", self.requester, self.responder, self.near.stats());
        assert!(self.requester.values.iter().copied().eq(0..self.requester.values.len() as u64));
    }

    fn exchange(&mut self) {
        self.send(200);
        for which in [0, 2, 3, 1] {
            match which {
                2 => {
                    self.carry_requests(usize::MAX);
                    self.poll_far(200);
                }
                1 => {
                    self.carry_responses(0xf0);
                    self.poll_near();
                }
                _ => {}
            }
            while let Some(packet) = self.lans[which].pop_front() {
                self.deliver(which, &packet);
            }
        }
    }
}
