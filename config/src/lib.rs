//! The two files an operator writes, as types: the gateway file ([`Gateway`]) and the policy file
//! ([`Policy`]).
//!
//! Here live their keys, units, defaults and every check that needs nothing but the text. Nothing
//! is read but those files: whether keys parse or an interface exists is the gateway's to find out,
//! and to add to the [`Report`].
//!
//! A file is refused with all its problems at once ([`Invalid`]), each with its place, what was
//! found and what would be right.

mod check;
mod foreign;
mod gateway;
mod hosts;
mod pair;
mod policy;
mod problem;
mod read;
mod report;
mod serial;
mod units;
mod utf8;

pub use check::check;
pub use gateway::{
    Admin, AdminTls, Cipher, Congestion, Gateway, Identity, Lan, LanMode, Limits, Peer, PolicyFile, Relation,
    Retention, Site, SiteGateway, Wan, is_site_name, member_number,
};
pub use pair::check_pair;
pub use policy::{
    Allowed, Block, Bounds, Candidates, Class, Completion, Difference, MAX_CLASSES, Match, NotQps, Policy,
    QpRange, Refuse, Scheme, Survive, Traffic, is_class_name, is_class_or_part_name, names_class,
};
pub use problem::{Invalid, Label, Problem, Style, render};
pub use report::{Content, Report};
pub use serial::Serial;
pub use units::{ByteSize, Duration, Quantity, Rate, UnitError};
pub use utf8::utf8;
