//! `longhaul top`: a running gateway on a terminal's screen, asked anew every second.

mod screen;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event as Input, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::admin::{self, Endpoint, FetchError, FlowFilter, FlowList, Status};
use crate::events::{Event, Events};

/// Between two questions.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How long a key may wait for the screen.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long a second signal waits for a terminal to take its last bytes.
const GIVE_BACK: Duration = Duration::from_millis(500);
/// Flows that a screen has room for at most.
const FLOWS: usize = 64;
/// The same for events.
const EVENTS: usize = 64;

/// The contents of the screen.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The last answer to /status.
    pub status: Option<Status>,
    /// The last answer to /flows.
    pub flows: FlowList,
    /// The last events, the oldest first.
    pub events: Vec<Event>,
    /// Why the gateway does not answer now.
    pub error: Option<String>,
    /// The number of the next event.
    next: u64,
}

impl View {
    /// Asks the gateway at `admin`. Without an answer, the view keeps what was known.
    pub async fn ask(&mut self, admin: &Endpoint) {
        self.error = self.try_ask(admin).await.err().map(|error| error.to_string());
    }

    /// Has the gateway asked about the peer after the one shown, in the order of the gateway file.
    pub fn turn(&self, admin: &mut Endpoint) {
        let Some(Status { peer, peers, .. }) = &self.status else { return };
        let after = peers.iter().position(|name| name == peer).map_or(0, |place| place + 1);
        if let Some(next) = peers.get(after).or(peers.first()) {
            *admin = admin.about(Some(next));
        }
    }

    async fn try_ask(&mut self, admin: &Endpoint) -> Result<(), FetchError> {
        self.status = Some(admin::ask(admin, "/status").await?);
        let some = FlowFilter { most: Some(FLOWS), ..FlowFilter::default() };
        self.flows = admin::ask(admin, &some.target("/flows")).await?;
        let answer: Events = admin::ask(admin, &format!("/events?from={}", self.next)).await?;
        if answer.next < self.next {
            // The gateway was started again: the next question asks from its beginning.
            self.next = 0;
            return Ok(());
        }
        self.next = answer.next;
        self.events.extend(answer.events);
        let surplus = self.events.len().saturating_sub(EVENTS);
        self.events.drain(..surplus);
        Ok(())
    }
}

/// Shows a gateway until q, Escape, Ctrl-C or a signal.
///
/// # Errors
/// The terminal cannot be used.
pub fn run(runtime: &Runtime, mut admin: Endpoint, is_over: &AtomicBool) -> io::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let (shown, views) = watch::channel(View::default());
    let (turn, mut turned) = watch::channel(());
    let asking = runtime.spawn(async move {
        let mut ticks = interval(ASK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut view = View::default();
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                Ok(()) = turned.changed() => view.turn(&mut admin),
            }
            view.ask(&admin).await;
            shown.send_replace(view.clone());
        }
    });
    let outcome = show(&mut terminal, views, &turn, is_over);
    asking.abort();
    ratatui::try_restore()?;
    outcome
}

/// Gives the terminal back as it was, while [`run`] may still draw. A terminal that takes nothing
/// more, as one over a dead connection does, gets its modes and no longer a screen.
pub fn give_back() {
    let (done, ended) = mpsc::channel::<()>();
    let restoring = thread::Builder::new().spawn(move || {
        ratatui::restore();
        // Whoever draws the screen shows it again at a common end.
        let _ = execute!(io::stdout(), Show);
        drop(done);
    });
    if restoring.is_ok() {
        // It ends by the sender's end, or not in time.
        let _ = ended.recv_timeout(GIVE_BACK);
    }
}

fn show(
    terminal: &mut DefaultTerminal,
    mut views: watch::Receiver<View>,
    turn: &watch::Sender<()>,
    is_over: &AtomicBool,
) -> io::Result<()> {
    let mut is_stale = true;
    while !is_over.load(Ordering::Acquire) {
        if is_stale || views.has_changed().unwrap_or(false) {
            let view = views.borrow_and_update().clone();
            terminal.draw(|frame| screen::draw(frame, &view))?;
        }
        is_stale = event::poll(LOOK_EVERY)?;
        if is_stale {
            match command(&event::read()?) {
                Some(Key::End) => break,
                Some(Key::NextPeer) => drop(turn.send(())),
                None => {}
            }
        }
    }
    Ok(())
}

/// Commands given by keys.
enum Key {
    End,
    NextPeer,
}

fn command(input: &Input) -> Option<Key> {
    let Input::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) = input else { return None };
    match code {
        KeyCode::Char('q') | KeyCode::Esc => Some(Key::End),
        KeyCode::Char('c') => modifiers.contains(KeyModifiers::CONTROL).then_some(Key::End),
        KeyCode::Char('n') | KeyCode::Tab => Some(Key::NextPeer),
        _ => None,
    }
}
