//! Where the demo is: one live line on a terminal, one line per transfer elsewhere.

use std::io::{self, Write};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use reliability::human;

pub(super) struct Progress {
    bar: ProgressBar,
    transfers: usize,
    done: usize,
    name: String,
    began: Instant,
}

impl Progress {
    pub(super) fn new(transfers: usize) -> Self {
        let bar = ProgressBar::new(transfers as u64);
        // A template that does not parse would show as the default one.
        if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos:>2}/{len}  {elapsed:>3}  {msg}") {
            bar.set_style(style);
        }
        bar.set_message("starting");
        bar.tick();
        Self { bar, transfers, done: 0, name: String::new(), began: Instant::now() }
    }

    pub(super) fn begin(&mut self, link: &str, carrier: &str) {
        self.name = format!("{link}, {carrier}");
        self.began = Instant::now();
        self.bar.set_message(self.name.clone());
    }

    pub(super) fn tick(&self, messages: u64, bytes: u64) {
        let rate = human::rate(bytes as f64 * 8.0 / self.began.elapsed().as_secs_f64());
        self.bar.set_message(format!("{}: {messages} messages, {rate}", self.name));
    }

    /// A transfer is over, with this goodput in bit/s.
    pub(super) fn end(&mut self, goodput: f64) {
        self.done += 1;
        self.bar.inc(1);
        if self.bar.is_hidden() {
            let rate = human::rate(goodput);
            // If standard error is closed there is nowhere to say so.
            let _ = writeln!(io::stderr(), "{:>2}/{}  {}: {rate}", self.done, self.transfers, self.name);
        }
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
