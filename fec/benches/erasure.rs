//! Encoding and decoding on every engine this processor has, as data throughput and as ratios to
//! `reed-solomon-erasure` in the same run. `cargo bench -p fec`; further arguments select cases and
//! engines by substring. `benches/peers/run` installs ISA-L and compares with that, too, and with
//! `reed-solomon-erasure`'s C kernels (simd-accel) instead of its pure Rust.
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![expect(clippy::unwrap_used, reason = "a benchmark may stop")]
#![expect(clippy::indexing_slicing, reason = "a benchmark may stop")]

use std::{
    hint::black_box,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use fec::{Code, Decoder, Encoder, Engine, Kind, Recovered, engine};
use reed_solomon_erasure::galois_8::ReedSolomon;

/// Erasure patterns per measurement: enough that neither branch predictors nor caches of matrices
/// know them all.
const PATTERNS: usize = 32;
/// The best of many short measurements counts: whatever else runs on the machine only ever adds
/// time, and rarely to all of them.
const MEASUREMENTS: usize = 80;
const MEASUREMENT: Duration = Duration::from_micros(1500);

struct Case {
    kind: Kind,
    k: usize,
    m: usize,
    len: usize,
}

const CASES: &[Case] = &[
    case(Kind::Mds, 32, 8, 4096),
    case(Kind::Mds, 32, 4, 1400),
    case(Kind::Mds, 128, 32, 1400),
    case(Kind::Xor, 32, 8, 4096),
    case(Kind::Xor, 32, 8, 1400),
];

const fn case(kind: Kind, k: usize, m: usize, len: usize) -> Case {
    Case { kind, k, m, len }
}

fn main() {
    let filters: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let isal = cfg!(feature = "peers").then(Isal::build);
    println!("GB/s of data (times the MDS code of the same size and losses of {})", peers(isal.is_some()));
    for case in CASES {
        let name = format!("{:?}({}, {}) {} B", case.kind, case.k, case.m, case.len);
        let engines: Vec<_> = engine::available()
            .filter(|engine| {
                let line = format!("{name} {}", engine.name());
                filters.iter().all(|filter| line.contains(filter))
            })
            .collect();
        if engines.is_empty() {
            continue;
        }
        println!("\n{name:33} {:>18}{}", "encode", header(case.m));
        // Around ours, and the better of both: what slows the machine down for a while must not
        // flatter us.
        let mut references = case.references(isal.as_ref());
        let ours: Vec<_> = engines.iter().map(|engine| case.ours(*engine)).collect();
        for (reference, again) in references.iter_mut().zip(case.references(isal.as_ref())) {
            reference.iter_mut().zip(again).for_each(|(rate, again)| *rate = rate.max(again));
        }
        for (name, reference) in ["reed-solomon-erasure", "ISA-L"].iter().zip(&references) {
            print_line(name, reference, &[]);
        }
        for (engine, rates) in engines.iter().zip(&ours) {
            print_line(engine.name(), rates, &references);
        }
    }
}

fn peers(isal: bool) -> &'static str {
    if isal { "reed-solomon-erasure with simd-accel, ISA-L" } else { "reed-solomon-erasure" }
}

/// The C program beside this file that does the same with ISA-L.
struct Isal(PathBuf);

impl Isal {
    fn build() -> Self {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers/isal.c");
        let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("isal");
        let built =
            Command::new("cc").args(["-O3", "-o"]).arg(&program).args([source, "-lisal"]).status().unwrap();
        assert!(built.success(), "ISA-L is missing: libisal-dev");
        Self(program)
    }

    fn rates(&self, case: &Case) -> Vec<f64> {
        let numbers = [case.k, case.m, case.len]
            .into_iter()
            .chain(LOSSES.into_iter().filter(|&losses| losses <= case.m));
        let run = Command::new(&self.0).args(numbers.map(|number| number.to_string())).output().unwrap();
        assert!(run.status.success(), "ISA-L got it wrong");
        String::from_utf8(run.stdout).unwrap().split_whitespace().map(|rate| rate.parse().unwrap()).collect()
    }
}

const LOSSES: [usize; 3] = [1, 4, 8];

fn header(m: usize) -> String {
    let columns = LOSSES.iter().filter(|&&losses| losses <= m);
    columns.map(|losses| format!("{:>19}", format!("decode {losses} lost"))).collect()
}

fn print_line(name: &str, rates: &[f64], references: &[Vec<f64>]) {
    print!("  {name:31}");
    for (index, rate) in rates.iter().enumerate() {
        let ratios: Vec<_> = references.iter().map(|of| format!("{:.1}x", rate / of[index])).collect();
        let ratios = if ratios.is_empty() { String::new() } else { format!(" ({})", ratios.join(" ")) };
        print!(" {:>18}", format!("{rate:.2}{ratios}"));
    }
    println!();
}

impl Case {
    fn packets(&self) -> Vec<Vec<u8>> {
        let mut random = Random(1);
        (0..self.k).map(|_| (0..self.len).map(|_| random.next() as u8).collect()).collect()
    }

    /// Data packets lost, by pattern. An XOR code loses at most one of a class.
    fn patterns(&self, losses: usize) -> Vec<Vec<usize>> {
        let mut random = Random(2);
        let mut pattern = || {
            let mut lost: Vec<usize> = Vec::new();
            while lost.len() < losses {
                let j = random.next() as usize % self.k;
                let class = |j: usize| {
                    if self.kind == Kind::Xor { j % self.m } else { j }
                };
                if lost.iter().all(|&other| class(other) != class(j)) {
                    lost.push(j);
                }
            }
            lost
        };
        (0..PATTERNS).map(|_| pattern()).collect()
    }

    /// Bytes of data per nanosecond, of what handles one block per call.
    fn rate(&self, run: impl FnMut()) -> f64 {
        (self.k * self.len) as f64 / best_of(run).as_secs_f64() / 1e9
    }

    fn ours(&self, engine: &'static dyn Engine) -> Vec<f64> {
        let code = Code::new(self.kind, self.k, self.m).unwrap();
        let packets = self.packets();
        let mut encoder = Encoder::with_engine(code.clone(), self.len, engine);
        // As a stream does: packets are pushed as soon as they make a batch of the engine's.
        let slices: Vec<_> = packets.iter().map(Vec::as_slice).collect();
        let mut rates = vec![self.rate(|| {
            encoder.reset();
            for batch in slices.chunks(encoder.batch()) {
                encoder.push_batch(batch).unwrap();
            }
            for i in 0..self.m {
                black_box(encoder.parity(i));
            }
        })];
        let parity: Vec<_> = (0..self.m).map(|i| encoder.parity(i).unwrap().to_vec()).collect();
        let parity: Vec<_> = parity.iter().map(|parity| Some(&parity[..])).collect();
        let mut decoder = Decoder::with_engine(engine);
        let mut out = Recovered::new();
        for losses in LOSSES.into_iter().filter(|&losses| losses <= self.m) {
            let blocks: Vec<Vec<Option<&[u8]>>> = self
                .patterns(losses)
                .iter()
                .map(|lost| {
                    let indexed = packets.iter().enumerate();
                    indexed.map(|(j, packet)| (!lost.contains(&j)).then_some(&packet[..])).collect()
                })
                .collect();
            let mut blocks = blocks.iter().cycle();
            rates.push(self.rate(|| {
                if let Some(data) = blocks.next() {
                    decoder.decode(&code, data, &parity, &mut out).unwrap();
                }
                out.iter().for_each(|packet| {
                    black_box(packet);
                });
            }));
            assert!(out.iter().all(|(j, packet)| packet == packets[j]));
        }
        rates
    }

    /// Measures `reed-solomon-erasure`, and ISA-L.
    fn references(&self, isal: Option<&Isal>) -> Vec<Vec<f64>> {
        std::iter::once(self.reference()).chain(isal.map(|isal| isal.rates(self))).collect()
    }

    fn reference(&self) -> Vec<f64> {
        let code = ReedSolomon::new(self.k, self.m).unwrap();
        let mut shards = self.packets();
        shards.resize(self.k + self.m, vec![0; self.len]);
        let mut rates = vec![self.rate(|| code.encode(&mut shards).unwrap())];
        let mut shards: Vec<_> = shards.into_iter().map(|shard| (shard, true)).collect();
        for losses in LOSSES.into_iter().filter(|&losses| losses <= self.m) {
            let patterns = self.patterns(losses);
            let mut patterns = patterns.iter().cycle();
            rates.push(self.rate(|| {
                let lost = patterns.next().unwrap();
                lost.iter().for_each(|&j| shards[j].1 = false);
                code.reconstruct_data(&mut shards).unwrap();
                lost.iter().for_each(|&j| shards[j].1 = true);
            }));
        }
        rates
    }
}

/// The shortest time one call of `run` took.
fn best_of(mut run: impl FnMut()) -> Duration {
    let started = Instant::now();
    run();
    let once = started.elapsed().max(Duration::from_nanos(100));
    let times = (MEASUREMENT.as_nanos() / once.as_nanos()).clamp(1, 100_000) as u32;
    let measure = |_| {
        let started = Instant::now();
        (0..times).for_each(|_| run());
        started.elapsed() / times
    };
    (0..MEASUREMENTS).map(measure).min().unwrap_or_default()
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }
}
