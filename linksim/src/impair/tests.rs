//! Statistics with fixed seeds: every figure below is exact for its seed, and the bounds are those
//! of the theory.

use std::time::{Duration, Instant};

use super::*;

const PACKETS: u32 = 200_000;

/// Fates of packets that enter one microsecond apart.
fn fates(text: &str, seed: u64, packets: u32) -> (Instant, Vec<Fate>) {
    let spec: LinkSpec = text.parse().unwrap();
    let mut impairer = Impairer::new(spec, seed);
    let start = Instant::now();
    let fates = (0..packets).map(|i| impairer.admit(start + Duration::from_micros(i.into()), 1000)).collect();
    (start, fates)
}

fn lost(fates: &[Fate]) -> Vec<bool> {
    fates.iter().map(|fate| fate.first == Err(Drop::Lost)).collect()
}

fn share(events: impl Iterator<Item = bool>) -> f64 {
    let (hits, all) = events.fold((0u32, 0u32), |(hits, all), event| (hits + u32::from(event), all + 1));
    f64::from(hits) / f64::from(all)
}

/// Mean length of runs of `true`.
fn mean_burst(events: &[bool]) -> f64 {
    let runs: Vec<usize> = events.chunk_by(|a, b| a == b).filter(|run| run[0]).map(<[bool]>::len).collect();
    runs.iter().sum::<usize>() as f64 / runs.len() as f64
}

fn assert_near(found: f64, wanted: f64, relative: f64) {
    assert!((found - wanted).abs() <= wanted * relative, "{found} is not within {relative} of {wanted}");
}

#[test]
fn random_loss_has_its_rate_and_no_memory() {
    let (_, fates) = fates("loss 2%", 1, PACKETS);
    let lost = lost(&fates);
    assert_near(share(lost.iter().copied()), 0.02, 0.05);
    assert_near(mean_burst(&lost), 1.0 / 0.98, 0.03);
}

#[test]
fn gilbert_elliott_has_its_rate_and_burst_length() {
    // p = 0.5 %, r = 20 %: bursts of five on average, 2.4 % lost.
    let (_, fates) = fates("loss gemodel 0.5% 20%", 2, PACKETS);
    let lost = lost(&fates);
    assert_near(share(lost.iter().copied()), 0.005 / 0.205, 0.1);
    assert_near(mean_burst(&lost), 5.0, 0.1);
}

#[test]
fn gilbert_elliott_with_all_four_parameters() {
    let spec: LinkSpec = "loss gemodel 1% 10% 50% 0.2%".parse().unwrap();
    let (_, fates) = fates("loss gemodel 1% 10% 50% 0.2%", 3, PACKETS);
    assert_near(spec.loss.mean(), 0.5 / 11.0 + 0.002 * 10.0 / 11.0, 1e-9);
    assert_near(share(lost(&fates).into_iter()), spec.loss.mean(), 0.1);
}

#[test]
fn defaults_of_gemodel_are_those_of_tc() {
    let spec: LinkSpec = "loss gemodel 3%".parse().unwrap();
    assert_eq!(
        spec.loss,
        Loss::GilbertElliott { to_bad: 0.03, to_good: 0.97, loss_bad: 1.0, loss_good: 0.0 }
    );
}

#[test]
fn duplicates_and_corruption_have_their_rates() {
    let (_, fates) = fates("duplicate 3% corrupt 1%", 4, PACKETS);
    assert_near(share(fates.iter().map(|fate| fate.second.is_some())), 0.03, 0.06);
    let bits: Vec<usize> = fates.iter().filter_map(|fate| fate.first.ok()?.corrupt).collect();
    assert_near(bits.len() as f64 / f64::from(PACKETS), 0.01, 0.1);
    assert!(bits.iter().all(|bit| *bit < 8000));
    assert_near(bits.iter().sum::<usize>() as f64 / bits.len() as f64, 4000.0, 0.05);
}

#[test]
fn loss_takes_one_copy_of_a_duplicated_packet() {
    let (_, fates) = fates("duplicate 100% loss 100%", 5, 10);
    assert!(fates.iter().all(|fate| fate.first.is_ok() && fate.second == Some(Err(Drop::Lost))));
}

#[test]
fn uniform_jitter_stays_within_its_bounds() {
    let (start, fates) = fates("delay 10ms 2ms", 6, 50_000);
    let delays = delays(start, &fates);
    assert!(delays.iter().all(|delay| (0.008..=0.012).contains(delay)));
    assert_near(mean(&delays), 0.010, 0.005);
    // Standard deviation of a uniform distribution of width 4 ms.
    assert_near(deviation(&delays), 0.004 / 12f64.sqrt(), 0.02);
}

#[test]
fn normal_jitter_has_its_deviation() {
    let (start, fates) = fates("delay 10ms 1ms distribution normal", 7, 50_000);
    let delays = delays(start, &fates);
    assert_near(mean(&delays), 0.010, 0.005);
    assert_near(deviation(&delays), 0.001, 0.02);
    let beyond_two = share(delays.iter().map(|delay| (delay - 0.010).abs() > 0.002));
    assert_near(beyond_two, 0.0455, 0.1);
}

fn delays(start: Instant, fates: &[Fate]) -> Vec<f64> {
    let entered = |i: usize| start + Duration::from_micros(i as u64);
    fates.iter().enumerate().map(|(i, fate)| (fate.first.unwrap().at - entered(i)).as_secs_f64()).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
}

#[test]
fn reordered_packets_go_at_once_and_keep_the_gap() {
    let (start, fates) = fates("delay 1ms reorder 25%", 8, PACKETS);
    assert_near(share(fates.iter().map(|fate| fate.reordered)), 0.25, 0.02);
    for (i, fate) in fates.iter().enumerate() {
        let delay = fate.first.unwrap().at - (start + Duration::from_micros(i as u64));
        assert_eq!(delay, if fate.reordered { Duration::ZERO } else { Duration::from_millis(1) });
    }
    let (_, fates) = self::fates("delay 1ms reorder 100% gap 5", 8, 100);
    let at: Vec<usize> =
        fates.iter().enumerate().filter(|(_, fate)| fate.reordered).map(|(i, _)| i).collect();
    assert_eq!(at, (4..100).step_by(5).collect::<Vec<_>>());
}

#[test]
fn the_rate_is_exact_over_many_packets() {
    // 1046 bytes with overhead at 3 Gbit/s is 2789 1/3 ns: the thirds must add up.
    let spec: LinkSpec = "rate 3gbit overhead 46".parse().unwrap();
    let mut impairer = Impairer::new(spec, 0);
    let start = Instant::now();
    let last = (0..3000).map(|_| impairer.admit(start, 1000).first.unwrap().at).last().unwrap();
    assert_eq!(last - start, Duration::from_nanos(1046 * 8 * 1000));
}

#[test]
fn a_full_queue_drops_the_newest() {
    // 1000 bytes at 8 Mbit/s take 1 ms. One being sent and four waiting fit.
    let spec: LinkSpec = "rate 8mbit limit 4".parse().unwrap();
    let mut impairer = Impairer::new(spec, 0);
    let start = Instant::now();
    let fits = |impairer: &mut Impairer, at| impairer.admit(start + at, 1000).first.is_ok();
    let taken: Vec<bool> = (0..7).map(|_| fits(&mut impairer, Duration::ZERO)).collect();
    assert_eq!(taken, [true, true, true, true, true, false, false]);
    assert!(!fits(&mut impairer, Duration::from_micros(999)));
    assert!(fits(&mut impairer, Duration::from_millis(1)));
    assert!(!fits(&mut impairer, Duration::from_millis(1)));

    let spec: LinkSpec = "rate 8mbit limit 2500b".parse().unwrap();
    let mut impairer = Impairer::new(spec, 0);
    let taken: Vec<bool> = (0..4).map(|_| fits(&mut impairer, Duration::ZERO)).collect();
    assert_eq!(taken, [true, true, true, false]);
}

#[test]
fn a_link_delivers_bytes_in_time_order_and_recycles() {
    let mut link = Link::new("delay 5ms".parse().unwrap(), 9);
    let start = Instant::now();
    for round in 0u8..10 {
        let now = start + Duration::from_millis(10 * u64::from(round));
        for i in 0u8..10 {
            link.submit(now, &[round, i]);
        }
        assert_eq!(link.next_timeout(), Some(now + Duration::from_millis(5)));
        assert_eq!(link.poll(now + Duration::from_micros(4999)), None);
        for i in 0u8..10 {
            assert_eq!(link.poll(now + Duration::from_millis(5)), Some(&[round, i][..]));
        }
        assert_eq!(link.poll(now + Duration::from_millis(5)), None);
    }
    assert!(link.is_empty());
    assert_eq!(link.buffers_allocated(), 10);
    assert_eq!(
        (link.stats().submitted, link.stats().delivered, link.stats().delivered_bytes),
        (100, 100, 200)
    );
}

#[test]
fn corruption_flips_exactly_one_bit() {
    let mut link = Link::new("corrupt 100%".parse().unwrap(), 10);
    let now = Instant::now();
    for _ in 0..200 {
        link.submit(now, &[0; 64]);
        let packet = link.poll(now).unwrap();
        assert_eq!(packet.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
    }
}

#[test]
fn the_same_seed_gives_the_same_fates() {
    let text = "delay 10ms 1ms loss gemodel 1% 20% duplicate 1% corrupt 1% reorder 5%";
    let run = |seed| {
        let (start, fates) = fates(text, seed, 5000);
        fates.into_iter().map(|fate| fate.first.map(|d| (d.at - start, d.corrupt))).collect::<Vec<_>>()
    };
    assert_eq!(run(11), run(11));
    assert_ne!(run(11), run(12));
}

#[test]
fn what_is_longer_than_the_mtu_vanishes() {
    let mut link = Link::new("mtu 1000".parse().unwrap(), 1);
    let now = Instant::now();
    for len in [999, 1000, 1001, 5000, 1] {
        link.submit(now, &vec![0; len]);
    }
    let passed: Vec<usize> = std::iter::from_fn(|| link.poll(now).map(<[u8]>::len)).collect();
    assert_eq!((passed, link.stats().too_long), (vec![999, 1000, 1], 2));
}

#[test]
fn descriptions_survive_a_round_trip() {
    for text in [
        "",
        "delay 10ms loss 1% rate 200mbit limit 1000",
        "delay 25ms 3ms distribution normal loss gemodel 1% 20% 80% 0.5%",
        "latency 1s duplicate 0.5 corrupt 2% reorder 25% gap 5",
        "rate 1.5gbit overhead 38 limit 100 limit 2mb",
        "delay 1ms mtu 1472",
    ] {
        let spec: LinkSpec = text.parse().unwrap();
        assert_eq!(spec.to_string().parse::<LinkSpec>().unwrap(), spec, "{text}");
    }
    assert!("".parse::<LinkSpec>().unwrap().is_perfect());
    assert!(!"loss 1%".parse::<LinkSpec>().unwrap().is_perfect());
}

#[test]
fn errors_name_the_culprit() {
    let error = |text: &str| text.parse::<LinkSpec>().unwrap_err();
    assert_eq!(error("dealy 10ms"), ParseError::UnknownWord("dealy".into()));
    assert_eq!(error("delay"), ParseError::Missing("delay"));
    assert_eq!(error("loss 1% loss 2%"), ParseError::Twice("loss"));
    assert_eq!(error("rate 1gbit limit 5 limit 6"), ParseError::Twice("limit in packets"));
    assert_eq!(error("reorder 5%"), ParseError::ReorderWithoutDelay);
    assert_eq!(error("limit 5"), ParseError::LimitWithoutRate);
    for text in [
        "delay 10",
        "delay -1ms",
        "delay 2h",
        "delay 1e9s",
        "loss 101%",
        "loss x",
        "rate 0bit",
        "rate 5",
        "limit 5x",
        "mtu 1kb",
    ] {
        assert!(matches!(error(text), ParseError::BadValue { .. }), "{text}");
    }
    assert_eq!(error("loss 101%").to_string(), "`loss`: `101%` is not a percentage from 0% to 100%");
}
