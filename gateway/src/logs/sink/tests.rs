use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, PipeReader, Read, Write, pipe};

use super::*;

const PATIENCE: Duration = Duration::from_secs(30);
const AT_ONCE: Duration = Duration::ZERO;

fn counts() -> &'static Counts {
    Box::leak(Box::default())
}

fn start(sink: impl Into<OwnedFd>, counts: &'static Counts) -> Queue {
    Queue::start(sink.into(), counts, Form::Plain).unwrap()
}

fn line(number: usize) -> Vec<u8> {
    format!("line {number} {}\n", "x".repeat(200)).into_bytes()
}

/// Reads whole lines until one is the `last`.
fn read_until(reader: PipeReader, last: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for read in BufReader::new(reader).lines() {
        lines.push(read.unwrap());
        if lines.last().is_some_and(|line| line.starts_with(last)) {
            return lines;
        }
    }
    panic!("the sink has ended after {lines:?}");
}

#[test]
fn a_reader_that_stalls_costs_lines_and_hears_how_many() {
    let (reader, writer) = pipe().unwrap();
    let counts = counts();
    let queue = start(writer, counts);
    const PUSHED: usize = 10_000;
    (0..PUSHED).for_each(|number| queue.push(line(number)));
    let [full, sink, ..] = counts.all();
    assert!(full > 0 && sink == 0, "{counts:?}");
    queue.finish(AT_ONCE);
    assert!(queue.pending.load(Ordering::Acquire) > 0, "the pipe has taken everything");
    let reading = std::thread::spawn(move || read_until(reader, "end"));
    queue.finish(PATIENCE);
    queue.push(b"end\n".to_vec());
    let lines = reading.join().unwrap();
    let told = |line: &String| line.rsplit_once(" lost=").map(|(_, count)| count.parse::<u64>().unwrap());
    assert_eq!(lines.iter().filter_map(told).sum::<u64>(), full, "{lines:?}");
    let whole = lines.iter().filter(|line| line.starts_with("line ")).count();
    assert_eq!(whole as u64 + full, PUSHED as u64);
    assert!(
        lines.iter().all(|l| l.starts_with("line ") && l.len() > 200 || l.contains("lost=") || l == "end")
    );
}

#[test]
fn a_reader_that_is_gone_and_a_full_disk_cost_lines_and_nothing_else() {
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    for sink in [OwnedFd::from(writer), full.into()] {
        let counts = counts();
        let queue = start(sink, counts);
        (0..500).for_each(|number| queue.push(line(number)));
        queue.finish(PATIENCE);
        assert_eq!(counts.all(), [0, 500, 0, 0]);
    }
}

#[test]
fn a_descriptor_that_somebody_made_non_blocking_loses_nothing() {
    let (mut reader, mut writer) = pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    let mut filled = 0;
    while let Ok(more) = writer.write(&[b'.'; 4096]) {
        filled += more;
    }
    let counts = counts();
    let queue = start(writer, counts);
    (0..100).for_each(|number| queue.push(line(number)));
    queue.push(b"end\n".to_vec());
    let mut before = vec![0; filled];
    reader.read_exact(&mut before).unwrap();
    assert_eq!(read_until(reader, "end").len(), 101);
    assert_eq!(counts.all(), [0; 4]);
}

#[test]
fn a_line_is_cut_at_its_bound_and_a_torn_one_is_ended() {
    let (reader, writer) = pipe().unwrap();
    let counts = counts();
    let mut torn = Writer {
        sink: writer.try_clone().unwrap().into(),
        state: State::Torn,
        confessed: 0,
        pending: Arc::default(),
        counts,
        form: Form::Plain,
    };
    torn.write_line(b"whole\n").unwrap();
    assert_eq!(torn.state, State::Whole);
    let queue = start(writer, counts);
    queue.push(vec![b'x'; 1 << 20]);
    queue.push(b"end\n".to_vec());
    let lines = read_until(reader, "end");
    assert_eq!((lines[0].as_str(), lines[1].as_str()), ("", "whole"));
    assert!(lines[2].len() < LONGEST && lines[2].ends_with(" [cut]"), "{}", lines[2].len());
}
