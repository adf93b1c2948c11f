//! A terminal is given back as it was.

use super::*;

/// Have the terminal show a screen of its own, and the one before again.
const ENTER: &str = "\u{1b}[?1049h";
const LEAVE: &str = "\u{1b}[?1049l";
/// Hide the cursor, and show it again.
const HIDE: &str = "\u{1b}[?25l";
const SHOW: &str = "\u{1b}[?25h";

/// Returns the process that another one has started.
fn child_of(parent: u32) -> Option<Pid> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    Pid::from_raw(children.split_whitespace().next()?.parse().ok()?)
}

/// The second one ends the program at once.
const TWO: [Signal; 2] = [Signal::INT, Signal::TERM];

/// "Restore the terminal on panic and termination signals" (indaco/malt#631): a shell whose program
/// was ended had neither echo nor lines. script(1) has a terminal for it.
#[test]
fn a_signal_leaves_no_screen_of_ours_behind() {
    for signals in [&[Signal::TERM][..], &[Signal::INT], &[Signal::HUP], &[Signal::QUIT], &TWO, &TWO, &TWO] {
        let folder = tempfile::tempdir().unwrap();
        let shown = folder.path().join("shown");
        let command = format!("exec {} top --admin 127.0.0.1:1", env!("CARGO_BIN_EXE_longhaul"));
        let mut script = Command::new("script");
        script.args(["--quiet", "--flush", "--return", "--command", &command]).arg(&shown);
        script.stdin(Stdio::null()).stdout(Stdio::null()).env("TERM", "xterm");
        let mut script = script.spawn().expect("script of util-linux");
        let began = std::time::Instant::now();
        let screen = || fs::read_to_string(&shown).unwrap_or_default();
        while !screen().contains(ENTER) {
            assert!(began.elapsed().as_secs() < 60, "{signals:?}: {:?}", screen());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let top = child_of(script.id()).unwrap();
        signals.iter().for_each(|signal| kill_process(top, *signal).unwrap());
        let ended = script.wait().unwrap();
        assert!(screen().contains(LEAVE), "{signals:?}, {ended}: {:?}", screen());
        assert!(screen().rfind(SHOW) >= screen().rfind(HIDE), "{signals:?}, {ended}: {:?}", screen());
        // A second signal may come too late to be one.
        let interrupted = signals.len() > 1 && ended.code() == Some(130);
        assert!(interrupted || ended.code() == Some(0), "{signals:?}: {ended}");
    }
}
