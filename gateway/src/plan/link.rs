//! The link that is planned for: as arguments describe it, as a gateway file does, or as a running
//! gateway knows it.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use config::{ByteSize, Rate};
use reliability::link::Link;
use reliability::selector::Estimate;
use reliability::stream;

use super::within;
use crate::admin::{Address, Endpoint, Status, Token};
use crate::choose::{STALE, is_tight};

/// Bytes that a WAN packet takes on the wire beyond its share of a message: Ethernet, IPv4, UDP,
/// the seal, the DATA header and a piece's header.
pub(super) const OVERHEAD: usize =
    18 + 20 + 8 + session::OVERHEAD + stream::DATA_HEADER + stream::FRAGMENT_HEADER;

/// The message bytes that a WAN packet carries, where IP packets may have this length.
pub(super) const fn payload(mtu: usize) -> usize {
    (mtu + 18).saturating_sub(OVERHEAD)
}

/// Arguments that describe a link.
#[derive(Clone, Debug, Default, Args)]
pub struct LinkArgs {
    /// Rate of the link, such as "10 Gbit/s"
    #[arg(long)]
    rate: Option<Rate>,
    /// Round-trip time, such as "25 ms"
    #[arg(long)]
    rtt: Option<config::Duration>,
    /// Share of packets lost, or the range it lies in; the geometric mean of a range is taken as
    /// likely
    #[arg(long, value_parser = drop_range)]
    drop: Option<DropRange>,
    /// Mean number of packets lost in a row [default: 1]
    #[arg(long, value_name = "PACKETS", value_parser = burst)]
    burst: Option<f64>,
    /// Payload of a WAN packet [default: 1424 B, what an MTU of 1500 leaves]
    #[arg(long, value_name = "SIZE")]
    packet: Option<ByteSize>,
    /// Address (admin.listen or admin.socket) of a running gateway that fills in what is not given
    #[arg(long, value_name = "ADDRESS", value_parser = crate::admin::Address::parse)]
    admin: Option<Address>,
    /// The peer that it is asked about, if it has several
    #[arg(long, value_name = "NAME", requires = "admin", value_parser = crate::admin::site_name)]
    peer: Option<String>,
    /// A file with the token, where that gateway's admin.token asks for one
    #[arg(long, value_name = "FILE", requires = "admin")]
    admin_token: Option<PathBuf>,
    /// The authority of the certificate at https:// [default: those that the system trusts]
    #[arg(long, value_name = "FILE", requires = "admin")]
    admin_authority: Option<PathBuf>,
}

/// `--drop`
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DropRange {
    pub(super) low: f64,
    pub(super) likely: f64,
    pub(super) high: f64,
}

/// Knowledge of a link without arguments.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Known {
    /// Bit/s.
    rate: Option<u64>,
    rtt: Option<Duration>,
    drop: Option<DropRange>,
    burst: Option<f64>,
    /// Message bytes in a WAN packet.
    payload: Option<usize>,
}

/// The link is not described, or by what makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoLink(String);

impl LinkArgs {
    /// The running gateway to ask.
    ///
    /// # Errors
    /// A line that says which file cannot be used.
    pub fn admin(&self) -> Result<Option<Endpoint>, String> {
        let Some(address) = self.admin.clone() else { return Ok(None) };
        let token = self.admin_token.as_deref().map(Token::read).transpose()?;
        let admin = Endpoint::new(address, token, self.admin_authority.as_deref())?;
        Ok(Some(admin.about(self.peer.as_deref())))
    }

    /// Returns true if anything is said.
    pub fn is_given(&self) -> bool {
        let Self { rate, rtt, drop, burst, packet, admin, peer: _, admin_token: _, admin_authority: _ } =
            self;
        rate.is_some()
            || rtt.is_some()
            || drop.is_some()
            || burst.is_some()
            || packet.is_some()
            || admin.is_some()
    }

    fn lacks(&self, missing: &str) -> NoLink {
        NoLink(match &self.admin {
            Some(admin) => {
                format!("give {missing} of the link: the gateway at {admin} does not know enough of it now")
            }
            None => format!("give {missing} of the link, or --admin with a gateway that knows it"),
        })
    }

    /// The link, arguments before what is `known`.
    ///
    /// # Errors
    /// Rate, round-trip time or loss rate are neither said nor known, or a packet cannot have that
    /// size.
    pub fn estimate(&self, known: &Known) -> Result<Estimate, NoLink> {
        let rate = self.rate.map(Rate::bits_per_second).or(known.rate);
        let rtt = self.rtt.map(config::Duration::get).or(known.rtt);
        let drop = self.drop.or(known.drop);
        let (Some(rate), Some(rtt), Some(drop)) = (rate, rtt, drop) else {
            let all = [("--rate", rate.is_none()), ("--rtt", rtt.is_none()), ("--drop", drop.is_none())];
            let missing: Vec<_> =
                all.iter().filter(|(_, is_missing)| *is_missing).map(|(name, _)| *name).collect();
            return Err(self.lacks(&missing.join(", ")));
        };
        let packet = self.packet.map(ByteSize::as_usize).or(known.payload).unwrap_or(payload(1500));
        if !(1..=usize::from(u16::MAX)).contains(&packet) {
            return Err(NoLink(format!("--packet: {packet} B is no packet, 1 to 65535 bytes are")));
        }
        if rate == 0 {
            return Err(NoLink("--rate: nothing can be sent at 0 bit/s".to_owned()));
        }
        let burst = self.burst.or(known.burst).unwrap_or(1.0);
        let link = Link { burst, overhead: OVERHEAD, ..Link::new(rate, rtt, drop.likely, packet) };
        Ok(Estimate { link, drop_low: drop.low, drop_high: drop.high })
    }
}

impl Known {
    /// As a running gateway tells: of the losses what it would choose by itself, or nothing.
    pub fn of(status: &Status) -> Self {
        let path = status.path.as_ref();
        let sure = path.filter(|path| {
            let [_, likely, high] = path.drop;
            path.age <= STALE.as_secs_f64() && is_tight(likely, high)
        });
        let bounds = |[low, likely, high]: [f64; 3]| DropRange { low, likely, high };
        // Smallest, smoothed, variation.
        let smoothed = |[_, smoothed, _]: [f64; 3]| Duration::try_from_secs_f64(smoothed).ok();
        let likely = |[_, likely, _]: [f64; 3]| likely;
        let full = status.choices.iter().find_map(|choice| Some(choice.link?.packet));
        Self {
            rate: Some(status.link_rate),
            rtt: path.and_then(|path| smoothed(path.rtt)).filter(|rtt| !rtt.is_zero()),
            drop: sure.map(|path| bounds(path.drop)),
            burst: sure.and_then(|path| path.burst).map(likely),
            payload: full.and_then(|full| usize::try_from(full).ok()),
        }
    }

    /// As a gateway file says.
    pub fn written(gateway: &config::Gateway) -> Self {
        let payload = payload(usize::from(gateway.wan.usual_packet()));
        Self { rate: Some(gateway.peer.rate.bits_per_second()), payload: Some(payload), ..Self::default() }
    }

    /// Fills in what is not known here, as `other` knows it.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            rate: self.rate.or(other.rate),
            rtt: self.rtt.or(other.rtt),
            drop: self.drop.or(other.drop),
            burst: self.burst.or(other.burst),
            payload: self.payload.or(other.payload),
        }
    }
}

// Argument parsers.

pub(super) fn drop_range(text: &str) -> Result<DropRange, String> {
    let one = |text: &str| {
        let (number, scale) = match text.trim().strip_suffix('%') {
            Some(number) => (number.trim_end(), 0.01),
            None => (text.trim(), 1.0),
        };
        let value = number.parse::<f64>().ok().map(|value| value * scale);
        value
            .filter(|drop| (0.0..=0.5).contains(drop))
            .ok_or_else(|| format!("{text:?} is no loss rate: a number from 0 to 0.5, or per cent up to 50%"))
    };
    let Some((low, high)) = text.split_once("..") else {
        return one(text).map(|drop| DropRange { low: drop, likely: drop, high: drop });
    };
    let (low, high) = (one(low)?, one(high)?);
    if low > high {
        return Err("the range ends below its beginning".to_owned());
    }
    Ok(DropRange { low, likely: (low * high).sqrt(), high })
}

fn burst(text: &str) -> Result<f64, String> {
    within(text, 1.0..=10_000.0, "a number of packets from 1 to 10000")
}
