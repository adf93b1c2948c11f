//! Arguments that several commands have in common.

use std::path::PathBuf;

use clap::Args;

use super::failure::{Failure, unusable};
use crate::admin::{Address, Endpoint, Token};

/// Where a running gateway is asked.
#[derive(Clone, Debug, Args)]
pub(super) struct AdminArgs {
    /// The gateway's admin.listen, or the path of its admin.socket [default:
    /// /run/longhaul/admin.sock if there is one, else 127.0.0.1:9464]
    #[arg(long, value_name = "ADDRESS", value_parser = Address::parse)]
    admin: Option<Address>,
    /// A file with the token, where admin.token asks for one
    #[arg(long, value_name = "FILE")]
    admin_token: Option<PathBuf>,
}

impl AdminArgs {
    pub(super) fn endpoint(&self) -> Result<Endpoint, Failure> {
        let token = self.admin_token.as_deref().map(Token::read).transpose();
        let token = token.map_err(|error| unusable(format!("longhaul: {error}")))?;
        Ok(Endpoint::new(self.admin.clone().unwrap_or_else(Address::usual), token))
    }
}

/// Parses a number of seconds within bounds.
pub(super) fn seconds_within(text: &str, least: f64, most: f64) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (least..=most).contains(&seconds) => Ok(seconds),
        _ => Err(format!("a number of seconds from {least} to {most}")),
    }
}
