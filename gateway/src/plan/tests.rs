use std::fs;

use clap::Parser;

use super::link::{DropRange, OVERHEAD, drop_range, payload};
use super::*;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    plan: PlanArgs,
}

fn parse(arguments: &[&str]) -> Result<PlanArgs, clap::Error> {
    let arguments = std::iter::once("plan").chain(arguments.iter().copied());
    Line::try_parse_from(arguments).map(|line| line.plan)
}

const LINK: [&str; 6] = ["--rate", "10 Gbit/s", "--rtt", "25 ms", "--drop", "1e-3"];

fn run(further: &[&str], style: Style) -> Result<String, PlanError> {
    let arguments: Vec<&str> = LINK.iter().chain(further).copied().collect();
    let mut out = Vec::new();
    parse(&arguments).unwrap().run(&mut out, style, &Known::default())?;
    Ok(String::from_utf8(out).unwrap())
}

#[test]
fn loss_rates() {
    let one = |drop| Ok(DropRange { low: drop, likely: drop, high: drop });
    assert_eq!(drop_range("1e-3"), one(1e-3));
    assert_eq!(drop_range(" 0.1 % "), one(1e-3));
    assert_eq!(drop_range("0"), one(0.0));
    let range = drop_range("1e-4..1%").unwrap();
    assert_eq!((range.low, range.high), (1e-4, 0.01));
    assert!((range.likely - 1e-3).abs() < 1e-12);
    for wrong in ["", "x", "-1e-3", "0.6", "60%", "1e-2..1e-3", "..", "1e-3..", "NaN", "inf"] {
        assert!(drop_range(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn what_has_to_be_said() {
    assert!(parse(&LINK).is_ok());
    for missing in [0, 2, 4] {
        let mut some = LINK.to_vec();
        some.drain(missing..missing + 2);
        let refused = parse(&some).unwrap().run(&mut Vec::new(), Style::Plain, &Known::default());
        let option = LINK[missing];
        let Err(PlanError::Link(error)) = refused else { panic!("{option}: {refused:?}") };
        assert!(error.to_string().starts_with(&format!("give {option} of")), "{error}");
    }
    let wrong: [&[&str]; 5] = [
        &["--burst", "0.5"],
        &["--percentile", "100"],
        &["--max-overhead", "5"],
        &["--packet", "1400"],
        &["--policy", "p.toml", "--percentile", "99"],
    ];
    for further in wrong {
        let arguments: Vec<&str> = LINK.iter().chain(further).copied().collect();
        assert!(parse(&arguments).is_err(), "{further:?}");
    }
    let packet = |size| run(&["--packet", size], Style::Plain);
    assert!(
        matches!(packet("64 KiB"), Err(PlanError::Link(error)) if error.to_string().contains("--packet"))
    );
    assert!(matches!(packet("0 B"), Err(PlanError::Link(_))));
}

#[test]
fn headers_leave_so_much_of_a_usual_packet() {
    assert_eq!((payload(1500), payload(1500) + OVERHEAD), (1424, 1518));
}

#[test]
fn a_table_a_verdict_and_a_picture() {
    let text = run(&[], Style::Plain).unwrap();
    assert!(!text.contains('\x1b'), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[0],
        "10 Gbit/s, RTT 25.0 ms, loss 0.10 % in runs of 1.0, packets of 1424 and 94 bytes of headers"
    );
    assert_eq!(lines[2], "99.9 % of messages complete within");
    assert_eq!(
        lines[3].split_whitespace().collect::<Vec<_>>(),
        ["size", "sr", "xor(32,8)", "mds(32,8)", "hybrid(32,8)", "auto"]
    );
    let rows = |unit: &str| lines.iter().filter(|line| line.trim_start().starts_with(unit)).count();
    assert_eq!((rows("1 KiB "), rows("64 GiB ")), (3, 2), "time, overhead and axis");
    let marked = lines[4..18].iter().filter(|line| line.contains('*')).count();
    assert_eq!(marked, 14, "{text}");
    // A loss costs a message of 16 KiB more than two round trips with sr, and the flush time at
    // most with parity.
    let row: Vec<&str> = lines[6].split_whitespace().collect();
    assert_eq!((row[0], row[1]), ("16", "KiB"));
    assert!(row[2].parse::<f64>().unwrap() > 75.0 && row[6].parse::<f64>().unwrap() < 26.0, "{row:?}");
    assert!(text.contains("\nbest: sr, "), "{text}");
    assert!(text.contains("s sr, x xor(32,8), m mds(32,8), h hybrid(32,8), * several"), "{text}");
    assert!(!text.contains("warning"), "{text}");
}

#[test]
fn buffers_too_small_for_the_link_are_warned_of() {
    // 25 MB under way.
    let link = |rate| Link::new(rate, Duration::from_millis(20), 0.0, 1400);
    let small = Some((ByteSize::from_bytes(100_000_000), 1));
    assert_eq!(
        buffer_warning(&link(10_000_000_000), 1, small).unwrap(),
        "warning: 23.8 MiB are under way on this link. For one flow or class to fill it, `limits.total_buffer` has to be 143 MiB in both\n\
         gateways, and 71.5 MiB for the flows to one target host; it is 95.4 MiB."
    );
    assert_eq!(buffer_warning(&link(10_000_000_000), 10, None), None);
    let many = buffer_warning(&link(10_000_000_000), 11, None).unwrap();
    assert!(many.contains("has to be 525 MiB") && many.ends_with("the default is 512 MiB."), "{many}");
    assert_eq!(buffer_warning(&link(5_000_000_000), 3, small), None);
    let divided = small.map(|(bytes, _)| (bytes, 2));
    let halves = buffer_warning(&link(5_000_000_000), 3, divided).unwrap();
    assert!(halves.contains("has to be 143 MiB in both") && halves.contains("71.5 MiB for"), "{halves}");
    assert!(
        halves.ends_with("it is 95.4 MiB, which 2 data-plane threads, or pairs of them, divide among them."),
        "{halves}"
    );
}

#[test]
fn colour_is_for_terminals() {
    let colour = run(&[], Style::Colour).unwrap();
    assert!(colour.contains("\x1b[31ms\x1b[0m"));
}

#[test]
fn a_policy_is_planned_for_class_by_class() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.toml");
    let text = "[[class]]\nname = \"control\"\nmatch = { dscp = [\"ef\"] }\nscheme = \"mds\"\nk = 2\nm = 2\npercentile = 99\n\
                [[class]]\nname = \"rest\"\nscheme = \"none\"\nmax_overhead = 0.0\n";
    fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap();
    let text = run(&["--policy", path], Style::Plain).unwrap();
    assert!(
        text.contains("Class control: 99 % of messages complete within\n    size     mds(2,2) "),
        "{text}"
    );
    let rest = text.split("Class rest: 99.9 %").nth(1).unwrap();
    assert!(rest.lines().nth(1).unwrap().trim_start().starts_with("size           sr"), "{rest}");
    // Without overhead there is but one choice.
    assert!(rest.lines().skip(2).take(Bucket::COUNT).all(|line| line.contains("   sr ")), "{rest}");

    fs::write(path, "[[class]]\nname = \"x\"\nscheme = \"mds\"\n").unwrap();
    let refused = run(&["--policy", path], Style::Plain);
    let Err(PlanError::Policy(invalid)) = refused else { panic!("{refused:?}") };
    assert!(invalid.render(Style::Plain).contains("k = 32"));
}

#[test]
fn a_drawing_has_all_schemes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.svg");
    let text = run(&["--svg", path.to_str().unwrap()], Style::Plain).unwrap();
    assert!(text.ends_with("plan.svg\n"), "{text}");
    let drawing = fs::read_to_string(&path).unwrap();
    assert!(drawing.starts_with("<svg ") && drawing.trim_end().ends_with("</svg>"));
    for piece in
        ["hybrid(32,8)", "xor(32,8)", "mds(32,8)", "message size", "16 GiB", "10 Gbit/s, RTT 25.0 ms"]
    {
        assert!(drawing.contains(piece), "no {piece}");
    }
    assert!(drawing.matches("<polyline").count() >= 4);
    assert!(drawing.contains("1  hybrid(32,8) from "), "{drawing}");
    let nowhere = folder.path().join("no/such/folder.svg");
    let refused = run(&["--svg", nowhere.to_str().unwrap()], Style::Plain);
    assert!(matches!(refused, Err(PlanError::Picture { path, .. }) if path == nowhere));
}

/// Links with few and with many steps of the axes, and with crossovers side by side.
#[test]
fn no_label_of_a_drawing_lies_on_another_one() {
    let mut numbered = 0;
    for [rate, rtt, drop, burst] in [
        ["10 Gbit/s", "25 ms", "1e-3", "1"],
        ["400 Gbit/s", "100 ms", "1e-4..1e-2", "1"],
        ["1 Gbit/s", "1 ms", "0.1", "20"],
        ["100 Gbit/s", "300 ms", "1e-7", "1"],
        ["10 Mbit/s", "2 ms", "0.2", "3"],
        ["1 Gbit/s", "5 ms", "0.3", "1"],
        ["25 Gbit/s", "1 s", "1e-5", "100"],
    ] {
        let link = ["--rate", rate, "--rtt", rtt, "--drop", drop, "--burst", burst];
        let plan = parse(&link).unwrap();
        let subjects = plan.subjects(plan.link.estimate(&Known::default()).unwrap()).unwrap();
        let drawing = svg::draw(subjects.first().unwrap()).unwrap();
        assert_eq!(testbed::drawing::collisions(&drawing), [""; 0], "{link:?}");
        numbered += drawing.matches(" from ").count();
    }
    assert!(numbered > 7, "{numbered}");
}

#[test]
fn a_window_that_is_too_small_is_said() {
    let mut out = Vec::new();
    let link = ["--rate", "400 Gbit/s", "--rtt", "100 ms", "--drop", "1e-4..1e-2", "--packet", "4 KiB"];
    parse(&link).unwrap().run(&mut out, Style::Plain, &Known::default()).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(
        text.starts_with("400 Gbit/s, RTT 100 ms, loss 0.10 % (0.010 % to 1.0 %) in runs of 1.0"),
        "{text}"
    );
    assert!(text.contains("a stream's window holds 524288: a class carries 176 Gbit/s"), "{text}");
}
