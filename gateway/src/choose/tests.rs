//! Links that change, in virtual time.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use reliability::estimator::{Range, Rtt};
use reliability::model::Candidate;
use reliability::selector::Reason;

use super::*;

const STEP: Duration = Duration::from_millis(500);
const POLICY: &str = "[[class]]\nname = \"fixed\"\nmatch = { dscp = [8] }\nscheme = \"sr\"\n[[class]]\nname = \"free\"\nscheme = \"auto\"\ndivide = []\n";
const FREE: usize = 1;

fn nothing(policy: Arc<Policy>) -> PathSnapshot {
    let cells = Arc::new(Cells::new(&policy));
    PathSnapshot::nothing(policy, cells)
}

fn policy(text: &str) -> Policy {
    Policy::parse(std::path::Path::new("policy.toml"), text).unwrap()
}

/// A class that has sent nothing, on a path that does not reorder.
fn sighting(schemes: [Scheme; 2]) -> ClassSighting {
    let reorder_time = Timers::default().reorder_time;
    ClassSighting {
        schemes: Some(schemes),
        sizes: Sizes::default(),
        alternation: Alternation::default(),
        reorder_time,
    }
}

/// The threads' messages are added up; the path is told by who has sent the most lately, and
/// schemes that are not the first thread's are seen.
#[test]
fn threads_are_seen_together() {
    let bench = Bench::new();
    let second = Some(Duration::from_secs(1));
    let seen = |delivered_peak: f64, messages, scheme| {
        let mut seen = bench.sighting.clone();
        seen.path = Some(Summary { delivered_peak, age: second, ..Summary::default() });
        for class in &mut seen.classes {
            class.sizes[3].messages = messages;
            class.alternation = Alternation { own: messages, others: 10 * messages };
            class.schemes = Some([scheme; 2]);
        }
        seen
    };
    let (one, other) = (seen(10.0, 5, Scheme::sr()), seen(100.0, 7, Scheme::sr()));
    let all = PathSnapshot::of_all([one.clone(), other.clone()]).unwrap();
    assert_eq!((all.session, all.path.unwrap().delivered_peak), (Some(1), 100.0));
    // An idle thread has seen no change for long, and the busy one has just seen one.
    let mut idle = one.clone();
    idle.path = Some(Summary { packets: 1e7, delivered_peak: 1e3, age: second, ..Summary::default() });
    let mut busy = other.clone();
    busy.path = Some(Summary { packets: 1e3, delivered_peak: 1e8, age: second, ..Summary::default() });
    busy.link.packet += 1;
    for threads in [[idle.clone(), busy.clone()], [busy.clone(), idle.clone()]] {
        let all = PathSnapshot::of_all(threads).unwrap();
        assert_eq!((all.path.unwrap().packets, all.link), (1e3, busy.link));
    }
    // Nothing is heard on it any more.
    busy.path = Some(Summary { age: Some(2 * STALE), ..busy.path.unwrap() });
    assert_eq!(PathSnapshot::of_all([busy, idle]).unwrap().path.unwrap().packets, 1e7);
    assert!(all.classes.iter().all(|class| class.sizes[3].messages == 12));
    assert!(all.classes.iter().all(|class| class.alternation == Alternation { own: 12, others: 120 }));
    let late = seen(1.0, 0, Scheme::Mds { k: 4, m: 1, depth: 1 });
    for threads in [[one.clone(), late.clone()], [late, one.clone()]] {
        let all = PathSnapshot::of_all(threads.clone()).unwrap();
        assert_eq!(all.classes[0].schemes, threads[1].classes[0].schemes);
    }
    // One has not heard yet that there is another session, or another policy.
    assert!(
        PathSnapshot::of_all([one.clone(), PathSnapshot { session: Some(2), ..other.clone() }]).is_none()
    );
    let another = Arc::new(policy(POLICY));
    assert!(PathSnapshot::of_all([one.clone(), PathSnapshot { policy: another, ..other }]).is_none());
    assert!(PathSnapshot::of_all([]).is_none());
}

/// A session whose data plane obeys at once.
struct Bench {
    chooser: Chooser,
    now: Instant,
    sighting: PathSnapshot,
    /// When the bulk stream's scheme changed, and to what.
    switches: Vec<(Instant, Scheme)>,
}

impl Bench {
    fn new() -> Self {
        Self::allowing("[\"sr\", \"xor\", \"mds\", \"hybrid\"]")
    }

    fn allowing(allowed: &str) -> Self {
        let policy = Arc::new(policy(&format!("{POLICY}allowed = {allowed}\n")));
        let mut chooser = Chooser::new(selector::Config::default());
        chooser.step(&nothing(Arc::clone(&policy)), Instant::now());
        let begin = Scheme::Hybrid { k: 32, m: 8, depth: 1 };
        let class = sighting([begin; 2]);
        let sighting = PathSnapshot {
            session: Some(1),
            link: Link { overhead: 60, ..Link::new(10_000_000_000, Duration::from_millis(50), 0.0, 1400) },
            path: None,
            cells: Arc::new(Cells::new(&policy)),
            policy,
            classes: vec![class; 2],
        };
        Self { chooser, now: Instant::now(), sighting, switches: Vec::new() }
    }

    /// The path is estimated to lose a share of packets within these bounds, at 25 ms.
    fn path(&mut self, low: f64, likely: f64, high: f64) {
        let rtt = Rtt { smoothed: Duration::from_millis(25), samples: 100, ..Rtt::default() };
        let one = Range { low: 1.0, likely: 1.0, high: 1.0 };
        self.sighting.path = Some(Summary {
            drop: Range { low, likely, high },
            burst: (likely > 0.0).then_some(one),
            packets: 5000.0,
            rtt,
            age: Some(Duration::from_millis(20)),
            ..Summary::default()
        });
    }

    fn send(&mut self, size: u64, count: u64) {
        let sizes = &mut self.sighting.classes[FREE].sizes;
        let bucket = Bucket::of(size).index();
        sizes[bucket].messages += count;
        sizes[bucket].bytes += size * count;
    }

    fn step(&mut self) {
        self.now += STEP;
        for (class, tuning) in self.chooser.step(&self.sighting, self.now) {
            assert_eq!(class, FREE);
            let wanted = [tuning.prompt, tuning.bulk];
            let [_, bulk] = self.sighting.classes[FREE].schemes.replace(wanted).unwrap();
            if bulk != tuning.bulk {
                self.switches.push((self.now, tuning.bulk));
            }
        }
    }

    fn steps(&mut self, count: usize) {
        for _ in 0..count {
            self.send(1 << 20, 10);
            self.step();
        }
    }

    fn bulk(&self) -> Choice {
        self.bulk_of("free")
    }

    fn bulk_of(&self, class: &str) -> Choice {
        self.chooser
            .choices()
            .find(|choice| (choice.stream, choice.class.as_str()) == ("bulk", class))
            .unwrap()
    }

    fn scheme(&self) -> Scheme {
        let [_, bulk] = self.sighting.classes[FREE].schemes.unwrap();
        bulk
    }
}

fn has_parity(scheme: Scheme) -> bool {
    matches!(scheme, Scheme::Xor { .. } | Scheme::Mds { .. } | Scheme::Hybrid { .. })
}

#[test]
fn classes_of_other_schemes_are_left_alone() {
    let mut chooser = Chooser::new(selector::Config::default());
    chooser.step(&nothing(Arc::default()), Instant::now());
    assert_eq!(chooser.choices().count(), 0);
    let policy = Arc::new(policy(&format!("{POLICY}allowed = [\"sr\"]\n")));
    chooser.step(&nothing(policy), Instant::now());
    let choice = chooser.choices().next().unwrap();
    let sr = Allowed { sr: true, xor: false, mds: false, hybrid: false };
    let found = (choice.class.as_str(), choice.objective.allowed, choice.objective.max_overhead);
    assert_eq!(found, ("free", sr, 0.5));
    assert_eq!(chooser.switches().collect::<Vec<_>>(), [(FREE, 0)]);
}

#[test]
fn a_hybrid_that_the_policy_names_is_told_of_the_path_and_keeps_its_scheme() {
    let mut bench = Bench::new();
    let text = "[[class]]\nname = \"default\"\nscheme = \"hybrid\"\nk = 16\nm = 6\n";
    bench.sighting.policy = Arc::new(policy(text));
    let schemes = [Scheme::Hybrid { k: 16, m: 6, depth: 1 }; 2];
    bench.sighting.classes = vec![sighting(schemes)];
    let step = |bench: &mut Bench| {
        bench.now += STEP;
        let orders = bench.chooser.step(&bench.sighting, bench.now);
        assert!(orders.iter().all(|(_, tuning)| (1.0..1.1).contains(&tuning.burst)), "{orders:?}");
        let told = |(class, tuning): &(usize, Tuning)| (*class, [tuning.prompt, tuning.bulk], tuning.drop);
        orders.iter().map(told).collect::<Vec<_>>()
    };
    assert_eq!(step(&mut bench), [], "nothing is known yet");
    bench.path(0.009, 0.01, 0.011);
    let told = |drop| vec![(0, schemes, drop)];
    assert_eq!(step(&mut bench), told(0.011));
    bench.path(0.009, 0.01, 0.012);
    assert_eq!(step(&mut bench), [], "about the same");
    bench.path(0.018, 0.02, 0.022);
    assert_eq!(step(&mut bench), told(0.022));
    // The streams of another session, or of another policy, begin without.
    bench.sighting.session = Some(2);
    assert_eq!(step(&mut bench), told(0.022));
    bench.sighting.policy = Arc::new(policy(text));
    assert_eq!(step(&mut bench), told(0.022));
    assert_eq!(step(&mut bench), []);
    assert_eq!(bench.chooser.choices().count(), 0, "nothing was chosen");
}

#[test]
fn a_class_keeps_its_choice_under_another_policy_unless_it_wants_something_else() {
    let mut bench = Bench::new();
    bench.path(0.0, 0.0, 1e-8);
    bench.steps(3);
    let chosen = bench.bulk();
    assert_eq!(bench.scheme(), Scheme::sr());
    // The class stands elsewhere, and its streams are as they were.
    let other = "[[class]]\nname = \"new\"\nmatch = { dscp = [1] }\nscheme = \"auto\"\ndivide = []\n";
    let free = "[[class]]\nname = \"free\"\nscheme = \"auto\"\ndivide = []\n";
    bench.sighting.policy = Arc::new(policy(&format!("{other}{free}")));
    let begin = Scheme::Hybrid { k: 32, m: 8, depth: 1 };
    bench.sighting.classes[0] = sighting([begin; 2]);
    bench.now += STEP;
    let orders = bench.chooser.step(&bench.sighting, bench.now);
    // It is told again what it knows, and nothing else.
    let unchanged = |tuning: &Tuning| [tuning.prompt, tuning.bulk] == [Scheme::sr(); 2];
    assert!(orders.iter().all(|(class, tuning)| *class == 0 || unchanged(tuning)), "{orders:?}");
    let kept = bench.bulk_of("free");
    assert_eq!((kept.since, kept.scheme), (chosen.since, chosen.scheme));
    assert_eq!(kept.decision.unwrap().reason, chosen.decision.unwrap().reason);
    assert_eq!(bench.bulk_of("new").missing, Some(Missing::Messages));
    assert_eq!(bench.chooser.switches().map(|(class, _)| class).collect::<Vec<_>>(), [0, 1]);

    // With something else to choose from, the core begins anew, and so does the chooser: at once,
    // no dwell.
    bench.sighting.policy = Arc::new(policy(&format!("{POLICY}allowed = [\"mds\"]\n")));
    let begin = Scheme::Mds { k: 32, m: 8, depth: 1 };
    bench.sighting.classes[FREE].schemes = Some([begin; 2]);
    bench.send(1 << 20, 10);
    bench.step();
    let decision = bench.bulk_of("free").decision.unwrap();
    assert_eq!(decision.reason, Reason::First);
    assert!(matches!(decision.chosen.candidate.scheme(), Scheme::Mds { .. }), "{decision}");
    assert!(bench.chooser.choices().all(|choice| choice.class == "free"));

    // Not `auto` any more.
    bench.sighting.policy = Arc::default();
    assert_eq!(bench.chooser.step(&bench.sighting, bench.now), []);
    assert_eq!(bench.chooser.choices().count(), 0);
}

#[test]
fn nothing_is_chosen_before_enough_is_known() {
    let mut bench = Bench::new();
    bench.steps(4);
    assert_eq!(bench.bulk().missing, Some(Missing::Path));
    // Not one of 50 packets was lost: up to 7 % may be.
    bench.path(0.0, 0.0, 0.07);
    bench.steps(4);
    assert_eq!(bench.bulk().missing, Some(Missing::Losses { packets: 5000 }));
    assert!(bench.switches.is_empty() && bench.bulk().decision.is_none());
    assert_eq!(bench.bulk().scheme, Some(Scheme::Hybrid { k: 32, m: 8, depth: 1 }));
    bench.path(0.0, 0.0, 1e-5);
    bench.steps(1);
    assert_eq!((bench.bulk().missing, bench.switches.len()), (None, 1));
    // The reports cease: what was decided holds.
    bench.sighting.path.as_mut().unwrap().age = Some(STALE * 2);
    bench.steps(4);
    assert_eq!((bench.bulk().missing, bench.switches.len()), (Some(Missing::Stale), 1));
    bench.sighting.session = None;
    bench.sighting.classes[FREE].schemes = None;
    bench.step();
    let gone = bench.bulk();
    assert_eq!((gone.missing, gone.scheme), (Some(Missing::Session), None));
    assert!(gone.decision.is_none());
}

#[test]
fn without_messages_only_the_prompt_stream_is_chosen_for() {
    let mut bench = Bench::new();
    bench.path(0.009, 0.01, 0.011);
    bench.step();
    assert_eq!(bench.bulk().missing, Some(Missing::Messages));
    let prompt = bench.chooser.choices().find(|choice| choice.stream == "prompt").unwrap();
    let decision = prompt.decision.unwrap();
    assert_eq!(decision.bucket, Bucket::of(1));
    // At 99.9 %, one loss in a hundred has to be borne without waiting.
    assert!(has_parity(decision.chosen.candidate.scheme()), "{decision}");
}

#[test]
fn the_choice_follows_the_link_and_comes_back() {
    let mut bench = Bench::allowing("[\"sr\", \"mds\"]");
    bench.path(0.0, 0.0, 1e-8);
    bench.steps(20);
    assert_eq!(bench.scheme(), Scheme::sr(), "{:?}", bench.bulk().decision);
    bench.path(0.045, 0.05, 0.055);
    let before = bench.now;
    bench.steps(20);
    assert!(has_parity(bench.scheme()), "{:?}", bench.bulk().decision);
    let (at, _) = bench.switches[1];
    assert!(at - before <= 3 * STEP, "at the third evaluation: {:?}", at - before);
    assert!(matches!(bench.bulk().decision.unwrap().reason, Reason::Faster { was: Candidate::Sr, .. }));
    bench.path(0.0, 1e-9, 1e-8);
    let before = bench.now;
    bench.steps(40);
    assert_eq!(bench.scheme(), Scheme::sr(), "{:?}", bench.bulk().decision);
    assert_eq!(bench.switches.len(), 3, "{:?}", bench.switches);
    assert_eq!(bench.switches[2].0 - before, 12 * STEP, "at the twelfth: it is not faster, only leaner");
    let switches = bench.chooser.switches().next().unwrap();
    assert!(switches.0 == FREE && (3..=6).contains(&switches.1), "both streams': {switches:?}");
}

/// The parity that it sends follows the loss rate by itself, so there is nothing to gain from
/// leaving it.
#[test]
fn hybrid_stays_when_the_losses_have_gone() {
    let mut bench = Bench::allowing("[\"sr\", \"hybrid\"]");
    bench.path(0.009, 0.01, 0.011);
    bench.steps(20);
    let chosen = bench.scheme();
    assert!(matches!(chosen, Scheme::Hybrid { .. }), "{:?}", bench.bulk().decision);
    bench.path(0.0, 1e-9, 1e-8);
    bench.steps(40);
    assert_eq!((bench.scheme(), bench.switches.len()), (chosen, 1), "{:?}", bench.bulk().decision);
}

#[test]
fn a_new_session_begins_anew() {
    let mut bench = Bench::new();
    bench.path(0.0, 0.0, 1e-8);
    bench.steps(3);
    assert_eq!(bench.scheme(), Scheme::sr());
    bench.sighting.session = Some(2);
    bench.sighting.path = None;
    let begin = Scheme::Hybrid { k: 32, m: 8, depth: 1 };
    bench.sighting.classes[FREE] = sighting([begin; 2]);
    bench.steps(2);
    assert_eq!((bench.scheme(), bench.bulk().missing), (begin, Some(Missing::Path)));
    // No dwell from the session before.
    bench.path(0.0, 0.0, 1e-8);
    bench.steps(1);
    assert_eq!((bench.scheme(), bench.bulk().decision.unwrap().reason), (Scheme::sr(), Reason::First));
}

#[test]
fn an_order_that_was_lost_is_given_again() {
    let mut bench = Bench::new();
    bench.path(0.0, 0.0, 1e-8);
    bench.send(1 << 20, 1);
    for _ in 0..3 {
        bench.now += STEP;
        let orders = bench.chooser.step(&bench.sighting, bench.now);
        assert!(matches!(orders[..], [(FREE, Tuning { bulk: Scheme::Sr { .. }, .. })]), "{orders:?}");
    }
    assert_eq!(bench.chooser.switches().next().map(|(_, count)| count <= 2), Some(true), "counted once");
}

/// Hints to `hybrid` on their way while the policy changes: the data plane does not obey them, so
/// they come again.
#[test]
fn hints_that_a_change_of_policy_overtook_are_given_again() {
    let mut bench = Bench::new();
    bench.path(0.0, 0.0, 1e-8);
    bench.steps(20);
    bench.path(0.0, 0.0, 1e-7);
    bench.send(1 << 20, 10);
    bench.now += STEP;
    let orders = bench.chooser.step(&bench.sighting, bench.now);
    assert!(matches!(orders[..], [(FREE, _)]), "{orders:?}");
    bench.now += STEP;
    assert_eq!(bench.chooser.step(&bench.sighting, bench.now), [], "once");
    bench.sighting.policy = Arc::new(Policy::clone(&bench.sighting.policy));
    bench.now += STEP;
    assert_eq!(bench.chooser.step(&bench.sighting, bench.now), orders);
}

/// Estimates that jump over three orders of magnitude, and messages of all sizes in turn.
#[test]
fn noise_does_not_make_it_oscillate() {
    let dwell = selector::Config::default().dwell;
    for seed in 0..2 {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let mut bench = Bench::new();
        let start = bench.now;
        for step in 0..240_u32 {
            let drop = 10.0_f64.powf(rng.random_range(-5.0..-1.5));
            bench.path(drop / 2.0, drop, drop * 2.0);
            // One size after the other for ten seconds each, far more of it than before.
            bench.send(1 << (10 + 5 * (step / 20 % 4)), 1 << (step / 10));
            bench.step();
        }
        // The first choice alone may be corrected sooner.
        for pair in bench.switches[1..].windows(2) {
            assert!(pair[1].0 - pair[0].0 >= dwell, "seed {seed}: {:?}", bench.switches);
        }
        let most = (bench.now - start).as_secs_f64() / dwell.as_secs_f64() + 2.0;
        assert!(bench.switches.len() >= 2 && bench.switches.len() as f64 <= most, "seed {seed}");
    }
}

/// The first choice comes with the first messages, which find an empty link before them.
#[test]
fn a_first_choice_is_corrected_soon_once_the_load_is_known() {
    let mut bench = Bench::new();
    bench.sighting.link =
        Link { overhead: 60, ..Link::new(200_000_000, Duration::from_millis(25), 0.0, 8900) };
    bench.path(0.005, 0.015, 0.04);
    bench.send(64 << 10, 5);
    bench.step();
    let first = bench.scheme();
    bench.path(0.008, 0.01, 0.012);
    for _ in 0..5 {
        bench.send(64 << 10, 150);
        let sent = &mut bench.sighting.classes[FREE].sizes[Bucket::of(64 << 10).index()];
        (sent.waiting, sent.under_way) = (sent.waiting + 150 * 3_500_000, sent.under_way + 150 * 600_000);
        bench.step();
    }
    let [(at, _), (corrected, scheme)] = bench.switches[..] else { panic!("{:?}", bench.switches) };
    assert!(corrected - at < Duration::from_secs(3));
    let parity = |scheme| match scheme {
        Scheme::Mds { k, m, .. } | Scheme::Hybrid { k, m, .. } => f64::from(m) / f64::from(k),
        Scheme::Xor { k, m, .. } => f64::from(m) / f64::from(k),
        _ => 0.0,
    };
    assert!(parity(scheme) < parity(first) / 2.0, "{first:?}, {scheme:?}");
}

/// Around a loss rate that is known to a factor of two and estimated a third off, there is nothing
/// to gain from changing.
#[test]
fn a_noisy_estimate_of_a_steady_link_is_worth_two_switches_at_most() {
    for seed in 0..2 {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let mut bench = Bench::new();
        for _ in 0..240 {
            let noise: f64 = (0..12).map(|_| rng.random_range(-0.5..0.5)).sum();
            let drop = 1e-3 * (0.3 * noise).exp();
            bench.path(drop / 2.0, drop, drop * 2.0);
            bench.steps(1);
        }
        assert!(bench.switches.len() <= 3, "seed {seed}: {:?}", bench.switches);
    }
}

#[test]
fn the_median_byte_speaks_for_a_class() {
    let mut spread = Spread::default();
    let (mut now, dwell) = (Instant::now(), Duration::from_secs(5));
    let mut sizes = Sizes::default();
    let mut step = |small: u64, large: u64| {
        now += STEP;
        sizes[Bucket::of(4096).index()].bytes += small;
        sizes[Bucket::of(1 << 20).index()].bytes += large;
        spread.follow(&sizes, Alternation::default(), dwell, now);
        spread.bucket()
    };
    assert_eq!(step(0, 0), None);
    assert_eq!(step(4096, 0), Some(Bucket::of(4096)));
    // A few large ones outweigh many small ones, but not at once.
    let seen: Vec<_> = (0..14).map(|_| step(40_960, 1 << 20)).collect();
    let first = seen.iter().position(|bucket| *bucket == Some(Bucket::of(1 << 20))).unwrap();
    assert!((2..=10).contains(&first), "{seen:?}");
    assert!(seen[first..].iter().all(|bucket| *bucket == seen[first]));
    // They end; within some half-lives the small ones count again.
    let back = (0..400).position(|_| step(40_960, 0) == Some(Bucket::of(4096))).unwrap();
    assert!((10..200).contains(&back), "{back}");
}

/// Data of others between a message's packets is the mean of late.
#[test]
fn what_is_between_a_messages_packets_fades_like_everything_else() {
    let mut spread = Spread::default();
    let (mut now, mut sizes, mut sent) = (Instant::now(), Sizes::default(), Alternation::default());
    let mut step = |own: u64, others: u64| {
        now += STEP;
        sizes[Bucket::of(1 << 20).index()].bytes += 1;
        sent.add(Alternation { own, others });
        spread.follow(&sizes, sent, Duration::ZERO, now);
        spread.load(Bucket::of(1 << 20)).between
    };
    assert_eq!(step(0, 0), 0.0);
    assert_eq!(step(1000, 63_000), 63.0);
    // After three half-lives without others.
    let last = (0..60).map(|_| step(1000, 0)).last().unwrap();
    assert!((0.1..1.0).contains(&last), "{last}");
}

#[test]
fn what_messages_find_before_them_counts() {
    let decision = |waiting: u64, under_way: u64| {
        let mut bench = Bench::new();
        bench.path(0.009, 0.01, 0.011);
        for _ in 0..4 {
            bench.send(64 << 10, 100);
            let sent = &mut bench.sighting.classes[FREE].sizes[Bucket::of(64 << 10).index()];
            (sent.waiting, sent.under_way) = (sent.waiting + 100 * waiting, sent.under_way + 100 * under_way);
            bench.step();
        }
        bench.bulk().decision.unwrap()
    };
    let (alone, beside) = (decision(0, 0), decision(1 << 33, 1 << 20));
    let found = |decision: &Decision| {
        [decision.load.waiting, decision.load.under_way].map(|bytes| bytes.round() as u64)
    };
    assert_eq!((found(&alone), found(&beside)), ([0, 0], [1 << 33, 1 << 20]));
    assert!(beside.chosen.overhead < alone.chosen.overhead / 2.0, "{alone}\n{beside}");
}

#[test]
fn what_waits_for_overtaken_packets_is_known_to_be_slower() {
    // Short messages at 1 %: without parity, one in a hundred waits for a repair, which now takes
    // longer.
    let expected = |reorder_time: Duration| {
        let mut bench = Bench::allowing("[\"sr\"]");
        bench.path(0.009, 0.01, 0.011);
        bench.sighting.classes[FREE].reorder_time = reorder_time;
        bench.send(4096, 100);
        bench.step();
        let [_, likely, _] = bench.bulk().decision.unwrap().chosen.times();
        likely
    };
    let [usual, patient] = [1, 21].map(|ms| expected(Duration::from_millis(ms)));
    let longer = patient.as_secs_f64() - usual.as_secs_f64();
    assert!((0.019..0.021).contains(&longer), "{usual:?}, {patient:?}");
}

#[test]
fn each_part_of_a_class_has_a_choice_of_its_own() {
    let policy = Arc::new(policy("[[class]]\nname = \"all\"\nscheme = \"auto\"\ndivide = [\"64 KiB\"]\n"));
    let mut bench = Bench::new();
    bench.path(0.009, 0.01, 0.011);
    let begin = Scheme::Hybrid { k: 32, m: 8, depth: 1 };
    bench.sighting.classes = vec![sighting([begin; 2]); 2];
    bench.sighting.cells = Arc::new(Cells::new(&policy));
    bench.sighting.policy = policy;
    for (class, size) in [(0, 4096), (1, 1 << 30)] {
        let bucket = Bucket::of(size).index();
        let sizes = &mut bench.sighting.classes[class].sizes;
        (sizes[bucket].messages, sizes[bucket].bytes) = (100, 100 * size);
    }
    let orders = bench.chooser.step(&bench.sighting, bench.now);
    let [(0, short), (1, long)] = orders.as_slice() else { panic!("{orders:?}") };
    assert!(has_parity(short.bulk) && short.bulk != long.bulk, "{orders:?}");
    let shown: Vec<_> = bench.chooser.choices().map(|choice| (choice.class, choice.stream)).collect();
    // What has no payload goes with the shortest messages, so the other prompt stream is nobody's.
    let expected = [("all/64KiB", "prompt"), ("all/64KiB", "bulk"), ("all", "bulk")];
    assert_eq!(shown, expected.map(|(class, stream)| (class.to_owned(), stream)));
    assert_eq!(long.prompt, begin);
}
