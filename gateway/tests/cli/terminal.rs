//! A terminal is given back as it was.

use super::*;

/// Have the terminal show a screen of its own, and the one before again.
const ENTER: &str = "\u{1b}[?1049h";
const LEAVE: &str = "\u{1b}[?1049l";

/// Returns the process that another one has started.
fn child_of(parent: u32) -> Option<Pid> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    Pid::from_raw(children.split_whitespace().next()?.parse().ok()?)
}

/// "Restore the terminal on panic and termination signals" (indaco/malt#631): a shell whose program
/// was ended had neither echo nor lines. script(1) has a terminal for it.
#[test]
fn a_signal_leaves_no_screen_of_ours_behind() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
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
            assert!(began.elapsed().as_secs() < 60, "{signal:?}: {:?}", screen());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        kill_process(child_of(script.id()).unwrap(), signal).unwrap();
        let ended = script.wait().unwrap();
        assert!(screen().contains(LEAVE), "{signal:?}, {ended}: {:?}", screen());
        assert_eq!(ended.code(), Some(0), "{signal:?}");
    }
}
