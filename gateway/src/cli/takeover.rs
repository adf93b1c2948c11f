//! The beginning of `longhaul gateway`: from nothing, or in the place of a gateway that runs.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;

use clap::Args;
use config::{Content, Gateway, Report, Style};
use tokio::sync::oneshot;
use tracing::Level;

use super::failure::{Failure, failed, output_failed};
use super::style;
use crate::admin::{Doors, SOCKET};
use crate::causes::chain;
use crate::check;
use crate::logs::Logs;
use crate::run::{self, Former};
use crate::upgrade::{Announcement, Heir, NotTaken, Outcome, Place, executable};

#[derive(Debug, Args)]
pub(super) struct TakeOverArgs {
    /// Take the place of the gateway that runs with this file
    #[arg(long, hide = true)]
    take_over: bool,
    /// Do nothing if that is this very program
    #[arg(long, hide = true, requires = "take_over")]
    if_replaced: bool,
    /// Say on standard output what came of it
    #[arg(long, hide = true, requires = "take_over")]
    announce: bool,
}

/// The parts that a gateway begins with.
pub(super) struct Beginning {
    /// `None`: it begins with no flows.
    pub(super) heir: Option<Heir>,
    /// The lock that keeps other gateways off the interface.
    pub(super) lock: Option<UnixListener>,
    /// The interface of the running gateway.
    pub(super) former: Former,
    /// The admin listener's socket and token.
    pub(super) doors: Doors,
}

impl TakeOverArgs {
    /// Finds the running gateway if its place is to be taken. `None`: there is nothing to do.
    pub(super) fn begin(&self, gateway: &Gateway) -> Result<Option<Beginning>, Failure> {
        if !self.take_over {
            let lock = run::lock(&gateway.lan).map_err(failed)?;
            let doors = Doors::open(gateway.admin.as_ref()).map_err(failed)?;
            return Ok(Some(Beginning { heir: None, lock, former: Former::None, doors }));
        }
        let not_taken = |why: NotTaken| failed(chain(&why));
        let path = Doors::path_of_running(gateway.admin.as_ref(), Path::new(SOCKET));
        let Some((path, admin)) = path.zip(gateway.admin.as_ref()) else {
            return Err(failed(
                "an upgrade goes by admin.socket, and the gateway file names none: add `socket = \"/run/longhaul/admin.sock\"` under [admin], and restart once",
            ));
        };
        let mut heir = Heir::connect(&path).map_err(not_taken)?;
        if self.if_replaced && heir.stand().executable == executable() {
            self.say(&unchanged("")).map_err(output_failed)?;
            heir.leave();
            return Ok(None);
        }
        heir.check(gateway).inspect_err(|why| heir.refuse(&chain(why))).map_err(not_taken)?;
        if let Err(why) = heir.offer_room().map_err(not_taken)? {
            tracing::warn!("the gateway stands still for longer, as there is no room to copy ahead: {why}");
        }
        let (lock, former) = match run::inherited_lock(&mut heir, &gateway.lan) {
            (None, former) => (run::lock(&gateway.lan).map_err(failed)?, former),
            inherited => inherited,
        };
        let doors = match heir.take(Place::AdminSocket) {
            Some(socket) => Doors::adopt(admin, socket.into()),
            None => Doors::open(Some(admin)),
        };
        Ok(Some(Beginning { heir: Some(heir), lock, former, doors: doors.map_err(failed)? }))
    }

    /// Returns true if there is nothing to do, though the file cannot be used now: its certificate
    /// has expired, or the clock is wrong. Then the running gateway goes on as it is, and what is
    /// wrong is a warning.
    pub(super) fn has_nothing_to_do(&self, file: Report, logs: &Logs) -> Result<bool, Failure> {
        if !self.if_replaced {
            return Ok(false);
        }
        let report = check::check_to_stay(file);
        let Some(Content::Gateway(gateway, _)) = report.content().filter(|_| report.is_valid()) else {
            return Ok(false);
        };
        let path = Doors::path_of_running(gateway.admin.as_ref(), Path::new(SOCKET));
        let Some(heir) = path.and_then(|path| Heir::connect(&path).ok()) else { return Ok(false) };
        let is_same = heir.stand().executable == executable();
        heir.leave();
        if is_same {
            let warnings = |style| config::render(report.problems(), style);
            logs.print(Level::WARN, &warnings(style(&io::stderr())));
            self.say(&unchanged(&warnings(Style::Plain))).map_err(output_failed)?;
        }
        Ok(is_same)
    }

    /// Returns where it is told that the place is taken, if anybody wants to know.
    pub(super) fn announcer(
        &self,
    ) -> Option<(oneshot::Sender<Announcement>, oneshot::Receiver<Announcement>)> {
        self.announce.then(oneshot::channel)
    }

    /// Says why this process has not taken over. Whoever knows already that it has reads no more.
    pub(super) fn say_failed(&self, why: &str) {
        let _ = self.say(&Announcement::nothing(Outcome::Failed, why));
    }

    fn say(&self, what: &Announcement) -> io::Result<()> {
        if self.announce { what.say() } else { Ok(()) }
    }
}

/// With what is wrong all the same.
fn unchanged(warnings: &str) -> Announcement {
    let text = format!("the running gateway is this very program: nothing to do\n{warnings}");
    Announcement::nothing(Outcome::Unchanged, &text)
}
